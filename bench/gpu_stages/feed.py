"""The whole loop on JPEG files: images/s, the share of waiting, and how much of the time the GPU is
idle.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import torch

from gpu_stages.rig import CLASSES, Rig, config
from gpu_stages.runs import apart, reported
from segtrain.observe.tracker import Tracker

SKIP = 10  # steps before the measurement


def run(rig: Rig) -> None:
    folder = rig.folder / "pictures"
    rig.note("data", rig.pictures())
    name, settings = next(iter(rig.networks().items()))
    for jitter in (0.4,) if rig.tiny else (0.0, 0.4):
        what = f"{name}, color jitter {jitter:g}"
        if f"{what}: rate" in rig.earlier:
            continue
        with reported(rig, what):
            rig.require(40)
            rate, wait, idle = apart(rig, _train, rig, folder, settings, jitter)
            rig.note(
                f"{what}: rate", f"{rate:.1f} images/s, {wait:.1%} of the time waiting for images"
            )
            if idle is not None:
                rig.note(f"{what}: GPU idle", f"{idle:.1%}", idle < 0.03, "3 %")


class Steps(Tracker):
    """A tracker that keeps the logged rates."""

    name = "steps"

    def __init__(self, skip: int) -> None:
        self._skip = skip
        self.rates: list[float] = []
        self.waits: list[float] = []

    def scalars(self, values: Any, step: int) -> None:
        if "train/images_per_s" in values and step > self._skip:
            self.rates.append(values["train/images_per_s"])
            self.waits.append(values["train/wait"])


def _train(
    rig: Rig, folder: Path, settings: dict[str, Any], jitter: float
) -> tuple[float, float, float | None]:
    """Images/s, the share of the time that waits for images, and that without a kernel."""
    import segtrain

    steps = 4 if rig.tiny else SKIP + 40
    more = [
        "data.layout=folders",
        f"data.root={folder}",
        f"data.classes={json.dumps([f'c{k}' for k in range(CLASSES)])}",
        f"data.jitter=[{jitter},{jitter},{jitter}]",
        f"train.duration={steps}st",
        f"eval.every={steps}st",
        f"checkpoint.every={steps}st",
        "data.workers=auto",
        "optim.name=adamw",
        "optim.lr=0.0001",
        *(f"model.{key}={json.dumps(value)}" for key, value in settings.items()),
        *(
            ["log.every=2"]
            if rig.tiny
            else [
                "data.crop=[512,1024]",
                "train.batch_size=16",
                "log.every=10",
                "train.precision=auto",
            ]
        ),
    ]
    watch = Steps(0 if rig.tiny else SKIP)
    with _profiled(rig.on_gpu) as profile:
        segtrain.train(config(rig, f"feed-{jitter:g}-run", *more), trackers=[watch])
    rate, wait = (sum(values) / max(1, len(values)) for values in (watch.rates, watch.waits))
    return rate, wait, None if profile is None else _idle(profile, steps)


def _profiled(on_gpu: bool) -> Any:
    if not on_gpu:
        return contextlib.nullcontext()
    # Operators of the host are left out: recording them would slow its launches down, and the GPU
    # would wait for them.
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])


def _idle(profile: Any, steps: int) -> float:
    """The share of time without a kernel, from the update of step SKIP to that of the last step but
    one.
    """
    kernels = sorted(
        (e.time_range.start, e.time_range.end, e.name)
        for e in profile.events()
        if e.device_type == torch.autograd.DeviceType.CUDA
        and not e.name.startswith(("Memcpy", "Memset"))
    )
    return idle_share(kernels, steps)


def idle_share(kernels: list[tuple[float, float, str]], steps: int) -> float:
    """The same for sorted (begin, end, name) of kernels. An update is some kernels of fused AdamW,
    as many in each step.

    Raises RuntimeError if these kernels are not found.
    """
    updates = sorted(end for _, end, name in kernels if "adam" in name.lower())
    each, rest = divmod(len(updates), steps)
    if not each or rest:
        raise RuntimeError(
            f"the trace has {len(updates)} kernels with adam in their names in {steps} steps"
        )
    begin, end = updates[each * SKIP - 1], updates[each * (steps - 1) - 1]
    kernels = [(max(first, begin), min(last, end), name) for first, last, name in kernels]
    busy, reached = 0.0, begin
    for first, last, _ in kernels:
        if last > reached:
            busy += last - max(first, reached)
            reached = last
    return 1 - busy / (end - begin)
