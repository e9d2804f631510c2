"""The usual ways to read a bucket, on a device of a fixed step time: a line of JSON with the time
of each step.

    python bench/buckets/naive.py SOURCE '{"folder": ..., "url": ..., "marks": ..., ...}'

SOURCE: files (torch DataLoader on a folder or a mount), webdataset, litdata, s3torch. Each runs in
an environment that has its library. Every one decodes whole images with OpenCV, scales, crops, and
flips, in two worker processes.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

AHEAD_OF_EPOCH = 10**6  # samples of an epoch, so that none ends here


def sample(image: bytes, mask: bytes, request: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Image uint8 (h, w, 3) and mask uint8 (h, w) of a random crop."""
    pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
    labels = cv2.imdecode(np.frombuffer(mask, np.uint8), cv2.IMREAD_GRAYSCALE)
    (height, width), (least, most) = request["crop"], request["scale"]
    factor = max(random.uniform(least, most), height / labels.shape[0], width / labels.shape[1])
    size = (
        max(width, round(factor * labels.shape[1])),
        max(height, round(factor * labels.shape[0])),
    )
    pixels, labels = (
        cv2.resize(pixels, size),
        cv2.resize(labels, size, interpolation=cv2.INTER_NEAREST),
    )
    top, left = random.randint(0, size[1] - height), random.randint(0, size[0] - width)
    window = np.s_[top : top + height, left : left + width]
    turned = slice(None, None, random.choice((1, -1)))
    return torch.from_numpy(pixels[window][:, turned].copy()), torch.from_numpy(
        labels[window][:, turned].copy()
    )


class Files(Dataset):
    """Pairs of a folder, in a random order, each opened when it is needed."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request, root = request, Path(request["folder"])
        self.names = [
            (str(path), str(root / "masks/train" / f"{path.stem}.png")) for path in _images(root)
        ]

    def __len__(self) -> int:
        return AHEAD_OF_EPOCH

    def __getitem__(self, index: int) -> Any:
        image, mask = self.names[random.randrange(len(self.names))]
        return sample(Path(image).read_bytes(), Path(mask).read_bytes(), self.request)


class S3Objects(Dataset):
    """The same pairs through s3torchconnector's map-style data sets."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request, self.parts = request, None
        self.keys = [path.stem for path in _images(Path(request["folder"]))]

    def __len__(self) -> int:
        return AHEAD_OF_EPOCH

    def __getitem__(self, index: int) -> Any:
        from s3torchconnector import S3ClientConfig, S3MapDataset

        if self.parts is None:
            settings = {
                "region": "us-east-1",
                "endpoint": self.request["endpoint"],
                "s3client_config": S3ClientConfig(force_path_style=True),
            }
            self.parts = [
                S3MapDataset.from_objects(
                    [f"{self.request['url']}/{part}/train/{key}.{end}" for key in self.keys],
                    **settings,
                )
                for part, end in (("images", "jpg"), ("masks", "png"))
            ]
        number = random.randrange(len(self.keys))
        return sample(*(part[number].read() for part in self.parts), self.request)


def webdataset(request: dict[str, Any]) -> Iterable[Any]:
    """Its own reader of tar shards, each streamed by curl as its documentation does, with a shuffle
    buffer.
    """
    import webdataset as wds

    address = f"{request['endpoint']}/{request['url'].removeprefix('s3://')}-shards"
    shards = sorted(path.relative_to(f"{request['folder']}-shards") for path in _shards(request))
    urls = [f"pipe:curl -s {address}/{shard}" for shard in shards]
    dataset = wds.WebDataset(urls, resampled=True, shardshuffle=False, empty_check=False).shuffle(
        100
    )
    made = dataset.to_tuple("jpg;image.jpg", "mask.png;png").map(
        lambda pair: sample(*pair, request)
    )
    return DataLoader(made, batch_size=request["batch"], num_workers=request["workers"])


def _shards(request: dict[str, Any]) -> list[Path]:
    return [
        path
        for path in Path(f"{request['folder']}-shards").rglob("*.tar")
        if "train" in path.as_posix()
    ]


def litdata(request: dict[str, Any]) -> Iterable[Any]:
    """Its streaming data set of chunks, which it copies to a cache on the disk."""
    import litdata as lit
    from lit_chunks import Chunks

    folder = Path(f"{request['folder']}-litdata")
    if not (folder / "index.json").exists():
        lit.optimize(
            _content,
            Files(request).names,
            str(folder),
            chunk_bytes="8MB",
            num_workers=1,
            verbose=False,
        )
    url, options = f"{request['url']}-litdata", {"endpoint_url": request["endpoint"]}
    chunks = Chunks(
        request, input_dir=url, cache_dir=request["cache"], shuffle=True, storage_options=options
    )
    return lit.StreamingDataLoader(
        chunks, batch_size=request["batch"], num_workers=request["workers"]
    )


def _content(pair: tuple[str, str]) -> dict[str, bytes]:
    return {"image": Path(pair[0]).read_bytes(), "mask": Path(pair[1]).read_bytes()}


def _images(root: Path) -> list[Path]:
    return sorted((root / "images" / "train").iterdir())


def loader(source: str, request: dict[str, Any]) -> Iterable[Any]:
    if source in ("files", "s3torch"):
        pairs = Files(request) if source == "files" else S3Objects(request)
        return DataLoader(pairs, request["batch"], num_workers=request["workers"])
    return webdataset(request) if source == "webdataset" else litdata(request)


def main() -> None:
    source, request = sys.argv[1], json.loads(sys.argv[2])
    cv2.setNumThreads(1)
    with open(request["marks"], "w", encoding="utf-8") as marks:
        free_at = 0.0  # of a device that works while the loader makes the next batch
        while True:  # litdata's epochs end
            for _ in loader(source, request):
                time.sleep(max(0.0, free_at - time.perf_counter()))
                free_at = time.perf_counter() + request["device_s"]
                marks.write(json.dumps({"time": time.time()}) + "\n")
                marks.flush()


if __name__ == "__main__":
    main()
