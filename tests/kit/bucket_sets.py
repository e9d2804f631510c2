"""A data set in a bucket in several layouts, its server, and loaders of it."""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import pytest
from cloud.bucket import BucketServer
from data_files import blocks, smooth

from segtrain.config import Data
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.shards.pack import pack
from segtrain.data.shards.pack_sample import Packing
from segtrain.data.train_loader import TrainLoader

CLASSES = ("a", "b", "c")
LAYOUTS = ["folders", "list", "shards", "foreign"]
COUNT = 11


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bucket ``bkt``: the same samples as single files, in shards, and in tars of
    other tools.
    """
    root = tmp_path_factory.mktemp("buckets") / "bkt"
    rows = ["image,mask"]
    for index in range(COUNT):
        name = f"town a/s{index:02d} ü#%" if index % 3 == 1 else f"s{index:02d}"
        for part, kind, picture in (
            ("images", "jpg", smooth(index)),
            ("masks", "png", blocks(index, (0, 1, 2))),
        ):
            path = root / "files" / part / "train" / f"{name}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imencode(f".{kind}", picture[..., ::-1] if picture.ndim == 3 else picture)[
                1
            ].tofile(path)
        rows.append(f"images/train/{name}.jpg,masks/train/{name}.png")
    (root / "files/train.csv").write_text("\n".join(rows), encoding="utf-8")
    (root / "files/classes.txt").write_text("\n".join(CLASSES))
    (root / "files/images/train/.hidden.jpg").write_bytes(b"not an image")
    pack(
        opened(root / "files", "folders"),
        str(root / "shards"),
        Packing("keep"),
        shard_mb=0.01,
        say=lambda text: None,
    )
    shutil.copytree(root / "shards", root / "foreign")
    (root / "foreign/train.index").unlink()
    return root.parent


@pytest.fixture
def server(data_sets: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    started = BucketServer(data_sets)
    for key, value in started.environment().items():
        monkeypatch.setenv(key, value)
    yield started
    started.close()


@pytest.fixture
def own(data_sets: Path, server: BucketServer, tmp_path: Path) -> Path:
    """A copy of the bucket that a test may change."""
    shutil.copytree(data_sets, tmp_path / "own")
    server.folder = tmp_path / "own"
    return server.folder / "bkt"


def opened(root: object, layout: str, **settings: Any) -> Dataset:
    layout, folder = (
        ("shards", layout)
        if layout == "foreign"
        else (layout, "shards" if layout == "shards" else "files")
    )
    place = f"{root}/{folder}" if str(root).endswith("bkt") else str(root)
    return open_dataset(data_of(place, layout, **settings), "train")


def data_of(root: str, layout: str, **settings: Any) -> Data:
    return Data(
        **{"layout": layout, "root": root, "classes": CLASSES, "crop": (24, 32), **settings}
    )


def loader(dataset: Any, workers: int = 1, **settings: Any) -> TrainLoader:
    settings = {"seed": 3, "batch_size": 4, "last_step": 5, "kind": "thread", **settings}
    return TrainLoader(dataset, data_of("x", "folders"), workers=workers, **settings)


def digest(batches: TrainLoader) -> str:
    """Of all batches; the threads of the read-ahead end with the pass."""
    found = hashlib.sha256()
    with batches:
        for step in batches:
            for batch in step:
                found.update(batch.images.numpy().tobytes() + batch.masks.numpy().tobytes())
    assert not reading()
    return found.hexdigest()


def reading() -> list[str]:
    """Threads of read-aheads that do not end. Closing waits at most a second for requests in
    flight.
    """
    patient = time.monotonic() + 120
    while True:
        names = [
            thread.name
            for thread in threading.enumerate()
            if thread.name.startswith("segtrain-read-")
        ]
        if not names or time.monotonic() > patient:
            return names
        time.sleep(0.01)
