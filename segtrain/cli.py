"""How is segtrain called? The verbs with their arguments; what each one does is in verbs.py. --help is instant: nothing heavy is imported."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from segtrain import __version__, verbs
from segtrain.errors import EXIT_ERROR, SegtrainError
from segtrain.terminal import printable, say_warnings

EXAMPLES = """examples:
  segtrain train                                                 generated street scenes, no data needed
  segtrain train configs/camvid_cpu.yaml data.root=CamVid        section.key=value overrides the file
  torchrun --nproc-per-node 8 -m segtrain train configs/camvid_cpu.yaml data.root=CamVid train.batch_size=16
"""
RUN = "run folder, s3://BUCKET/PREFIX or sagemaker:JOB"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="segtrain",
        description="Train, score and export semantic segmentation models.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"segtrain {__version__}")
    of = parser.add_subparsers(required=True, metavar="VERB")

    train = of.add_parser("train", help="train a model as a config says")
    train.set_defaults(call=verbs.train)
    train.add_argument("config", nargs="?", help="YAML file; without it the defaults: pico on generated scenes")
    train.add_argument("--print-config", action="store_true", help="print the resolved config and stop")

    score = of.add_parser("eval", help="score a run's best checkpoint")
    score.set_defaults(call=verbs.score)
    score.add_argument("run", type=Path, help="run folder")
    score.add_argument("--which", choices=("best", "last"), default="best", help="checkpoint (default: best)")
    score.add_argument(
        "--images", metavar="DIR", type=Path, help="write each image's score, and pictures of the worst and the best"
    )
    score.add_argument(
        "--confusion", metavar="FILE", type=Path, help="write the confusion matrix: FILE.csv or FILE.json"
    )
    score.add_argument("--json", action="store_true", help="print one JSON object, miou as a fraction")

    predict = of.add_parser("predict", help="write masks and overlays of images")
    predict.set_defaults(call=verbs.predict)
    predict.add_argument("run", type=Path, help="run folder, or the folder of an export")
    predict.add_argument("images", nargs="+", help="image files or folders; settings as eval.tile=[512,512]")
    predict.add_argument(
        "--out", type=Path, default=Path("predictions"), help="folder to write to (default: predictions)"
    )
    predict.add_argument("--no-overlay", action="store_true", help="write the masks alone")
    predict.add_argument("--probabilities", action="store_true", help="write float16 (C, H, W) as .npz too")
    predict.add_argument("--which", choices=("best", "last"), default="best")
    predict.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")

    export = of.add_parser("export", help="write safetensors and a checked ONNX file of a run")
    export.set_defaults(call=verbs.export)
    export.add_argument("run", type=Path, help="run folder")
    export.add_argument("--out", type=Path, default=None, help="folder to write to (default: RUN/export)")
    export.add_argument("--formats", default="safetensors,onnx", help="comma-separated (default: safetensors,onnx)")
    export.add_argument("--which", choices=("best", "last"), default="best")

    data = of.add_parser("data", help="look at a data set")
    data_verbs = data.add_subparsers(required=True, metavar="VERB")
    check = data_verbs.add_parser("check", help="find every fault of a data set at once; class statistics and weights")
    check.set_defaults(call=verbs.data_check)
    check.add_argument("dir", help="folder of the data set")
    check.add_argument("--split", action="append", help="split to look at (default: train and val)")
    check.add_argument("--json", action="store_true", help="print one JSON object")

    pack = data_verbs.add_parser("pack", help="put a data set into tar shards with an index, verified")
    pack.set_defaults(call=verbs.data_pack)
    pack.add_argument("dir", metavar="SRC", help="folder of the data set, of any layout")
    pack.add_argument("folder", metavar="DST", help="folder for the shards")
    pack.add_argument("--split", action="append", help="split to pack (default: all that SRC holds)")
    pack.add_argument(
        "--image",
        choices=("keep", "restart", "recompress", "png", "raw"),
        default="keep",
        help="keep: the files' bytes; restart: JPEG with restart markers, lossless; recompress: JPEG of --quality; "
        "png: in strips, lossless; raw: pixels (default: keep)",
    )
    pack.add_argument("--quality", type=int, default=95, help="of JPEGs that are written anew (default: 95)")
    pack.add_argument("--cap", type=int, default=0, help="longest side in pixels (default: none)")
    pack.add_argument("--shard-mb", type=float, default=256, help="size of a shard (default: 256)")
    pack.add_argument("--workers", type=int, default=0, help="threads (default: one a core)")
    pack.add_argument("--skip-faults", action="store_true", help="leave faulty files out instead of stopping")
    pack.add_argument("--estimate", action="store_true", help="write nothing: measure each --image on samples")
    pack.add_argument("--json", action="store_true", help="print one JSON object")

    convert = data_verbs.add_parser(
        "convert", help="write a data set anew with PNG masks of class ids, of JPEG masks above all"
    )
    convert.set_defaults(call=verbs.data_convert)
    convert.add_argument("dir", metavar="SRC", help="folder of the data set, of any layout of files")
    convert.add_argument("folder", metavar="DST", help="folder to write to; it must be new or empty")
    convert.add_argument("--split", action="append", help="split to convert (default: all that SRC holds)")

    runs = of.add_parser("runs", help="a table of runs")
    runs.set_defaults(call=verbs.runs)
    runs.add_argument("dir", nargs="?", default="runs", help="folder with runs, or s3://BUCKET/PREFIX (default: runs)")
    runs.add_argument("--json", action="store_true", help="print one JSON object a run")

    report = of.add_parser("report", help="write a run's page: verdict, time, learning, classes, pictures, facts")
    report.set_defaults(call=verbs.report)
    report.add_argument("run", help=f"{RUN}; the page is RUN/report.html, of a run elsewhere NAME-report.html here")
    report.add_argument("--open", action="store_true", help="open it in the browser")

    diff = of.add_parser("diff", help="what differs between two runs: config, environment, data, scores, times")
    diff.set_defaults(call=verbs.diff)
    diff.add_argument("a", metavar="A", help=RUN)
    diff.add_argument("b", metavar="B", help=RUN)
    diff.add_argument("--out", type=Path, help="write a page as well, FILE.html")

    why = of.add_parser("diagnose", help="why a run is slow, what would cure it, and what that would bring")
    why.set_defaults(call=verbs.diagnose)
    why.add_argument("run", help=f"{RUN}; or a copy of a job's output; running or ended")
    why.add_argument("--against", metavar="CURED", help="the run with the cure: was the prediction right?")
    why.add_argument("--json", action="store_true", help="print one JSON object")

    profile = of.add_parser(
        "profile", help="of a running job: its system profile on or off, a trace of some steps, Python's stacks"
    )
    profile.set_defaults(call=verbs.profile)
    profile.add_argument("profile_verb", choices=("on", "off", "status", "trace", "stacks"))
    profile.add_argument("run", type=Path, help="run folder")
    profile.add_argument("--ms", type=int, help="milliseconds between samples, 100 to 60000 (default: as before)")
    profile.add_argument("--steps", type=int, default=5, help="of a trace (default: 5)")
    profile.add_argument("--seconds", type=float, default=10, help="of stacks (default: 10)")
    profile.add_argument("--hz", type=float, default=100, help="samples of stacks a second (default: 100)")

    launch = of.add_parser(
        "launch", help="start training elsewhere: check the job, rehearse it here, send it, follow it"
    )
    platforms = launch.add_subparsers(required=True, metavar="PLATFORM", dest="platform")
    on_sagemaker = platforms.add_parser("sagemaker", add_help=False, help="a training job on Amazon SageMaker")
    on_sagemaker.set_defaults(call=verbs.launch)
    on_fsx = platforms.add_parser("fsx", add_help=False, help="an FSx for Lustre file system that shows a prefix of S3")
    on_fsx.set_defaults(call=verbs.launch)

    prove = of.add_parser("prove", help="run the five promises on this machine with your config")
    prove.set_defaults(call=verbs.prove)
    prove.add_argument("config", nargs="?", help="YAML file; without it the defaults")
    prove.add_argument("--ranks", default="1,2,4", help="world sizes to compare (default: 1,2,4)")

    bench = of.add_parser("bench", help="measure a part of a run on this machine")
    bench_verbs = bench.add_subparsers(required=True, metavar="VERB")
    rates = bench_verbs.add_parser("data", help="what a sample costs, what bounds it, whether the devices are fed")
    rates.set_defaults(call=verbs.bench_data)
    rates.add_argument("config", nargs="?", help="YAML file; without it the defaults")
    rates.add_argument("--samples", type=int, default=64, help="samples to time, spread over the data (default: 64)")
    rates.add_argument("--seconds", type=float, default=2.0, help="for each setting of the loader (default: 2)")
    rates.add_argument("--device-ms", type=float, help="milliseconds of a device for train.batch_size images")
    rates.add_argument("--rate", type=float, help="images a second that a device takes")
    rates.add_argument("--json", action="store_true", help="print one JSON object")

    doctor = of.add_parser("doctor", help="what this machine and installation give, and what is wrong with them")
    doctor.set_defaults(call=verbs.doctor)
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    for verb in (train, score, predict, check, pack, convert, prove, rates):
        _take_settings(verb)
    return parser


def _take_settings(verb: argparse.ArgumentParser) -> None:
    """Settings are read behind argparse's back (``parse_known_args``): the usage and the help name them all the same."""
    verb.usage = f"{verb.format_usage().removeprefix('usage: ').rstrip()} [section.key=value ...]".replace("%", "%%")
    verb.epilog = "section.key=value changes a setting; `segtrain train --print-config` shows all of them"
    verb.set_defaults(verb=verb)


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    for name in ("stdout", "stderr"):  # closed by the shell (`>&-`): what is printed goes nowhere
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    say_warnings()
    # Idle OpenMP threads spin by default, and steal the core from the thread they wait for when the machine is shared.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")  # of each GeoTIFF it would print that it does not know a tag
    parser = build_parser()
    takes_settings = bool(arguments) and arguments[0] in ("train", "eval", "predict", "prove", "data", "bench")
    known, overrides = parser.parse_known_args(_joined(arguments) if takes_settings else arguments)
    if takes_settings and "=" in (getattr(known, "config", None) or ""):  # `segtrain train key=value`, no file
        overrides, known.config = [known.config, *overrides], None
    if takes_settings:
        _refuse_flags(known.verb, overrides)
    if overrides and not takes_settings and arguments[0] != "launch":  # the launcher has a parser of its own
        parser.error(f"unrecognized arguments: {' '.join(overrides)}")
    try:
        code = int(known.call(known, overrides, arguments))
        sys.stdout.flush()  # a full disk behind it shows here, and not when Python ends
        return code
    except SegtrainError as error:
        if _speaks(error):
            print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `segtrain runs | head`
        _drop_stdout()
        return 0
    except OSError as error:
        if not _stdout_fails():
            raise
        _drop_stdout()
        print(
            f"error: cannot write to standard output: {error.strerror}: free space, or send it elsewhere",
            file=sys.stderr,
        )
        return EXIT_ERROR
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't start new thread" not in str(error):
            raise
        print(
            f"error: this process may have no more memory or threads ({error or 'out of memory'}): raise the limits "
            "(ulimit -v, ulimit -u, the container's memory), or lower data.workers, train.batch_size or data.crop",
            file=sys.stderr,
        )
        return EXIT_ERROR


def _stdout_fails() -> bool:
    """Whether standard output takes nothing more. The error of another file is not its own."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _drop_stdout() -> None:
    """What is still to be printed goes nowhere: Python would fail once more on it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _joined(arguments: list[str]) -> list[str]:
    """``--section.key value`` as ``--section.key=value``: argparse would take the value for the name of a config file."""
    joined, rest = [], list(arguments)
    while rest:
        word = rest.pop(0)
        is_setting = word.startswith("--") and "=" not in word and ("." in word or word in ("--out", "--name"))
        joined.append(f"{word}={rest.pop(0)}" if is_setting and rest else word)
    return joined


def _refuse_flags(verb: argparse.ArgumentParser, overrides: list[str]) -> None:
    """``--wich last`` is a flag with a slip, no setting: those have a dot in their name, but for a few of one word."""
    flags = [word for word in overrides if word.startswith("-") and "." not in word.partition("=")[0]]
    if not flags:
        return
    from segtrain.config import Config

    wrong = [word for word in flags if word.lstrip("-").partition("=")[0] not in Config.model_fields]
    if wrong:
        verb.error(f"unrecognized arguments: {' '.join(wrong)}")


def _speaks(error: SegtrainError) -> bool:
    """Whether this rank is the one to print the error: once a job, or once a host where the ranks have not met yet."""
    if error.silent is not None:
        return not error.silent
    from segtrain.parallel.cluster import discover

    try:
        return discover().local_rank == 0
    except SegtrainError:
        return True
