"""WebDataset: tar shards of the files, decoded by OpenCV, albumentations, batches made in the
workers of a WebLoader.
"""

from __future__ import annotations

from pathlib import Path

import albu
import torch
import webdataset as wds
from common import arguments, beside, pairs
from measure import measure


def write(folder: Path, files: list[tuple[str, str]], shards: int = 8) -> list[str]:
    """Tar files with the members KEY.img and KEY.ids, once."""
    names = [folder / f"{number}.tar" for number in range(shards)]
    if not (folder / "whole").exists():
        folder.mkdir(exist_ok=True)
        for number, name in enumerate(names):
            with wds.TarWriter(str(name)) as tar:
                for index in range(number, len(files), shards):
                    image, mask = (Path(path).read_bytes() for path in files[index])
                    tar.write({"__key__": f"{index:06d}", "img": image, "ids": mask})
        (folder / "whole").touch()
    return [str(name) for name in names]


def main() -> None:
    args = arguments()
    transform = albu.transform(args.crop, args.uniform)

    def make(item: tuple[bytes, bytes]) -> tuple[torch.Tensor, torch.Tensor]:
        return albu.augmented(transform, *albu.decode(*item))

    dataset = (
        wds.WebDataset(write(beside(args, "wds"), pairs(args)), shardshuffle=8)
        .repeat()
        .shuffle(32)
        .to_tuple("img", "ids")
        .map(make)
        .batched(args.batch, partial=False)
    )
    measure(args, wds.WebLoader(dataset, batch_size=None, num_workers=args.workers))


if __name__ == "__main__":
    main()
