"""torch's DataLoader with albumentations: worker processes, default collation."""

from __future__ import annotations

from typing import Any

import albu
import torch
from common import arguments, many_pairs
from measure import measure
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Item: image float32 (3, h, w) normalized, mask uint8 (h, w)."""

    def __init__(self, pairs: list[tuple[str, str]], transform: Any) -> None:
        self.pairs, self.transform = pairs, transform

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return albu.augmented(self.transform, *albu.read(*self.pairs[index]))


def main() -> None:
    args = arguments(crop_first="RandomResizedCrop in place of scale and crop")
    dataset = Pictures(many_pairs(args), albu.transform(args.crop, args.uniform, args.crop_first))
    measure(
        args,
        DataLoader(dataset, args.batch, shuffle=True, num_workers=args.workers, drop_last=True),
    )


if __name__ == "__main__":
    main()
