"""The command-line parser: one function per command, with its arguments and the function that it
calls.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from segtrain import __version__, commands
from segtrain.bucket import CLOUDS, typed_place, url_forms
from segtrain.errors import closest
from segtrain.machines import TABLES

EXAMPLES = """examples:
  segtrain train                                              generated scenes, no data needed
  segtrain train configs/camvid_cpu.yaml data.root=CamVid     section.key=value overrides the file
  torchrun --nproc-per-node 4 -m segtrain train configs/camvid_cpu.yaml data.root=CamVid
"""
RUN = f"run folder, sagemaker:JOB, {url_forms('PREFIX')}"
WEIGHTS = f"run folder, also in a bucket: {url_forms('PREFIX')}"
# Subcommands of `segtrain launch`, with their help texts. Each names a module in launch/ that has a
# function ``main(arguments, command)``.
PLATFORMS = {
    "sagemaker": "a training job on Amazon SageMaker",
    "vertex": "a custom job on Vertex AI",
    "slurm": "a batch job on a Slurm cluster",
    "ray": "ranks on a Ray cluster, by Ray Train",
    "fsx": "an FSx for Lustre file system linked to S3",
    "cluster": "check a recipe of AWS ParallelCluster",
    "lustre": "export folders of FSx for Lustre to S3, or release their space",
}
CONFIG = "YAML file (default: every setting at its default)"


class _Parser(argparse.ArgumentParser):
    """A parser that suggests the closest command or choice for a misspelled one."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = [str(choice) for choice in action.choices or ()]
        near = closest(str(value), choices) if choices and value not in choices else None
        if near:
            raise argparse.ArgumentError(
                action, f"invalid choice: {value!r}: did you mean {near!r}?"
            )
        super()._check_value(action, value)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="segtrain",
        description="Train, evaluate, and export semantic segmentation models.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"segtrain {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        _train,
        _eval,
        _predict,
        _export,
        _data,
        _analysis,
        _sweep,
        _profile,
        _launch,
        _prove,
        _machine,
    ):
        add(subparsers)
    return parser


OPSETS = range(10, 24)  # those that torch's exporters write, for networks as ours


def _output(text: str, schemes: Collection[str] = CLOUDS) -> str:
    """The type of an argument that is an output folder, also in a bucket: ``~`` is replaced."""
    try:
        return typed_place(text, schemes)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}") from None


def _size(text: str) -> tuple[int, int]:
    """The type of an argument H,W in pixels."""
    try:
        height, width = (_positive(side) for side in text.strip("[]").split(","))
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"{text!r}: give H,W, such as 512,1024") from None
    return height, width


def _positive(text: str) -> int:
    """The type of an argument that is a number from 1."""
    if text.strip().isdecimal() and (number := int(text)):
        return number
    raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1")


def _opset(text: str) -> int:
    """The type of ``--opset``."""
    if _positive(text) not in OPSETS:
        raise argparse.ArgumentTypeError(f"{text}: from {OPSETS[0]} to {OPSETS[-1]}")
    return int(text)


def _local(text: str) -> Path:
    """The type of an argument that is an output file or folder of this machine."""
    return Path(_output(text, ()))


def _command(
    subparsers: Any, name: str, call: Callable[..., int | None], text: str, **more: Any
) -> _Parser:
    """Add a command that calls ``call``. ``text`` describes the command in the list of all
    commands.
    """
    parser: _Parser = subparsers.add_parser(name, help=text, **more)
    parser.set_defaults(call=call)
    return parser


def _take_settings(parser: argparse.ArgumentParser) -> None:
    """Mention ``section.key=value`` settings in the command's usage and help.

    They are not declared as arguments. The parser returns unknown words, and cli.py reads them as
    settings.
    """
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    parser.usage = f"{usage} [section.key=value ...]".replace("%", "%%")
    parser.epilog = (
        "section.key=value changes a setting; `segtrain train --print-config` lists all settings"
    )
    parser.set_defaults(takes_settings=parser)


def _flag(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    parser.add_argument(name, action="store_true", help=text)


def _json(parser: argparse.ArgumentParser, text: str = "print one JSON object") -> None:
    _flag(parser, "--json", text)


def _which(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--which", choices=("best", "last"), default="best", help="checkpoint (default: best)"
    )


def _train(subparsers: Any) -> None:
    train = _command(subparsers, "train", commands.train, "train a model")
    train.add_argument(
        "config", nargs="?", help=f"{CONFIG}; the defaults train a small model on generated scenes"
    )
    _flag(train, "--print-config", "print the resolved config and exit")
    _take_settings(train)


def _eval(subparsers: Any) -> None:
    score = _command(subparsers, "eval", commands.score, "evaluate a checkpoint of a run")
    score.add_argument("run", help=WEIGHTS)
    _which(score)
    score.add_argument(
        "--images",
        metavar="DIR",
        type=_local,
        help="write all scores, and the worst and best pictures",
    )
    score.add_argument(
        "--confusion",
        metavar="FILE",
        type=_local,
        help="write the confusion matrix to FILE.csv or .json",
    )
    _json(score, "print one JSON object; mIoU is a fraction in it")
    _take_settings(score)


def _predict(subparsers: Any) -> None:
    predict = _command(
        subparsers, "predict", commands.predict, "predict masks and overlays for images"
    )
    predict.add_argument("run", help=f"{WEIGHTS}, or the folder of an export")
    predict.add_argument(
        "images",
        nargs="+",
        help="image files or folders; also settings such as eval.tile=[512,512]",
    )
    predict.add_argument(
        "--out",
        type=_output,
        default="predictions",
        help="output folder (default: predictions)",
    )
    _flag(predict, "--no-overlay", "write masks only")
    _flag(predict, "--probabilities", "also write .npz files: float16 (C, H, W)")
    predict.add_argument(
        "--ids",
        choices=("train", "raw"),
        default="train",
        help="ids in masks: 0, 1, ... in the order of the classes, or raw, those of the data "
        "set's own masks (default: train)",
    )
    predict.add_argument(
        "--polygons",
        choices=("labelme", "coco", "geojson"),
        default="",
        help="also write polygons of the predicted areas",
    )
    _which(predict)
    predict.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="device (default: auto)"
    )
    size = (
        "images of one size to predict at once (default: 1 on a CPU, on a GPU as many as fit, "
        "up to 16)"
    )
    predict.add_argument("--batch-size", type=int, default=0, metavar="N", help=size)
    _take_settings(predict)


def _export(subparsers: Any) -> None:
    export = _command(
        subparsers,
        "export",
        commands.export,
        "export a run as safetensors and as a verified ONNX file",
    )
    export.add_argument("run", help=WEIGHTS)
    export.add_argument(
        "--out",
        type=_output,
        help="output folder, also in a bucket (default: RUN/export, or NAME-export here)",
    )
    export.add_argument(
        "--formats", default="safetensors,onnx", help="comma-separated (default: safetensors,onnx)"
    )
    _which(export)
    onnx = export.add_argument_group("the ONNX file")
    onnx.add_argument("--opset", type=_opset, metavar="N", help="default: the newest, up to 18")
    onnx.add_argument(
        "--size", type=_size, metavar="H,W", help="height and width of images (default: any)"
    )
    onnx.add_argument(
        "--batch",
        type=_positive,
        metavar="N",
        help="number of images (default: any; 1 with --size)",
    )
    onnx.add_argument(
        "--input",
        choices=("nhwc", "nchw-float"),
        default="nhwc",
        help="nhwc: uint8 (N, H, W, 3); nchw-float: float32 (N, 3, H, W) from 0 to 1 (default: "
        "nhwc)",
    )


def _data(subparsers: Any) -> None:
    data = subparsers.add_parser("data", help="check, fetch, pack, or convert a data set")
    data = data.add_subparsers(required=True, metavar="COMMAND")
    check = _command(
        data,
        "check",
        commands.data_check,
        "report every fault of a data set, and its class statistics",
    )
    check.add_argument("dir", help="folder of the data set, or s3://BUCKET/FOLDER")
    check.add_argument("--split", action="append", help="split to check (default: train and val)")
    check.add_argument(
        "--sample", type=int, metavar="N", help="check only N random images of each split"
    )
    check.add_argument("--seed", type=int, default=0, help="choose another sample (default: 0)")
    check.add_argument(
        "--write", metavar="FILE", type=Path, help="write the settings as a new config to train on"
    )
    check.add_argument(
        "--page",
        type=_local,
        metavar="FILE",
        help="also write a page with pictures of samples and their masks, FILE.html",
    )
    _json(check)
    _take_settings(check)
    fetch = _command(
        data, "fetch", commands.data_fetch, "copy a data set in a bucket into the disk cache"
    )
    fetch.add_argument("place", help="s3://BUCKET/FOLDER, or a config file with such a data.root")
    fetch.add_argument(
        "--split", action="append", help="split to fetch (default: all; of a config: train and val)"
    )
    _json(fetch)
    _take_settings(fetch)
    _pack(data)
    convert = _command(
        data, "convert", commands.data_convert, "rewrite a data set with PNG masks of class ids"
    )
    convert.add_argument(
        "dir", metavar="SRC", help="folder of the data set, in any layout, or a config file"
    )
    convert.add_argument(
        "folder", metavar="DST", type=_output, help="output folder, which must be new or empty"
    )
    convert.add_argument(
        "--split", action="append", help="split to convert (default: all splits of SRC)"
    )
    _flag(
        convert,
        "--nearest",
        "unknown values of lossless masks become the nearest known ones, too (counted)",
    )
    convert.add_argument(
        "--merge",
        default="",
        choices=("majority", "union", "intersection", "agreement"),
        help="merge the masks of several annotators by this rule, see data-check.md",
    )
    convert.add_argument(
        "--annotator",
        action="append",
        default=[],
        metavar="SETTING",
        help="masks of another annotator to merge, such as data.masks=masks2; may be repeated",
    )
    convert.add_argument(
        "--side-by-side",
        default="",
        choices=("left", "right"),
        help="only cut pictures into an image and a mask, which is on this side",
    )
    _take_settings(convert)


def _pack(data: Any) -> None:
    pack = _command(
        data, "pack", commands.data_pack, "pack a data set into indexed tar shards, and verify them"
    )
    pack.add_argument(
        "dir", metavar="SRC", help="folder of the data set, in any layout, or s3://BUCKET/FOLDER"
    )
    pack.add_argument(
        "folder",
        metavar="DST",
        type=_output,
        help="output folder for the shards, or s3://BUCKET/FOLDER",
    )
    pack.add_argument("--split", action="append", help="split to pack (default: all splits of SRC)")
    pack.add_argument(
        "--image",
        choices=("keep", "recompress", "png", "raw"),
        default="keep",
        help="keep: copy the files; recompress: JPEG at --quality; "
        "png: PNG in strips, lossless; raw: pixels (default: keep)",
    )
    pack.add_argument(
        "--quality",
        type=int,
        default=95,
        help="JPEG quality for recompress and --cap (default: 95)",
    )
    pack.add_argument(
        "--cap", type=int, default=0, help="longest side of an image in pixels (default: no limit)"
    )
    pack.add_argument(
        "--shard-mb", type=float, default=256, help="size of a shard in MB (default: 256)"
    )
    pack.add_argument(
        "--workers", type=int, default=0, help="number of threads (default: one per core)"
    )
    _flag(pack, "--skip-faults", "leave out faulty files instead of stopping")
    _flag(pack, "--estimate", "write nothing; measure each --image choice on samples")
    _json(pack)
    _take_settings(pack)


def _analysis(subparsers: Any) -> None:
    """Commands that read the output of runs: runs, report, diff, and diagnose."""
    runs = _command(subparsers, "runs", commands.runs, "list runs in a table")
    places = "folder of runs, gs://BUCKET/PREFIX, or vertex:EXPERIMENT (default: runs)"
    runs.add_argument("dir", nargs="?", default="runs", help=places)
    _flag(runs, "--seeds", "one row per config: mean and deviation of its seeds")
    _json(runs, "print one JSON object per row")

    report = _command(
        subparsers, "report", commands.report, "write a run's report as one HTML page"
    )
    report.add_argument(
        "run", help=f"{RUN}; writes RUN/report.html, or NAME-report.html here for a remote run"
    )
    _flag(report, "--open", "open the page in the browser")
    _flag(report, "--follow", "rewrite the page while the run goes on")

    diff = _command(
        subparsers,
        "diff",
        commands.diff,
        "compare runs: config, environment, data, scores, times",
    )
    diff.add_argument("a", metavar="A", help=RUN)
    diff.add_argument("others", metavar="B", nargs="+", help="more runs, up to 25")
    diff.add_argument(
        "--page", "--out", metavar="FILE", type=_local, help="also write a page, FILE.html"
    )

    diagnose = _command(
        subparsers,
        "diagnose",
        commands.diagnose,
        "find why a run is slow, and what a fix would gain",
    )
    diagnose.add_argument(
        "run", help=f"{RUN}, or a copy of a job's output; the run may still be running"
    )
    diagnose.add_argument(
        "--against", metavar="FIXED", help="run with the fix: check the prediction against it"
    )
    types = (
        "type of the run's machines, such as ml.g5.xlarge, for the cost of each fix "
        "(SageMaker jobs know it)"
    )
    diagnose.add_argument("--on", metavar="TYPE", default="", help=types)
    _json(diagnose)
    _plan(subparsers, types)


def _plan(subparsers: Any, types: str) -> None:
    plan = _command(subparsers, "plan", commands.plan, "predict time and cost on other machines")
    plan.add_argument("config", nargs="?", help=CONFIG)
    plan.add_argument(
        "--like",
        default="",
        metavar="RUN",
        help=f"{RUN}: take all figures from it, not from a config",
    )
    plan.add_argument("--on", metavar="TYPE", default="", help=types)
    _flag(plan, "--probe", "measure samples, and a step if there is a GPU (10 s)")
    places = f"{', '.join(TABLES)}, slurm:PARTITION, or types with commas (default: aws)"
    described = "training images of a data set that is not here, with --image-size"
    plan.add_argument("--images", type=int, default=0, metavar="N", help=described)
    plan.add_argument(
        "--image-size", default="", metavar="HxW", help="height and width of its images: 1024x2048"
    )
    plan.add_argument("--where", default="aws", metavar="PLACE", help=places)
    plan.add_argument(
        "--hosts", default="1,2,4,8,16", help="numbers of machines (default: 1,2,4,8,16)"
    )
    plan.add_argument(
        "--deadline", default="", metavar="TIME", help="the cheapest that ends in time: 90m, 2h"
    )
    plan.add_argument(
        "--budget", type=float, metavar="USD", help="the fastest that costs at most this"
    )
    spot = "price of spot machines as a share of that on demand, such as 0.35"
    plan.add_argument("--spot", type=float, metavar="SHARE", help=spot)
    often = "with --spot: how often a host is taken away, such as 0.05/h"
    plan.add_argument("--preemptions", default="", metavar="RATE", help=often)
    plan.add_argument("--page", type=_local, metavar="FILE", help="also write a page, FILE.html")
    plan.add_argument(
        "--save",
        type=_output,
        default="",
        metavar="RUN",
        help="keep the plan in this run folder, for --record",
    )
    plan.add_argument(
        "--record",
        nargs="*",
        metavar="FOLDER",
        help="compare finished runs with their plans (runs/)",
    )
    _flag(plan, "--all", "all types and numbers of machines")
    _json(plan)
    _take_settings(plan)


def _sweep(subparsers: Any) -> None:
    sweep = _command(subparsers, "sweep", commands.sweep, "train many trials of a search space")
    sweep.add_argument(
        "file", metavar="FILE", help="YAML: config, settings, space, trials, workers"
    )


def _profile(subparsers: Any) -> None:
    profile = _command(
        subparsers, "profile", commands.profile, "sample the system or stacks of a run, or trace it"
    )
    profile.add_argument("action", choices=("on", "off", "status", "trace", "stacks"))
    profile.add_argument("run", type=Path, help="run folder")
    profile.add_argument(
        "--ms", type=int, help="milliseconds between samples, 100 to 60000 (default: as before)"
    )
    profile.add_argument("--steps", type=int, default=5, help="trace: number of steps (default: 5)")
    profile.add_argument("--seconds", type=float, default=10, help="stacks: duration (default: 10)")
    profile.add_argument(
        "--hz", type=float, default=100, help="stacks: samples per second (default: 100)"
    )


def _launch(subparsers: Any) -> None:
    """The launcher has its own parsers, so these subcommands pass all arguments on unchanged."""
    launch = subparsers.add_parser(
        "launch", help="train on a cloud: check the job, rehearse it here, submit, follow"
    )
    platforms = launch.add_subparsers(required=True, metavar="PLATFORM", dest="platform")
    for platform, text in PLATFORMS.items():
        _command(platforms, platform, commands.launch, text, add_help=False)


def _prove(subparsers: Any) -> None:
    prove = _command(
        subparsers,
        "prove",
        commands.prove,
        "verify the five guarantees on this machine with your config",
    )
    prove.add_argument("config", nargs="?", help=CONFIG)
    prove.add_argument("--ranks", default="1,2,4", help="world sizes to compare (default: 1,2,4)")
    prove.add_argument(
        "--device", default="cpu", choices=("cpu", "cuda"), help="where to compute (default: cpu)"
    )
    _flag(prove, "--exact", "also compare, to the bit, runs with parallel.exact")
    _take_settings(prove)


def _machine(subparsers: Any) -> None:
    """Commands that measure and check this machine: bench and doctor."""
    bench = subparsers.add_parser("bench", help="measure parts of a run on this machine")
    parts = bench.add_subparsers(required=True, metavar="COMMAND")
    rates = _command(
        parts,
        "data",
        commands.bench_data,
        "measure the input pipeline, and whether GPUs wait for it",
    )
    rates.add_argument("config", nargs="?", help=CONFIG)
    rates.add_argument(
        "--samples",
        type=int,
        default=64,
        help="samples to time, spread over the data (default: 64)",
    )
    rates.add_argument(
        "--seconds", type=float, default=2.0, help="seconds per loader setting (default: 2)"
    )
    rates.add_argument(
        "--device-ms",
        type=float,
        help="milliseconds that a device needs for train.batch_size images",
    )
    rates.add_argument("--rate", type=float, help="images/s that a device can train on")
    _json(rates)
    _take_settings(rates)

    _json(
        _command(
            subparsers,
            "doctor",
            commands.doctor,
            "check this machine and installation for problems",
        )
    )
