"""LitData: chunks made by ``optimize`` with the files' bytes, decoded by OpenCV, albumentations,
its StreamingDataLoader.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import albu
import litdata
import torch
from common import arguments, beside, many_pairs, repeats
from measure import measure


class Pictures(litdata.StreamingDataset):
    """Item: image float32 (3, h, w) normalized, mask uint8 (h, w)."""

    def __init__(self, augment: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.augment = augment

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, torch.Tensor]:
        item = super().__getitem__(index)
        return albu.augmented(self.augment, *albu.decode(item["image"], item["mask"]))


def content(pair: tuple[str, str]) -> dict[str, bytes]:
    return {"image": Path(pair[0]).read_bytes(), "mask": Path(pair[1]).read_bytes()}


def main() -> None:
    args = arguments()
    # It has no way to repeat a set within an epoch: the files are written so often that an epoch
    # outlasts the measurement.
    folder = beside(args, f"litdata-{repeats(args)}")
    if not (folder / "index.json").exists():
        litdata.optimize(
            content, many_pairs(args), str(folder), chunk_bytes="64MB", num_workers=1, verbose=False
        )
    dataset = Pictures(
        albu.transform(args.crop, args.uniform), input_dir=str(folder), shuffle=True, drop_last=True
    )
    loader = litdata.StreamingDataLoader(dataset, batch_size=args.batch, num_workers=args.workers)
    measure(args, loader, shards_mb=sum(os.path.getsize(p) for p in folder.iterdir()) // 10**6)


if __name__ == "__main__":
    main()
