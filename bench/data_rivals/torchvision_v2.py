"""torchvision's v2 transforms: on PIL images, as its segmentation references do."""

from __future__ import annotations

import random
from typing import Any

import torch
from common import (
    FILL,
    FLIP,
    HUE,
    IGNORE,
    JITTER,
    JITTER_P,
    MEAN,
    STD,
    arguments,
    draw_scale,
    many_pairs,
)
from measure import measure
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F


class RandomScale(nn.Module):
    """Resize by a drawn factor: v2.ScaleJitter draws uniformly alone."""

    def __init__(self, uniform: bool) -> None:
        super().__init__()
        self.uniform = uniform

    def forward(self, image: Any, mask: tv_tensors.Mask) -> tuple[Any, tv_tensors.Mask]:
        scale = draw_scale(random.random(), self.uniform)
        size = [round(scale * n) for n in mask.shape[-2:]]
        return F.resize(image, size), F.resize(mask, size)


class RandomCrop(v2.RandomCrop):
    """With the image's fill and the mask's."""

    def __init__(self, crop: list[int]) -> None:
        super().__init__(crop, pad_if_needed=True, fill={tv_tensors.Mask: IGNORE, "others": FILL})


class Pictures(Dataset):
    """Item: image float32 (3, h, w) normalized, mask int64 (h, w)."""

    def __init__(self, pairs: list[tuple[str, str]], crop: list[int], uniform: bool) -> None:
        self.pairs = pairs
        jitter = v2.ColorJitter(JITTER, JITTER, JITTER, HUE)
        kinds = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
        self.transform = v2.Compose(
            [
                RandomScale(uniform),
                RandomCrop(crop),
                v2.RandomHorizontalFlip(FLIP),
                v2.RandomApply([jitter], JITTER_P),
                v2.ToImage(),
                v2.ToDtype(kinds, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image_path, mask_path = self.pairs[index]
        image = Image.open(image_path).convert("RGB")
        mask = tv_tensors.Mask(F.pil_to_tensor(Image.open(mask_path)))
        image, mask = self.transform(image, mask)
        return image, mask[0]


def main() -> None:
    args = arguments()
    random.seed(0)
    dataset = Pictures(many_pairs(args), args.crop, args.uniform)
    measure(
        args,
        DataLoader(dataset, args.batch, shuffle=True, num_workers=args.workers, drop_last=True),
    )


if __name__ == "__main__":
    main()
