"""A model, a loss, and a dataset of a user, for runs from Python, and a small config for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from segtrain.config import Config

LOSS = nn.CrossEntropyLoss(ignore_index=255)


class Stripes(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Vertical stripes of two classes in two colors."""

    classes = ("dark", "bright")

    def __init__(self, count: int = 6) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, int]:
        mask = np.zeros((32, 48 + 8 * (index % 2)), np.uint8)
        mask[:, index : index + 20] = 1
        image = np.repeat((40 + 160 * mask)[..., None], 3, axis=2)
        mask[0, 0] = 255
        return image, mask, index


class Slow(nn.Module):
    """Logits at a third of the size."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, classes, 5, stride=3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.conv(images)


def small(out: Path, *more: str) -> Config:
    words = [
        "data.crop=[24,24]",
        "data.workers=0",
        "train.batch_size=2",
        "train.duration=2st",
        "eval.every=2st",
    ]
    quiet = [
        "log.tensorboard=false",
        "log.pictures=0",
        "log.profile_ms=0",
        "log.every=1",
        "parallel.threads=1",
    ]
    return Config.load(None, *words, "checkpoint.every=2st", *quiet, f"out={out}", *more)
