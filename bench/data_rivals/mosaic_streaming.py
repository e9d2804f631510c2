"""MosaicML streaming: shards in its MDS format with the files' bytes, decoded by OpenCV, albumentations, torch's DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import albu
import streaming
import torch
from common import arguments, beside, pairs, repeats
from measure import measure
from torch.utils.data import DataLoader


class Pictures(streaming.StreamingDataset):
    """Item: image float32 (3, h, w) normalized, mask uint8 (h, w)."""

    def __init__(self, transform: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.transform = transform

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        item = super().__getitem__(index)
        image, mask = albu.decode(item["image"], item["mask"])
        sample = self.transform(image=image, mask=mask)
        return sample["image"], sample["mask"]


def main() -> None:
    args = arguments()
    folder = beside(args, "mds")
    if not (folder / "index.json").exists():
        with streaming.MDSWriter(out=str(folder), columns={"image": "bytes", "mask": "bytes"}) as writer:
            for image, mask in pairs(args):
                writer.write({"image": Path(image).read_bytes(), "mask": Path(mask).read_bytes()})
    streaming.base.util.clean_stale_shared_memory()
    stream = streaming.Stream(local=str(folder), repeat=repeats(args))
    dataset = Pictures(albu.transform(args.crop, args.uniform), streams=[stream], shuffle=True, batch_size=args.batch)
    measure(args, DataLoader(dataset, args.batch, num_workers=args.workers, drop_last=True), lambda batch: batch)


if __name__ == "__main__":
    main()
