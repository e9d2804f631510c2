"""Grain: a MapDataset of files, shuffled, albumentations in ``map``, batches made in worker processes."""

from __future__ import annotations

import albu
import grain
import numpy as np
from common import arguments, pairs
from measure import measure


class Make:
    """Files to a sample; its transform is made in the worker that uses it."""

    def __init__(self, crop: tuple[int, int], uniform: bool) -> None:
        self.crop, self.uniform, self.transform = crop, uniform, None

    def __call__(self, pair: tuple[str, str]) -> dict[str, np.ndarray]:
        if self.transform is None:
            self.transform = albu.transform(self.crop, self.uniform)
        image, mask = albu.read(*pair)
        sample = self.transform(image=image, mask=mask)
        return {"image": sample["image"].numpy(), "mask": sample["mask"].numpy()}


def main() -> None:
    args = arguments()
    dataset = (
        grain.MapDataset.source(pairs(args))
        .seed(0)
        .shuffle()
        .repeat()
        .map(Make(args.crop, args.uniform))
        .to_iter_dataset(
            grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
        )  # 16 and 500 would wait for 500 samples
        .batch(args.batch)
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=args.workers))
    )
    measure(args, dataset, lambda batch: (batch["image"], batch["mask"]))


if __name__ == "__main__":
    main()
