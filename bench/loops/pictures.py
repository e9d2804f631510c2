"""The input pipeline of torchvision's segmentation reference: whole images, random scale, crop, flip, and normalization."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet, RGB, of values in 0..1


class _Pictures(Dataset[Any]):
    """Item: image float32 (3, crop), normalized, and mask int64 (crop)."""

    def __init__(self, pairs: list[tuple[str, str]], crop: tuple[int, int]) -> None:
        self._pairs, self._crop = pairs, crop

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        from torchvision.transforms import functional as F

        image_path, mask_path = self._pairs[index]
        image, mask = Image.open(image_path).convert("RGB"), Image.open(mask_path)
        factor = random.uniform(0.5, 2.0)
        size = [round(side * factor) for side in (image.height, image.width)]
        image, mask = F.resize(image, size, antialias=True), F.resize(mask, size, F.InterpolationMode.NEAREST)
        if random.random() < 0.5:
            image, mask = F.hflip(image), F.hflip(mask)
        missing = [max(0, want - have) for want, have in zip(self._crop, size)]
        if any(missing):
            image, mask = (
                F.pad(part, [0, 0, missing[1], missing[0]], fill) for part, fill in ((image, 0), (mask, 255))
            )
        height, width = self._crop
        top, left = random.randint(0, image.height - height), random.randint(0, image.width - width)
        image, mask = F.crop(image, top, left, height, width), F.crop(mask, top, left, height, width)
        return F.normalize(F.to_tensor(image), MEAN, STD), torch.from_numpy(np.array(mask)).long()


def loader(dataset: Any, crop: tuple[int, int], batch: int, steps: int, workers: int) -> DataLoader[Any]:
    """``steps`` batches of a segtrain dataset whose images are files."""
    pairs = [(str(entry.image), str(entry.mask)) for entry in (dataset.entries[k] for k in range(len(dataset)))]
    pictures = _Pictures(pairs, crop)
    sampler = RandomSampler(pictures, replacement=True, num_samples=steps * batch)
    return DataLoader(pictures, batch, sampler=sampler, num_workers=workers, drop_last=True)
