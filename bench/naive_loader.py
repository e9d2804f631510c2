"""A loader as it is usually written: torch's DataLoader, whole images by PIL, random resize and crop, flip, jitter, floats."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision.transforms import ColorJitter
from torchvision.transforms import functional as F


class Folder(Dataset):
    def __init__(self, root: str, crop: tuple[int, int]) -> None:
        self.images = sorted(Path(root, "images/train").iterdir())
        self.masks = sorted(Path(root, "masks/train").iterdir())
        self.crop, self.jitter = crop, ColorJitter(0.3, 0.3, 0.3)

    def __len__(self) -> int:
        return 10**6  # epochs do not end here: the naive loader is spared their change

    def __getitem__(self, index: int) -> Any:
        index %= len(self.images)
        image = Image.open(self.images[index]).convert("RGB")
        mask = Image.open(self.masks[index])
        scale = 2 ** random.uniform(-1, 1)
        size = [round(side * scale) for side in (image.height, image.width)]
        image, mask = F.resize(image, size), F.resize(mask, size, F.InterpolationMode.NEAREST)
        height, width = self.crop
        right, below = max(0, width - size[1]), max(0, height - size[0])
        if right or below:
            image, mask = F.pad(image, [0, 0, right, below]), F.pad(mask, [0, 0, right, below], 255)
        top, left = random.randint(0, image.height - height), random.randint(0, image.width - width)
        image, mask = F.crop(image, top, left, height, width), F.crop(mask, top, left, height, width)
        if random.random() < 0.5:
            image, mask = F.hflip(image), F.hflip(mask)
        pixels = F.normalize(F.to_tensor(self.jitter(image)), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        return pixels, torch.from_numpy(np.array(mask)).long()


def batches(root: str, crop: tuple[int, int], batch: int, workers: int, rank: int) -> Any:
    data = Folder(root, crop)
    order = DistributedSampler(data, num_replicas=64, rank=rank)
    yield from DataLoader(data, batch, sampler=order, num_workers=workers, persistent_workers=True)
