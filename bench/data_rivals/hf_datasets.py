"""Hugging Face datasets: columns of the feature Image (PIL), albumentations in ``with_transform``, torch's DataLoader."""

from __future__ import annotations

from typing import Any

import albu
import numpy as np
import torch
from common import arguments, many_pairs
from datasets import Dataset, Image
from measure import measure
from torch.utils.data import DataLoader


def main() -> None:
    args = arguments()
    transform = albu.transform(args.crop, args.uniform)

    def make(rows: dict[str, list[Any]]) -> dict[str, list[torch.Tensor]]:
        samples = [
            transform(image=np.array(image.convert("RGB")), mask=np.array(mask))
            for image, mask in zip(rows["image"], rows["mask"])
        ]
        return {key: [sample[key] for sample in samples] for key in ("image", "mask")}

    images, masks = zip(*many_pairs(args))
    dataset = Dataset.from_dict({"image": images, "mask": masks})
    dataset = dataset.cast_column("image", Image()).cast_column("mask", Image()).with_transform(make)
    loader = DataLoader(dataset, args.batch, shuffle=True, num_workers=args.workers, drop_last=True)
    measure(args, loader, lambda batch: (batch["image"], batch["mask"]))


if __name__ == "__main__":
    main()
