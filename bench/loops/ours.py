"""segtrain on the same network: the whole ``segtrain.train`` with images in memory, and its step
alone.

The whole run does more than the other loops here: workers cut crops from images in memory, batches
travel to the device, and are normalized there. The step alone gets batches that are on the device,
as the others do.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from gpu_stages.speed import Case as Step
from gpu_stages.speed import built

import segtrain
from loops.task import LR, Case, Stopwatch, Task
from segtrain.base.precision import AUTO, allow_tf32, fitting
from segtrain.observe.tracker import Tracker


class Memory:
    """Images and masks in memory, larger than the crop, so that crops differ."""

    def __init__(self, case: Case, count: int) -> None:
        draw, (height, width) = np.random.default_rng(count), case.size
        shape = (height + height // 4, width + width // 4)
        self._images = [draw.integers(0, 256, (*shape, 3), dtype=np.uint8) for _ in range(count)]
        self._masks = [draw.integers(0, case.classes, shape, dtype=np.uint8) for _ in range(count)]
        self.ids = [f"{count}/{index}" for index in range(count)]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, str]:
        return self._images[index], self._masks[index], self.ids[index]


class Marks(Tracker):
    """A tracker that passes each logged step on."""

    name = "marks"

    def __init__(self, mark: Stopwatch) -> None:
        self._mark, self._known = mark, 0

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        if "train/loss" in values:
            self._mark(step - self._known)
            self._known = step


def run(task: Task, mark: Stopwatch) -> None:
    case = task.case
    with tempfile.TemporaryDirectory() as folder:
        config = segtrain.Config.load(
            None,
            f"out={Path(folder) / 'run'}",
            f"model.arch={case.arch}",
            f"model.encoder={case.encoder}",
            f"data.crop={list(case.size)}",
            f"data.classes={json.dumps([f'c{k}' for k in range(case.classes)])}",
            "data.scale=[1,1]",
            "data.check=off",
            f"train.batch_size={case.images}",
            f"train.duration={task.steps}st",
            f"train.device={task.device}",
            f"train.precision={'auto' if task.amp else 'fp32'}",
            "optim.name=adamw",
            f"optim.lr={LR}",
            f"log.every={task.warm}",
            f"eval.every={task.steps}st",
            f"checkpoint.every={task.steps}st",
            "log.tensorboard=false",
            "log.pictures=0",
            "parallel.procs=1",
        )
        segtrain.train(
            config,
            train_data=Memory(case, 4 * case.images),
            val_data=Memory(case, 1),
            trackers=[Marks(mark)],
        )


def run_step(task: Task, mark: Stopwatch) -> None:
    case, precision = task.case, "fp32"
    if task.amp:
        precision = next(name for name in AUTO if name in fitting(torch.device(task.device)))
    allow_tf32(False)
    settings = {"arch": case.arch, "encoder": case.encoder}
    step, _, _ = built(
        task.device, Step(case.name, case.size, case.images, case.classes, precision), settings
    )
    for _ in range(task.steps):
        step()
        mark()
