"""What failed on a GPU before, each in a new process that has imported nothing: fsdp, CUDA graphs,
the first step, ...
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gpu_stages.rig import LATE, NoTime, Rig, config
from gpu_stages.runs import apart, reported
from gpu_stages.timing import peak_gib, synchronize

ROOT = Path(__file__).resolve().parents[2]
# most seconds of a first step, and most of its peak of memory over that of a later one
FIRST_S, PEAK = 5.0, 1.3
LATER = 10


def run(rig: Rig) -> None:
    _first_step(rig, tries=False)
    fsdp = [
        "parallel.strategy=fsdp",
        "optim.name=adamw",
        "train.channels_last=auto",
        "parallel.backend=gloo",
    ]
    for precision in ("fp32", "bf16"):
        what = f"train.cuda_graph=true, {precision}"
        settings = ["train.cuda_graph=true", f"train.precision={precision}", "optim.name=adamw"]
        if rig.on_gpu:
            _command(rig, what, *settings)
        else:
            rig.left_out(what, "it needs a GPU")
    for ranks in (1, 2):
        what = f"fsdp by the plain command, {ranks} ranks"
        _command(rig, what, *fsdp, f"parallel.procs={ranks}")
    what = "batches are page-locked"
    if not rig.on_gpu:
        rig.left_out(what, "it needs a GPU")
    elif what not in rig.earlier:
        with reported(rig, what):
            apart(rig, _pinned, rig)
    if "bench data's advice" not in rig.earlier:
        with reported(rig, "bench data's advice"):
            apart(rig, _advice, rig)
    if rig.on_gpu:  # last, because it takes long: what the trials of cuDNN cost, and bring
        _first_step(rig, tries=True)


def _command(rig: Rig, what: str, *settings: str) -> None:
    """A row: whether three steps of `segtrain train` exit with 0."""
    if what not in rig.earlier:
        with reported(rig, what):
            _trained(rig, what, *settings)


def _trained(rig: Rig, what: str, *settings: str) -> None:
    here = config(rig, what.replace(" ", "-"), *settings, "train.duration=3st").to_yaml()
    file = rig.folder / "first.yaml"
    file.write_text(here, encoding="utf-8")
    command = [sys.executable, "-m", "segtrain", "train", str(file)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=max(1.0, rig.left_s)
        )
    except subprocess.TimeoutExpired:
        raise NoTime(LATE) from None
    print(done.stdout, done.stderr)
    last = (done.stderr.strip() or "nothing").splitlines()[-1][:200]
    rig.note(
        what,
        "exit code 0" if not done.returncode else f"exit code {done.returncode}: {last}",
        not done.returncode,
    )


def _first_step(rig: Rig, tries: bool) -> None:
    name, settings = next(iter(rig.networks().items()))
    what = f"{name}, {'cuDNN tries all kernels' if tries else 'kernels by heuristics'}"
    if f"{what}: peak of the first step" in rig.earlier:
        return
    with reported(rig, what):
        rig.require(60 if tries else 10)
        apart(rig, _steps, rig, what, settings, tries)


def _steps(rig: Rig, what: str, settings: dict[str, Any], tries: bool) -> None:
    """In a process of its own, because it keeps the kernels that it has chosen."""
    from gpu_stages.speed import Case, built
    from segtrain.base.precision import fitting

    torch.backends.cudnn.benchmark = tries
    size, images = ((32, 32), 2) if rig.tiny else ((512, 1024), 16)
    case = Case(what, size, images, 19, fitting(torch.device(rig.device))[0])
    step, _, _ = built(rig.device, case, settings)
    seconds, peaks = [], []
    for _ in range(LATER):
        if rig.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        synchronize(rig.device)
        begin = time.perf_counter()
        step()
        synchronize(rig.device)
        seconds.append(time.perf_counter() - begin)
        peaks.append(peak_gib(rig.device))
    row = f"{seconds[0]:.1f} s, step {LATER} {1e3 * seconds[-1]:.1f} ms"
    rig.note(f"{what}: first step", row, None if tries else seconds[0] <= FIRST_S, f"{FIRST_S:g} s")
    row = f"{peaks[0]:.2f} GiB, of step {LATER} {peaks[-1]:.2f}"
    good = None if tries or not rig.on_gpu else peaks[0] <= PEAK * peaks[-1]
    rig.note(f"{what}: peak of the first step", row, good, f"{PEAK:g} x")


def _pinned(rig: Rig) -> None:
    from segtrain.data.datasets import open_dataset
    from segtrain.data.train_loader import TrainLoader

    data = config(rig, "pinned").data
    with TrainLoader(
        open_dataset(data, "train"),
        data,
        seed=1,
        batch_size=4,
        last_step=3,
        pin_memory=True,
        workers=2,
    ) as loader:
        locked = [parts[0].images.is_pinned() and parts[0].masks.is_pinned() for parts in loader]
    rig.note("batches are page-locked", f"{sum(locked)} of {len(locked)}", all(locked))


def _advice(rig: Rig) -> None:
    """A row: whether `segtrain bench data` advises no kind of worker that it has just measured as
    slower.
    """
    from segtrain.insight.bench.data import measure

    found = measure(config(rig, "advice"), 8 if rig.tiny else 32, 0.05 if rig.tiny else 0.5, None)
    best: dict[str, float] = {}
    for row in found["rates"]:
        best[row["kind"]] = max(row["per_s"], best.get(row["kind"], 0.0))
    advised = {
        choice["settings"].get("data.worker_kind", "")
        for verdict in found["verdicts"]
        for choice in (verdict["fix"], *verdict["fix"].get("alternatives", ()))
    } - {""}
    slower = [kind for kind in advised if best.get(kind, 0.0) < max(best.values())]
    rates = ", ".join(f"{kind} {rate:.0f}/s" for kind, rate in best.items())
    rig.note("bench data's advice", f"{json.dumps(sorted(advised))}, measured {rates}", not slower)
