"""Correctness, then speed, of segtrain on this machine's GPU: `make gpu`, or python bench/gpu.py.

    python bench/gpu.py                                    # all stages, about half an hour
    python bench/gpu.py --stages check,parity,resume       # some of them
    python bench/gpu.py --device cpu --tiny                # a rehearsal without a GPU, under a minute

Each stage runs in its own process with a time limit, and its rows are written to bench/results/DATE-gpu-NAME.md and .json
as they come. Stages of speed do not start if a stage of correctness failed (--keep-going starts them). It needs no
network; the first stage checks what it needs. Exit code: 0 all rows are good, 1 some are not, 2 this machine cannot run it.
docs/gpu-bench.md describes the stages.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import importlib
import json
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT)]

from gpu_stages.rig import GOOD, Rig, Stage, needs  # noqa: E402

STAGES = (
    Stage("check", "packages, driver, and GPU", 90, correctness=True),
    Stage("tests", "tests of the suite that need a GPU", 180, correctness=True),
    Stage("parity", "gradients on the GPU against float64 on the CPU", 240, correctness=True),
    Stage("resume", "deterministic to the bit, and after a resume", 300, correctness=True),
    Stage("ranks", "strategies and ranks against one process", 240, correctness=True),
    Stage("syncs", "places where a step waits for the GPU", 90, correctness=True),
    Stage("speed", "training steps on random images, each choice on and off", 600, correctness=False),
    Stage("parts", "parts of a step, each choice on and off", 180, correctness=False),
    Stage("feed", "the whole loop on JPEG files", 240, correctness=False),
)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal")
    parser.add_argument("--tiny", action="store_true", help="tiny networks and images: what it prints means nothing")
    parser.add_argument("--stages", default=",".join(stage.name for stage in STAGES), help="which, separated by commas")
    parser.add_argument("--limit", type=float, default=1.0, help="factor of the stages' time limits")
    parser.add_argument("--keep-going", action="store_true", help="measure speed even if a result is wrong")
    parser.add_argument("--out", type=Path, default=None, help="path of the results without its ending")
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
    chosen, results, report = args.stages.split(","), [], None
    for stage in STAGES:
        if stage.name not in chosen:
            continue
        wrong = [name for name, rows in results for row in rows if row["ok"] is False]
        if wrong and not stage.correctness and not args.keep_going:
            rows = [{"what": "left out", "result": f"{', '.join(dict.fromkeys(wrong))} failed", "ok": None}]
        else:
            print(f"\n{stage.name}: {stage.title}", flush=True)
            if stage.name != "check":
                _preload()
            rig = Rig(args.device, args.tiny, folder, time.monotonic() + 0.9 * args.limit * stage.limit_s)
            rows = _stage(stage, rig, args.limit * stage.limit_s)
        results.append((stage.name, rows))
        if report is None:
            report = Report(args, rows)
        report.write(results)
        if stage.name == "check" and any(row["ok"] is False for row in rows):
            return 2
    assert report is not None
    print(f"\nwritten: {report.path}.md and .json (docs/gpu-bench.md says how to send them)")
    return 1 if any(row["ok"] is False for _, rows in results for row in rows) else 0


def _preload() -> None:
    """Import what the stages need once, so that each of them starts at once."""
    import torch._dynamo  # noqa: F401  # of optimizers, which takes seconds

    import segtrain.api
    import segtrain.models.pico
    import segtrain.train.rank  # noqa: F401


def _stage(stage: Stage, rig: Rig, limit_s: float) -> list[dict[str, Any]]:
    """The rows of a stage, which runs in a process of its own and is killed, with its children, at its limit."""
    file, log = rig.folder / f"{stage.name}.jsonl", rig.folder / f"{stage.name}.log"
    file.touch()
    begin = time.monotonic()
    # A fork, so that each stage has the imports. This process must never touch CUDA, which does not survive a fork.
    process = multiprocessing.get_context("fork").Process(target=_child, args=(stage.name, rig, file, log))
    process.start()
    shown = 0
    while process.is_alive() and time.monotonic() - begin < limit_s:
        process.join(0.2)
        shown = _show(file, shown)
    late = process.is_alive()
    if late:
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    _show(file, shown)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    if late:
        rows.append({"what": "time limit", "result": f"killed after {limit_s:.0f} s", "ok": False, "log": last})
    elif process.exitcode:
        rows.append({"what": "error", "result": _last_error(last, process.exitcode), "ok": False, "log": last})
    elif any(row["ok"] is False for row in rows):
        rows.append({"what": "end of the output", "result": "below", "ok": None, "log": last})
    rows.append({"what": "seconds", "result": f"{time.monotonic() - begin:.0f}", "ok": None})
    if any("log" in row for row in rows):
        print(f"  {last}\n", flush=True)
    return rows


def _last_error(log: str, code: int | None) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return f"exit code {code}: {lines[-1][:300] if lines else 'it printed nothing'}"


def _show(file: Path, shown: int) -> int:
    lines = file.read_text().splitlines()
    for line in lines[shown:]:
        row = json.loads(line)
        print(f"  {GOOD[row['ok']]:6} {row['what']:60} {row['result']}", flush=True)
    return len(lines)


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


class Report:
    """The result files, rewritten after each stage."""

    def __init__(self, args: argparse.Namespace, first: list[dict[str, Any]]) -> None:
        gpu = next((row["result"] for row in first if row["what"] == "GPU"), args.device)
        name = re.sub(r"[^a-z0-9]+", "-", gpu.split(",")[0].lower()).strip("-") or "unknown"
        today = datetime.date.today().isoformat()
        self.path = args.out or ROOT / "bench/results" / f"{today}-gpu-{name}"
        commit = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True
        ).stdout.strip()
        self._head = {
            "date": today, "device": args.device, "tiny": args.tiny, "gpu": gpu, "commit": commit or "unknown",
            "python": platform.python_version(), "machine": platform.machine(), "cores": len(os.sched_getaffinity(0)),
        }  # fmt: skip

    def write(self, results: list[tuple[str, list[dict[str, Any]]]]) -> None:
        titles = {stage.name: stage.title for stage in STAGES}
        lines = [
            f"# GPU: {self._head['gpu']}",
            "",
            "Made by `python bench/gpu.py`; see [the page](../../docs/gpu-bench.md).",
            "",
        ]
        if self._head["tiny"] or self._head["device"] == "cpu":
            lines += ["**A rehearsal: its figures mean nothing.**", ""]
        lines += [f"- {key}: {value}" for key, value in self._head.items()]
        for name, rows in results:
            lines += ["", f"## {name}: {titles[name]}", "", "| | what | result | bound |", "|---|---|---|---|"]
            for row in rows:
                cells = [GOOD[row["ok"]], row["what"], row["result"], row.get("bound", "")]
                lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
                if row.get("log"):
                    lines += ["", "```text", row["log"], "```", ""]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Not with_suffix: the name of a GPU may contain a dot.
        Path(f"{self.path}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        content = {**self._head, "stages": dict(results)}
        Path(f"{self.path}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
