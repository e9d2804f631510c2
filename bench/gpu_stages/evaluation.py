"""Images/s of an evaluation at the size of Cityscapes, by batch size and arithmetic, and on images of many sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gpu_stages.rig import Rig
from gpu_stages.runs import reported
from gpu_stages.timing import forget, peak_gib
from segtrain.config import Config, Model
from segtrain.cores import cores
from segtrain.data.labels.space import plain_space
from segtrain.data.own import own_dataset
from segtrain.evaluate.evaluation import evaluate
from segtrain.models import build_model
from segtrain.precision import fitting

CLASSES = 19


class Memory:
    """Random images and masks. Only 8 are made, and each of them stands for several."""

    def __init__(self, sizes: list[tuple[int, int]]) -> None:
        draw = np.random.default_rng(0)
        kinds = sorted(set(sizes)) * (8 if len(set(sizes)) == 1 else 1)
        self._made = [
            (draw.integers(0, 256, (*size, 3), dtype=np.uint8), draw.integers(0, CLASSES, size, dtype=np.uint8))
            for size in kinds
        ]
        self._of = [kinds.index(size) + (index % 8 if len(set(sizes)) == 1 else 0) for index, size in enumerate(sizes)]
        self.ids = [f"image{index}" for index in range(len(sizes))]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, str]:
        return *self._made[self._of[index]], self.ids[index]


def run(rig: Rig) -> None:
    size, count = ((32, 48), 3) if rig.tiny else ((1024, 2048), 96)
    best = fitting(torch.device(rig.device))[0]
    networks = rig.networks()
    one_size, sizes = Memory([size] * count), [(size[0] - 8 * (k % 10), size[1] - 8 * k) for k in range(count)]
    cases: list[tuple[str, str, int, Any]] = [
        (name, precision, batch, one_size)
        for name in networks
        if name not in ("DeepLabV3+ R101", "U-Net R34")
        for precision, batches in ((best, (1, 2) if rig.tiny else (1, 2, 4, 8)), ("fp32", (4,)))
        for batch in batches
    ]  # fmt: skip
    cases += [(cases[0][0], best, 4, Memory(sizes))]
    for name, precision, batch, data in cases:
        kind = f"{size[0]}x{size[1]}" if data is one_size else f"{len(set(sizes))} sizes"
        what = f"{name}, {kind}, {precision}, batches of {batch}"
        if rig.left_s < (1 if rig.tiny else 20):
            rig.left_out(what, "no time is left")
            continue
        with reported(rig, what):
            rig.note(what, score(rig, networks[name], data, precision, batch))
        forget(rig.device)


def score(rig: Rig, settings: dict[str, Any], data: Memory, precision: str, batch: int) -> str:
    forget(rig.device)
    torch.manual_seed(0)
    model: Any = build_model(Model(**settings), CLASSES).to(rig.device, memory_format=torch.channels_last)
    dataset = own_dataset(data, plain_space(tuple(f"c{k}" for k in range(CLASSES))), "val")
    chosen = Config(eval={"batch_size": batch}).eval
    seconds = [
        evaluate(
            model, dataset, chosen, device=rig.device, precision=precision, workers=min(8, cores()), channels_last=True
        ).seconds
        for _ in range(1 if rig.tiny else 2)  # the first one loads kernels
    ]
    return f"{len(data) / seconds[-1]:.1f} images/s, the first time {len(data) / seconds[0]:.1f}, peak {peak_gib(rig.device):.2f} GiB"
