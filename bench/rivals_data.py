"""CPU time of a training sample in segtrain's input pipeline and in other libraries', in one interleaved run.

    python bench/rivals_data.py --install all --envs /tmp/rivals_data          # once; see environments.py
    python bench/rivals_data.py --envs /tmp/rivals_data --frames /path/to/camvid

Work of a sample: decode image and mask, scale the image by 0.5 to 2 (log-uniform; --uniform), random crop, flip, color
jitter (p 0.5; brightness, contrast, saturation 0.5, hue 0.05), normalize; batches of 8. Each side (data_rivals/*.py) is
a process of its own, in its own environment, as the users of its library write it. Sides take turns; ratios are formed
within each round, and their medians reported.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import environments  # noqa: E402
import page  # noqa: E402
from data_rivals import pictures  # noqa: E402
from environments import PIPELINES  # noqa: E402
from rivals.race import cause  # noqa: E402

REFERENCE = "decode"


class Side(NamedTuple):
    """A script with its options; ``env``: its environment ('': that of this process), ``same``:
    crops distributed as segtrain's.
    """

    script: str
    options: tuple[str, ...] = ()
    env: str = ""
    note: str = ""
    same: bool = True
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def ours(self) -> bool:
        return self.script == "ours.py"


SIDES = {
    "decode": Side(
        "decode.py", note="image and mask decoded whole, nothing else; threads", same=False
    ),
    "segtrain": Side("ours.py", note="plain files; uint8 to the device"),
    "segtrain-floats": Side(
        "ours.py", ("--floats",), note="plain files; normalized by the workers"
    ),
    "segtrain-two-passes": Side(
        "ours.py", ("--two-passes",), note="plain files; normalized by torch afterwards"
    ),
    "segtrain-packages": Side(
        "ours.py",
        note="plain files; without the native part",
        environment=(("SEGTRAIN_NATIVE", "0"),),
    ),
    "segtrain-keep": Side("ours.py", ("--keep",), note="shards of the files as they are"),
    "segtrain-png": Side("ours.py", ("--png",), note="shards of PNGs in strips"),
    "segtrain-raw": Side("ours.py", ("--raw",), note="shards of pixels"),
    "dali-roi": Side(
        "dali_cpu.py", (), "dali", "CPU; the crop's rectangle alone is decoded; threads"
    ),
    "spdl": Side("spdl_threads.py", (), "spdl", "albumentations; threads"),
    "litdata": Side("lit_streaming.py", (), "litdata", "its chunks; albumentations"),
    "webdataset": Side("webdataset_tar.py", (), "webdataset", "tar shards; albumentations"),
    "dataloader": Side("torch_loader.py", (), "torch", "torch DataLoader; albumentations"),
    "crop-first": Side(
        "torch_loader.py",
        ("--crop-first",),
        "torch",
        "torch DataLoader; RandomResizedCrop: other crops",
        same=False,
    ),
    "torchvision": Side(
        "torchvision_v2.py", (), "torch", "v2 transforms on PIL, as its references"
    ),
}
DEFAULT = ("decode", "segtrain", "segtrain-floats", "dali-roi", "spdl", "litdata", "dataloader")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--envs",
        type=Path,
        default=Path(tempfile.gettempdir()) / "rivals_data",
        help="folder of environments",
    )
    parser.add_argument(
        "--install", default="", help="make environments, then stop: names, or 'all'"
    )
    parser.add_argument(
        "--base", default="", help="with --install: take torch and the like from this interpreter"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir()) / "rivals_data_sets",
        help="where data sets are made",
    )
    parser.add_argument("--frames", default="", help="folder of CamVid; empty: generated streets")
    parser.add_argument("--count", type=int, default=64, help="pictures in a data set")
    parser.add_argument(
        "--kinds", default="cityscapes-jpeg", help=f"of {', '.join(pictures.KINDS)}; or 'all'"
    )
    parser.add_argument(
        "--sides", default=",".join(DEFAULT), help=f"of {', '.join(SIDES)}; or 'all'"
    )
    parser.add_argument("--workers", default="1,2", help="numbers of workers, each a column")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--samples", type=int, default=96, help="samples measured in a start: 32 at least"
    )
    parser.add_argument(
        "--uniform",
        action="store_true",
        help="rivals draw the scale uniformly, as most libraries do by themselves",
    )
    parser.add_argument(
        "--timeout", type=float, default=240.0, help="seconds that one start may take"
    )
    parser.add_argument(
        "--out", type=Path, help="without ending; default: bench/results/DATE-rivals-data"
    )
    return parser.parse_args()


def run(name: str, kind: str, workers: int, args: argparse.Namespace) -> dict[str, Any]:
    """One start of one side: what its script printed, or {'error': why}."""
    side = SIDES[name]
    python = str(environments.python_of(args.envs, side.env)) if side.env else sys.executable
    crop = pictures.KINDS[kind].crop
    line = [
        python,
        str(HERE / "data_rivals" / side.script),
        "--data",
        str(args.data / kind),
        "--kind",
        kind,
        "--workers",
        str(workers),
        "--samples",
        str(args.samples),
        "--crop",
        *map(str, crop),
        *side.options,
        *(["--uniform"] if args.uniform else []),
    ]
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("OMP_", "MKL_", "OPENBLAS_", "SEGTRAIN_"))
    }
    environment |= {"NO_ALBUMENTATIONS_UPDATE": "1", **dict(side.environment)}
    with tempfile.NamedTemporaryFile() as errors:
        process = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=args.timeout)
        except subprocess.TimeoutExpired:
            output = ""
        finally:
            _end(process)
        results = [line for line in output.splitlines() if line.startswith("{")]
        if results:
            return json.loads(results[-1])
        return {"error": f"code {process.returncode}: {cause(Path(errors.name))}"}


def _end(process: subprocess.Popen[str]) -> None:
    """End what a side has left behind: it has a session of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def warm(folder: Path) -> None:
    """Read all files once, so that every side finds them in memory."""
    for form in (folder, *folder.parent.glob(f"{folder.name}+*")):
        for path in form.rglob("*"):
            if path.is_file():
                path.read_bytes()


def ratios(
    results: list[dict[str, Any]], kind: str, workers: int
) -> dict[str, dict[str, list[float]]]:
    """{side: {'decode' or 'best': samples for a CPU second relative to it, one for each round}}.

    'best' is the rival with the same distribution of crops that took the least CPU time in that
    round.
    """
    rounds: dict[int, dict[str, float]] = {}
    for r in results:
        if r["kind"] == kind and r["asked"] == workers and "error" not in r:
            rounds.setdefault(r["round"], {})[r["side"]] = r["cpu_ms"]
    found: dict[str, dict[str, list[float]]] = {}
    for row in rounds.values():
        rivals = [cost for name, cost in row.items() if SIDES[name].same and not SIDES[name].ours]
        for name, cost in row.items():
            entry = found.setdefault(name, {"decode": [], "best": []})
            if REFERENCE in row:
                entry["decode"].append(row[REFERENCE] / cost)
            if rivals:
                entry["best"].append(min(rivals) / cost)
    return found


def table(
    results: list[dict[str, Any]], kind: str, sides: list[str], counts: list[int]
) -> list[str]:
    """Markdown: a row for each side, columns for each number of workers."""
    by_count = {w: ratios(results, kind, w) for w in counts}
    heads = [
        f"{what}, {w} worker{'s' if w > 1 else ''}"
        for what in ("CPU ms a sample", "/ decode", "/ best rival", "samples/s")
        for w in counts
    ]
    lines = [
        f"| side | {' | '.join(heads)} | memory, MB | gives | others, cores |",
        "|---" * (len(heads) + 4) + "|",
    ]
    for side in sides:
        rows = [r for r in results if r["kind"] == kind and r["side"] == side and "error" not in r]
        if not rows:
            continue

        by_workers = [[r for r in rows if r["asked"] == w] for w in counts]
        cells = [page.middle((r["cpu_ms"] for r in same), ".1f") for same in by_workers]
        cells += [
            page.middle(by_count[w].get(side, {}).get(to, ()), ".2f")
            for to in ("decode", "best")
            for w in counts
        ]
        cells += [page.middle((r["rate"] for r in same), ".1f") for same in by_workers]
        most, others = (max(r[key] for r in rows) for key in ("pss_mb", "others"))
        restless = "" if all(r["quiet"] for r in rows) else " (never quiet: CPU time is less sure)"
        lines.append(
            f"| {side}{restless} | {' | '.join(cells)} | {most:.0f} | {rows[0]['gives']} | {others:.2f} |"
        )
    failed = {
        f"- {r['side']}, {r['asked']} workers: {r['error']}"
        for r in results
        if r["kind"] == kind and "error" in r
    }
    return [*lines, "", *sorted(failed), *([""] if failed else [])]


def tables(
    data: dict[str, str], results: list[dict[str, Any]], sides: list[str], counts: list[int]
) -> list[str]:
    lines = [
        *(f"- {side}: {SIDES[side].note}" for side in sides),
        "",
        "CPU time is that of the whole process tree. `/ decode` and `/ best rival`: samples for each CPU second, relative to decoding alone",
        "and to the best rival with the same distribution of crops, medians of the ratios within each round. Memory: the most of any start.",
        "",
    ]
    for kind in dict.fromkeys(r["kind"] for r in results):
        lines += [f"## {kind}", "", data[kind], "", *table(results, kind, sides, counts)]
    return lines


def chosen(text: str, known: dict[str, Any], what: str) -> list[str]:
    """Names of a comma-separated list, or all. Raises SystemExit for an unknown one."""
    names = list(known) if text == "all" else text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"{what} {', '.join(unknown)}: choose of {', '.join(known)}")
    return names


def main() -> int:
    args = arguments()
    # so that the side in progress is ended too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    if args.install:
        for name in chosen(args.install, PIPELINES, "--install"):
            environments.install(name, PIPELINES[name], args.envs, args.base)
        return 0
    sides, kinds = (
        chosen(args.sides, SIDES, "--sides"),
        chosen(args.kinds, pictures.KINDS, "--kinds"),
    )
    counts = [int(count) for count in args.workers.split(",")]
    needed = dict.fromkeys(SIDES[side].env for side in sides if SIDES[side].env)
    missing = [name for name in needed if not environments.python_of(args.envs, name).exists()]
    if missing:
        sys.exit(
            f"no environment for {', '.join(missing)}: run with --install {','.join(missing)} --envs {args.envs}"
        )
    law = "uniform for the rivals" if args.uniform else "log-uniform"
    data = {kind: pictures.make(kind, args.data / kind, args.frames, args.count) for kind in kinds}
    packages = environments.versions(
        sys.executable, ("torch", "opencv-python-headless", "simplejpeg")
    )
    versions = {"segtrain's environment": packages}
    for name in needed:
        shown = PIPELINES[name].shown
        versions[name] = environments.versions(environments.python_of(args.envs, name), shown)
    facts = page.facts(
        work=f"decode image and mask, scale 0.5 to 2 ({law}), crop, flip, jitter (p 0.5; 0.5, 0.5, 0.5, hue 0.05), normalize or uint8 "
        "(see 'gives'), batches of 8",
        setting=f"{args.samples} samples in the steady state, {args.rounds} rounds, files in the page cache",
        versions="; ".join(f"{name}: {text}" for name, text in versions.items()),
    )
    results: list[dict[str, Any]] = []
    for kind in kinds:
        warm(args.data / kind)
        for number in range(1, args.rounds + 1):
            for workers in counts:
                for side in sides:
                    place = {"kind": kind, "side": side, "round": number, "asked": workers}
                    found = {**place, **run(side, kind, workers, args)}
                    results.append(found)
                    said = (
                        found.get("error")
                        or f"{found['cpu_ms']:7.1f} CPU ms  {found['rate']:7.1f}/s  {found['pss_mb']:6.0f} MB"
                    )
                    print(
                        f"{kind:16} round {number}  {workers} workers  {side:18} {said}", flush=True
                    )
    title = "Input pipelines, CPU time for a sample"
    print(
        page.save(
            "rivals-data", args.out, title, facts, tables(data, results, sides, counts), results
        )
    )
    return 1 if any("error" in r for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
