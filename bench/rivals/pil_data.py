"""The usual PIL input pipeline: decode, random crop, random flip, tensor, normalize (torchvision
functions).
"""

from __future__ import annotations

import random

import torch
from common import MEAN, STD, pairs
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import RandomCrop
from torchvision.transforms import functional as F


class Pictures(Dataset):
    """Item: image float32 (3, crop, crop) normalized, mask int64 (crop, crop)."""

    def __init__(self, root: str, crop: int) -> None:
        self.pairs, self.crop = pairs(root), crop

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image_path, mask_path = self.pairs[index]
        image, mask = Image.open(image_path).convert("RGB"), Image.open(mask_path)
        window = RandomCrop.get_params(image, (self.crop, self.crop))
        image, mask = F.crop(image, *window), F.crop(mask, *window)
        if random.random() < 0.5:
            image, mask = F.hflip(image), F.hflip(mask)
        pixels = F.normalize(F.to_tensor(image), MEAN, STD)
        return pixels, F.pil_to_tensor(mask)[0].long()
