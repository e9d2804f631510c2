"""The usual albumentations input pipeline: cv2 decoding, RandomCrop, HorizontalFlip, optionally
Normalize.
"""

from __future__ import annotations

import albumentations as A
import cv2
import torch
from common import MEAN, STD, pairs
from torch.utils.data import Dataset


class Pictures(Dataset):
    """Item: image (3, crop, crop), float32 normalized or uint8; mask int64 (crop, crop)."""

    def __init__(self, root: str, crop: int, normalize: bool) -> None:
        self.pairs = pairs(root)
        steps = [A.RandomCrop(crop, crop), A.HorizontalFlip(p=0.5)]
        self.transform = A.Compose(steps + ([A.Normalize(MEAN, STD)] if normalize else []))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image_path, mask_path = self.pairs[index]
        image = cv2.cvtColor(cv2.imread(image_path), cv2.COLOR_BGR2RGB)
        sample = self.transform(image=image, mask=cv2.imread(mask_path, cv2.IMREAD_GRAYSCALE))
        image = torch.from_numpy(sample["image"].transpose(2, 0, 1).copy())
        return image, torch.from_numpy(sample["mask"].copy()).long()
