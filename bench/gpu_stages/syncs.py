"""Places of segtrain where the host waits for the GPU, by torch.cuda.set_sync_debug_mode;
docs/gpu.md lists all of them.
"""

from __future__ import annotations

import re
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from gpu_stages.rig import Rig, config
from gpu_stages.runs import apart, reported
from segtrain.observe.tracker import Tracker

ROOT = Path(__file__).resolve().parents[2]
STEPS = 12


def run(rig: Rig) -> None:
    if not rig.on_gpu:
        rig.left_out("waits for the GPU", "there is none")
        return
    page = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(\w+)` in `([\w/.]+)` \|", page, re.MULTILINE))
    for loss in ("ce", "ohem", "dice", "lovasz"):
        what = f"loss {loss}, color jitter, 2 micro-batches, Muon, EMA"
        with reported(rig, what):
            waits = apart(rig, _count, rig, loss)
            unknown = [
                f"{function} in {file}:{line} {times} x"
                for (function, file, line), times in waits.items()
                if (function, file) not in listed
            ]
            rig.note(what, "; ".join(unknown) or "only where docs/gpu.md says", not unknown)


def _count(rig: Rig, loss: str) -> Counter[tuple[str, str, int]]:
    """How often the host waits in each function, file, and line."""
    import segtrain

    waits: Counter[tuple[str, str, int]] = Counter()

    def show(message: Any, *_: Any, **__: Any) -> None:
        if "synchroniz" not in str(message):
            return
        for frame in reversed(traceback.extract_stack()):
            path = Path(frame.filename)
            # A comprehension is part of its function. The start of a run may wait.
            if ROOT / "segtrain" in path.parents and not frame.name.startswith("<"):
                waits[frame.name, str(path.relative_to(ROOT)), frame.lineno or 0] += 1
                return

    class Begin(Tracker):
        """Counts from the second logged step on, before which everything may wait."""

        name = "begin"

        def scalars(self, values: Any, step: int) -> None:
            if step == 4:
                waits.clear()

    warnings.simplefilter("always")
    warnings.showwarning = show
    torch.cuda.set_sync_debug_mode("warn")
    settings = [
        f"loss.terms={loss}",
        "train.accumulate=2",
        "optim.name=muon",
        "optim.lr=0.001",
        "optim.ema=0.9",
        "log.every=4",
        "data.jitter=[0.4,0.4,0.4]",
        "data.color_jitter_on=device",
        f"train.duration={STEPS}st",
        "train.precision=auto",
        f"eval.every={STEPS}st",
        f"checkpoint.every={STEPS}st",
    ]
    segtrain.train(config(rig, f"syncs-{loss}", *settings), trackers=[Begin()])
    return waits
