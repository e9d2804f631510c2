"""Shards are read through the store interface: an in-memory store gives what the local disk gives."""

from __future__ import annotations

import os
import pickle
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from test_shards import CLASSES, packed, samples, write_tar

from segtrain.config import Data
from segtrain.data.index.entries import Entry
from segtrain.data.index.stamps import stamps
from segtrain.data.loader import TrainLoader
from segtrain.data.shards.foreign import splits_in
from segtrain.data.shards.reader import ShardDataset, open_shards
from segtrain.data.storage import LOCAL, FileStat, Store
from segtrain.errors import DataError


@dataclass
class MemoryStore(Store):
    """Files in a dictionary: no file system can help to read them."""

    files: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def copy_of(cls, folder: Path, root: str) -> MemoryStore:
        found = (path for path in folder.rglob("*") if path.is_file())
        return cls({f"{root}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in found})

    def list(self, folder: str, ending: str) -> list[str]:
        below = [path[len(folder) + 1 :] for path in self.files if path.startswith(f"{folder}/")]
        names = {name.partition("/")[0] + "/" * ("/" in name) for name in below}
        return sorted(name for name in names if name.endswith(ending) and (ending == "/" or not name.endswith("/")))

    def stat(self, path: str) -> FileStat:
        content = self._content(path)
        return FileStat(len(content), zlib.crc32(content))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        content = self._content(path)
        end = len(content) if length is None else offset + length
        if end > len(content):
            raise DataError(f"{path}: too short", code="file-ends-early", file=path)
        return content[offset:end]

    def _content(self, path: str) -> bytes:
        if path not in self.files:
            raise DataError(f"{path}: not there", code="file-unreadable", file=path)
        return self.files[path]


ROOT = "/no/such/folder/on/this/disk"


def shards(root: str, store: Store, split: str = "train") -> ShardDataset:
    return open_shards(Data(layout="shards", root=root, classes=CLASSES), split, None, store)


@pytest.mark.parametrize("form", ["tars of other tools", "a folder per split", "packed"])
def test_shards_in_memory_read_as_those_on_the_disk(tmp_path: Path, form: str) -> None:
    if form == "packed":
        packed(tmp_path)
    else:
        pattern = "train/{}.tar" if form == "a folder per split" else "train-{}.tar"
        write_tar(tmp_path / pattern.format(0), samples(3))
        write_tar(tmp_path / pattern.format(1), samples(2, 3))
    store = MemoryStore.copy_of(tmp_path, ROOT)
    assert splits_in(ROOT, store=store) == splits_in(str(tmp_path)) == ["train"]
    local, other = shards(str(tmp_path), LOCAL), shards(ROOT, store)
    other = pickle.loads(pickle.dumps(other))  # as a worker process gets it
    assert len(other) == len(local) > 3
    assert other.fingerprint() == local.fingerprint()
    for index in range(len(local)):
        for got, wanted in zip(other.read(index), local.read(index)):
            assert np.array_equal(got, wanted)
        assert bytes(other.record(index).image) == bytes(local.record(index).image)
        assert other.image_bytes(index, 3, 9) == local.image_bytes(index, 3, 9)
        assert (other.size(index), other.header(index)) == (local.size(index), local.header(index))
    assert np.array_equal(other.stamps()[:, :, 0], local.stamps()[:, :, 0])
    assert (other.stamps()[:, :, 1] > 0).all()
    batches = [
        [batch.images.clone() for step in TrainLoader(
            source, Data(crop=(8, 8)), seed=1, batch_size=2, last_step=3, workers=1, kind=kind
        ) for batch in step]
        for source, kind in ((local, "thread"), (other, "thread"), (other, "process"))
    ]  # fmt: skip
    assert all(bool((a == b).all()) for other_kind in batches[1:] for a, b in zip(batches[0], other_kind))


def test_what_is_wrong_in_a_store_is_one_error(tmp_path: Path) -> None:
    packed(tmp_path)
    store = MemoryStore.copy_of(tmp_path, ROOT)
    with refused("no-shards", split="val"):
        shards(ROOT, store, "val")
    (shard,) = (path for path in store.files if path.endswith(".tar"))
    damaged = bytearray(store.files[shard])
    store.files[shard] = bytes(damaged[:-512])
    with refused("shard-size-differs", file=shard):
        shards(ROOT, store)
    damaged[700] ^= 1
    store.files[shard] = bytes(damaged)
    ((path, _),) = shards(ROOT, store).verify()
    assert path == shard
    del store.files[shard]
    with refused("file-unreadable", file=shard):
        shards(ROOT, store)


def test_stamps_of_single_files_come_from_the_store() -> None:
    store = MemoryStore({"a.png": b"12345", "b.png": b"1"})
    found = stamps([Entry("a.png", "b.png", {}), Entry("b.png", None, {})], store)
    assert found[:, :, 0].tolist() == [[5, 1], [1, 0]]
    assert found[1, 1].tolist() == [0, 0]
    assert found[0, 0, 1] == zlib.crc32(b"12345")


def test_the_local_disk_refuses_what_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "folder").mkdir()
    (tmp_path / ".hidden.tar").touch()
    for name, kind in (("pipe", "a FIFO"), ("folder", "a folder")):
        with refused("file-not-regular", found=kind):
            LOCAL.read(str(tmp_path / name))
        with refused("file-not-regular", found=kind), LOCAL.open(str(tmp_path / name)):
            pass
    assert LOCAL.read(str(tmp_path / "file"), 1, 3) == b"234"
    assert LOCAL.read(str(tmp_path / "file"), 2) == b"345"
    with refused("file-ends-early", found=5, expected=6):
        LOCAL.read(str(tmp_path / "file"), 3, 3)
    assert LOCAL.list(str(tmp_path), "/") == ["folder/"]
    assert LOCAL.list(str(tmp_path), "e") == ["file"]  # the FIFO "pipe" is not a file
    assert LOCAL.list(str(tmp_path), ".tar") == LOCAL.list(str(tmp_path / "gone"), ".tar") == []
    assert pickle.loads(pickle.dumps(LOCAL)) is LOCAL
