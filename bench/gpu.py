"""Correctness, then speed, of segtrain on this machine's GPU: `make gpu`, or python bench/gpu.py.

    python bench/gpu.py                                    # the most important stages, in ten minutes
    python bench/gpu.py --resume                           # go on with what has not been measured
    python bench/gpu.py --resume --minutes 60              # all stages
    python bench/gpu.py --stages speed,rivals              # some of them, after the stage check
    python bench/gpu.py --device cpu --tiny                # a rehearsal without a GPU, about a minute

Each stage runs in its own process with a time limit, and each row is written at once to
bench/results/DATE-gpu-NAME.md and .json. Stages that ran earlier on the same commit stay in these files. Stages of
speed do not start if a stage of correctness failed (--keep-going starts them). It needs no network; the first stage
checks what it needs. Exit code: 0 all rows are good, 1 some are not, 2 this machine cannot run it. docs/gpu-bench.md
describes the stages.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT)]

from gpu_stages.report import Report  # noqa: E402
from gpu_stages.rig import GOOD, LATE, Rig, Stage, needs  # noqa: E402

# The most important first: a machine may be there for ten minutes only.
STAGES = (
    Stage("check", "packages, driver, and GPU", 90, correctness=True),
    Stage("first", "first step; what failed on a GPU before, in new processes", 90, False),
    Stage(
        "rivals",
        "training loops of other libraries on the same network and images",
        270,
        correctness=False,
    ),
    Stage("small", "training steps that the host limits", 50, correctness=False),
    Stage("feed", "the whole loop on JPEG files", 80, correctness=False),
    Stage("prove", "segtrain prove --device cuda", 80, correctness=True),
    Stage("parity", "gradients on the GPU against float64 on the CPU", 240, correctness=True),
    Stage("resume", "deterministic to the bit, and after a resume", 300, correctness=True),
    Stage("syncs", "places where a step waits for the GPU", 90, correctness=True),
    Stage("ranks", "strategies and ranks against one process", 240, correctness=True),
    Stage("tests", "tests of the suite that need a GPU", 180, correctness=True),
    Stage(
        "speed", "training steps on random images, each choice on and off", 600, correctness=False
    ),
    Stage("parts", "parts of a step, each choice on and off", 180, correctness=False),
)
LEAST_S = 10.0  # a stage that has less time does not start


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="tiny networks and images: what it prints means nothing"
    )
    parser.add_argument(
        "--stages",
        default=",".join(stage.name for stage in STAGES),
        help="which, separated by commas",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help="end after this time (10); what does not fit is left out",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="measure only what has no row yet in the results of this commit, GPU, and day",
    )
    parser.add_argument(
        "--limit", type=float, default=1.0, help="factor of the stages' time limits"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="measure speed even if a result is wrong"
    )
    parser.add_argument(
        "--out", type=Path, default=None, help="path of the results without its ending"
    )
    args = parser.parse_args(argv)
    names = [stage.name for stage in STAGES]
    unknown = sorted({*args.stages.split(",")} - {*names})
    if unknown:
        parser.error(f"unknown stage {', '.join(unknown)}: one of {', '.join(names)}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if lacking := needs():
        print(lacking, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="segtrain-gpu-") as folder:
        return _run(args, Path(folder))


def _run(args: argparse.Namespace, folder: Path) -> int:
    end, done = time.monotonic() + 60 * args.minutes, dict[str, list[dict[str, Any]]]()
    if "feed" in args.stages.split(","):  # on one core, beside the first stages
        rig = Rig(args.device, args.tiny, folder, end)
        multiprocessing.get_context("fork").Process(target=rig.pictures, daemon=True).start()
    report: Report | None = None
    for stage in STAGES:
        if stage.name not in ("check", *args.stages.split(",")):
            continue
        judged = [one.name for one in STAGES if one.correctness and one.name in done]
        wrong = [name for name in judged if any(row["ok"] is False for row in done[name])]
        limit_s = args.limit * stage.limit_s
        if report is not None:  # the stage check always runs
            limit_s = min(limit_s, end - time.monotonic() - 2)
        why = (
            f"{', '.join(wrong)} failed"
            if wrong and not stage.correctness and not args.keep_going
            else ""
        )
        earlier = report.rows(stage.name) if report is not None and args.resume else []
        if complete(earlier):
            print(f"\n{stage.name}: measured before")
            done[stage.name] = earlier
            continue
        earlier = [row for row in earlier if row["ok"] is not False and not unfinished(row)]
        if why or limit_s < LEAST_S:
            print(f"\n{stage.name}: left out: {why or LATE}")
            done[stage.name] = [{"what": "left out", "result": why or LATE, "ok": None}]
        else:
            print(f"\n{stage.name}: {stage.title}", flush=True)
            if stage.name != "check":
                _preload()
            rig = Rig(args.device, args.tiny, folder, time.monotonic() + 0.9 * limit_s)
            rig.earlier = {row["what"]: row["result"] for row in earlier}
            note = _nothing if report is None else partial(report.note, stage.name, earlier)
            done[stage.name] = earlier + _stage(stage, rig, limit_s, note)
        if report is None:
            if any(row["ok"] is False for row in done["check"]):
                return 2  # the rows above say why; a file would have nothing else to tell
            report = Report(args, ROOT, STAGES, done["check"])
        report.note(stage.name, [], done[stage.name])
    assert report is not None
    print(f"\nwritten: {report.path}.md and .json (docs/gpu-bench.md says how to send them)")
    if not all(map(complete, done.values())):
        print("--resume goes on with what is missing")
    return 1 if any(row["ok"] is False for rows in done.values() for row in rows) else 0


def unfinished(row: dict[str, Any]) -> bool:
    """Whether a row says only how its stage ended, or that something was left out."""
    ended = row["what"] in ("time limit", "error", "end of the output", "seconds")
    return ended or "left out" in (row["what"], row["result"][:8])


def complete(rows: list[dict[str, Any]]) -> bool:
    """Whether a stage came to its end, and had time for everything."""
    whats = {row["what"] for row in rows}
    late = any(LATE in row["result"] or row["ok"] is False for row in rows)
    return "seconds" in whats and not late


def _nothing(rows: list[dict[str, Any]]) -> None: ...


def _preload() -> None:
    """Import what the stages need once, so that each of them starts at once."""
    import segtrain.api
    import segtrain.models.pico
    import segtrain.training.rank  # noqa: F401


def _stage(
    stage: Stage, rig: Rig, limit_s: float, note: Callable[[list[dict[str, Any]]], None] = _nothing
) -> list[dict[str, Any]]:
    """The rows of a stage, which runs in a process of its own and is killed, with its children, at
    its limit.

    ``note`` gets the rows so far whenever there are new ones.
    """
    file, log = rig.folder / f"{stage.name}.jsonl", rig.folder / f"{stage.name}.log"
    file.touch()
    begin = time.monotonic()
    # A fork, so that each stage has the imports. This process must never touch CUDA, which does not
    # survive a fork.
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(stage.name, rig, file, log)
    )
    process.start()
    rows: list[dict[str, Any]] = []
    while process.is_alive() and time.monotonic() - begin < limit_s:
        process.join(0.2)
        if new := _show(file, rows):
            note(rows := [*rows, *new])
    late = process.is_alive()
    if late:
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    rows += _show(file, rows)
    last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    if late:
        rows.append(
            {
                "what": "time limit",
                "result": f"killed after {limit_s:.0f} s",
                "ok": False,
                "log": last,
            }
        )
    elif process.exitcode:
        rows.append(
            {
                "what": "error",
                "result": _last_error(last, process.exitcode),
                "ok": False,
                "log": last,
            }
        )
    elif any(row["ok"] is False for row in rows):
        rows.append({"what": "end of the output", "result": "below", "ok": None, "log": last})
    rows.append({"what": "seconds", "result": f"{time.monotonic() - begin:.0f}", "ok": None})
    print(f"  {'':6} {'seconds':60} {rows[-1]['result']}", flush=True)
    if any("log" in row for row in rows):
        print(f"  {last}\n", flush=True)
    return rows


def _last_error(log: str, code: int | None) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return f"exit code {code}: {lines[-1][:300] if lines else 'it printed nothing'}"


def _show(file: Path, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print and return the rows of ``file`` behind the ``known`` ones."""
    # the last line may be half-written
    whole = file.read_text(encoding="utf-8").rpartition("\n")[0]
    new = [json.loads(line) for line in whole.splitlines()[len(known) :]]
    for row in new:
        print(f"  {GOOD[row['ok']]:6} {row['what']:60} {row['result']}", flush=True)
    return new


def _child(name: str, rig: Rig, file: Path, log: Path) -> None:
    os.setsid()  # so that its children can be killed with it
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
    output = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    rig.file = file
    try:
        importlib.import_module(f"gpu_stages.{name}").run(rig)
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
