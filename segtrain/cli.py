"""The verbs of the command line. No logic: each verb imports its room when it is called, so that --help is instant."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from segtrain import __version__
from segtrain.errors import EXIT_ERROR, SegtrainError

EXAMPLES = """examples:
  segtrain train                                         generated street scenes, no data needed
  segtrain train configs/camvid.yaml data.root=CamVid    section.key=value overrides the file
  torchrun --nproc-per-node 8 -m segtrain train configs/camvid.yaml data.root=CamVid
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="segtrain",
        description="Train, score and export semantic segmentation models.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"segtrain {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    train = verbs.add_parser("train", help="train a model as a config says")
    train.add_argument("config", nargs="?", help="YAML file; without it the defaults: pico on generated scenes")
    train.add_argument("--print-config", action="store_true", help="print the resolved config and stop")

    score = verbs.add_parser("eval", help="score a run's best checkpoint")
    score.add_argument("run", type=Path, help="run folder")
    score.add_argument("--which", choices=("best", "last"), default="best", help="checkpoint (default: best)")
    score.add_argument("--json", action="store_true", help="print one JSON object, miou as a fraction")

    predict = verbs.add_parser("predict", help="write masks and overlays of images")
    predict.add_argument("run", type=Path, help="run folder, or the folder of an export")
    predict.add_argument("images", nargs="+", type=Path, help="image files or folders")
    predict.add_argument(
        "--out", type=Path, default=Path("predictions"), help="folder to write to (default: predictions)"
    )
    predict.add_argument("--which", choices=("best", "last"), default="best")
    predict.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")

    export = verbs.add_parser("export", help="write safetensors and a checked ONNX file of a run")
    export.add_argument("run", type=Path, help="run folder")
    export.add_argument("--out", type=Path, default=None, help="folder to write to (default: RUN/export)")
    export.add_argument("--formats", default="safetensors,onnx", help="comma-separated (default: safetensors,onnx)")
    export.add_argument("--which", choices=("best", "last"), default="best")

    data = verbs.add_parser("data", help="look at a data set")
    data_verbs = data.add_subparsers(dest="data_verb", required=True, metavar="VERB")
    check = data_verbs.add_parser("check", help="find every fault of a data set at once; class statistics and weights")
    check.add_argument("dir", help="folder of the data set")
    check.add_argument("--split", action="append", help="split to look at (default: train and val)")
    check.add_argument("--json", action="store_true", help="print one JSON object")

    pack = data_verbs.add_parser("pack", help="put a data set into tar shards with an index, verified")
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

    runs = verbs.add_parser("runs", help="a table of runs")
    runs.add_argument("dir", nargs="?", type=Path, default=Path("runs"), help="folder with runs (default: runs)")
    runs.add_argument("--json", action="store_true", help="print one JSON object a run")

    report = verbs.add_parser("report", help="write a run's page: verdict, time, learning, classes, pictures, facts")
    report.add_argument("run", type=Path, help="run folder; the page is RUN/report.html")
    report.add_argument("--open", action="store_true", help="open it in the browser")

    diff = verbs.add_parser("diff", help="what differs between two runs: config, environment, data, scores, times")
    diff.add_argument("a", metavar="A", type=Path, help="run folder")
    diff.add_argument("b", metavar="B", type=Path, help="run folder")
    diff.add_argument("--out", type=Path, help="write a page as well, FILE.html")

    why = verbs.add_parser("diagnose", help="why a run is slow, what would cure it, and what that would bring")
    why.add_argument("run", type=Path, help="run folder, or a copy of a SageMaker job's output; running or ended")
    why.add_argument("--json", action="store_true", help="print one JSON object")

    profile = verbs.add_parser("profile", help="turn a running job's system profile on or off, or trace some steps")
    profile.add_argument("profile_verb", choices=("on", "off", "status", "trace"))
    profile.add_argument("run", type=Path, help="run folder")
    profile.add_argument("--ms", type=int, help="milliseconds between samples, 100 to 60000 (default: as before)")
    profile.add_argument("--steps", type=int, default=5, help="of a trace (default: 5)")

    prove = verbs.add_parser("prove", help="run the five promises on this machine with your config")
    prove.add_argument("config", nargs="?", help="YAML file; without it the defaults")
    prove.add_argument("--ranks", default="1,2,4", help="world sizes to compare (default: 1,2,4)")

    bench = verbs.add_parser("bench", help="measure a part of a run on this machine")
    bench_verbs = bench.add_subparsers(dest="bench_verb", required=True, metavar="VERB")
    rates = bench_verbs.add_parser("data", help="what a sample costs, what bounds it, whether the devices are fed")
    rates.add_argument("config", nargs="?", help="YAML file; without it the defaults")
    rates.add_argument("--samples", type=int, default=64, help="samples to time, spread over the data (default: 64)")
    rates.add_argument("--seconds", type=float, default=2.0, help="for each setting of the loader (default: 2)")
    rates.add_argument("--device-ms", type=float, help="milliseconds of a device for train.batch_size images")
    rates.add_argument("--rate", type=float, help="images a second that a device takes")
    rates.add_argument("--json", action="store_true", help="print one JSON object")

    doctor = verbs.add_parser("doctor", help="what this machine and installation give, and what is wrong with them")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    # Idle OpenMP threads spin by default, and steal the core from the thread they wait for when the machine is shared.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    parser = build_parser()
    takes_settings = bool(arguments) and arguments[0] in ("train", "eval", "prove", "data", "bench")
    known, overrides = parser.parse_known_args(_joined(arguments) if takes_settings else arguments)
    if takes_settings and "=" in (getattr(known, "config", None) or ""):  # `segtrain train key=value`, no file
        overrides, known.config = [known.config, *overrides], None
    if overrides and not takes_settings:
        parser.error(f"unrecognized arguments: {' '.join(overrides)}")
    try:
        return {
            "train": _train,
            "eval": _eval,
            "predict": _predict,
            "export": _export,
            "data": _data,
            "runs": _runs,
            "report": _report,
            "diff": _diff,
            "diagnose": _diagnose,
            "profile": _profile,
            "prove": _prove,
            "bench": _bench_data,
            "doctor": _doctor,
        }[known.verb](known, overrides, arguments)
    except SegtrainError as error:
        if _speaks(error):
            print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `segtrain runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _joined(arguments: list[str]) -> list[str]:
    """``--section.key value`` as ``--section.key=value``: argparse would take the value for the name of a config file."""
    joined, rest = [], list(arguments)
    while rest:
        word = rest.pop(0)
        is_setting = word.startswith("--") and "=" not in word and ("." in word or word in ("--out", "--name"))
        joined.append(f"{word}={rest.pop(0)}" if is_setting and rest else word)
    return joined


def _speaks(error: SegtrainError) -> bool:
    """Whether this rank is the one to print the error: once a job, or once a host where the ranks have not met yet."""
    if error.silent is not None:
        return not error.silent
    from segtrain.parallel.cluster import discover

    try:
        return discover().local_rank == 0
    except SegtrainError:
        return True


def _train(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.config import load_config
    from segtrain.parallel import spawn
    from segtrain.parallel.cluster import discover

    config = load_config(known.config, overrides)
    if known.print_config:
        print(config.to_yaml(), end="")
        return 0
    cluster = discover()
    if cluster.source == "none":
        ranks = spawn.cpu_ranks(config)
        if ranks > 1:
            with spawn.children(ranks, arguments) as place:
                return _train_loop(config, place)
    return _train_loop(config, cluster)


def _train_loop(config, cluster) -> int:  # type: ignore[no-untyped-def]
    from segtrain.train.loop import train

    return train(config, cluster)


def _eval(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.parallel.cluster import discover
    from segtrain.train.score import score

    result = score(known.run, overrides, known.which, discover(), quiet=known.json)
    if result is not None and known.json:
        print(json.dumps(result))
    return 0


def _predict(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.infer.predict import predict

    done = predict(known.run, known.images, known.out, which=known.which, device=known.device, say=print)
    print(f"{len(done)} masks in {known.out}/masks, overlays in {known.out}/overlays")
    return 0


def _export(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.infer.export import export

    done = export(known.run, known.out or known.run / "export", tuple(known.formats.split(",")), which=known.which)
    print("\n".join(map(str, done.files)))
    if done.onnx:
        print(f"onnxruntime against torch: {json.dumps(done.onnx)}")
    return 0


def _data(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    return (_data_pack if known.data_verb == "pack" else _data_check)(known, overrides, arguments)


def _data_pack(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.data.shards.pack_folder import pack_folder

    done = pack_folder(
        known.dir,
        known.folder,
        known.split,
        overrides,
        image=known.image,
        quality=known.quality,
        cap=known.cap,
        shard_mb=known.shard_mb,
        workers=known.workers,
        skip_faults=known.skip_faults,
        only_estimate=known.estimate,
        say=(lambda text: print(text, file=sys.stderr)) if known.json else print,
    )
    if known.json:
        print(json.dumps(done))
    return 0


def _data_check(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.data.check import check_folder

    reports = check_folder(known.dir, known.split, overrides)
    if known.json:
        print(json.dumps({report.split: report.to_dict() for report in reports}))
    else:
        print("\n\n".join(report.table() for report in reports))
    return EXIT_ERROR if any(report.faults for report in reports) else 0


def _runs(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.observe.runs import list_runs, table

    rows = list_runs(known.dir)
    print("\n".join(json.dumps(row) for row in rows) if known.json else table(rows))
    return 0


def _report(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.report.page import report

    print(report(known.run, known.open))
    return 0


def _diff(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.report.diff import diff

    print(diff(known.a, known.b, known.out))
    return 0


def _diagnose(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.diagnose import diagnose
    from segtrain.diagnose.words import as_json, page

    found = diagnose(known.run)
    print(as_json(found) if known.json else page(known.run, found))
    return 0


def _profile(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.config import make_config
    from segtrain.observe.profile import profile

    if known.ms is not None:
        make_config({"log": {"profile_ms": known.ms}}, source="--ms")  # the same range, the same words
    if known.profile_verb == "trace":
        from segtrain.observe.trace import trace

        text, obeyed = trace(known.run, known.steps)
    else:
        text, obeyed = profile(known.profile_verb, known.run, known.ms or None)
    print(text)
    return 0 if obeyed else EXIT_ERROR


def _prove(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.prove import parse_ranks, prove

    return prove(known.config, overrides, parse_ranks(known.ranks))


def _bench_data(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.bench.data import bench_data

    bench_data(
        known.config,
        overrides,
        samples=known.samples,
        seconds=known.seconds,
        device_ms=known.device_ms,
        rate=known.rate,
        as_json=known.json,
    )
    return 0


def _doctor(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.doctor import doctor

    return doctor(as_json=known.json)
