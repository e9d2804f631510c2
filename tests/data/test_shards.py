"""Tests that shards of any writer are read right in little memory, and that damage gives one
error.
"""

from __future__ import annotations

import io
import struct
import tarfile
import tracemalloc
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from conftest import refused
from data_files import sample_names

from segtrain.config import Data
from segtrain.data import storage
from segtrain.data.datasets import open_dataset
from segtrain.data.index.detect import detect
from segtrain.data.shards import index as shard_index
from segtrain.data.shards import tar
from segtrain.data.shards.index import Description, Shard, ShardSpan
from segtrain.data.shards.reader import ShardDataset, array
from segtrain.errors import ConfigError, DataError

CLASSES = ("a", "b", "c")


def png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", pixels[..., ::-1] if pixels.ndim == 3 else pixels)[1].tobytes()


def npy(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def pixels(seed: int, size: tuple[int, int] = (10, 14)) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (*size, 3), np.uint8), draw.integers(0, 3, size, np.uint8)


def write_tar(path: Path, files: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as out:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return path


def samples(
    count: int, first: int = 0, image: str = "png", mask: str = "mask.png"
) -> list[tuple[str, bytes]]:
    files = []
    for seed in range(first, first + count):
        picture, ids = pixels(seed)
        files += [(f"{seed:04d}.{image}", png(picture)), (f"{seed:04d}.{mask}", png(ids))]
    return files


def opened(root: Path, split: str = "train", **settings: object) -> ShardDataset:
    data = Data(**{"layout": "shards", "root": str(root), "classes": CLASSES, **settings})
    dataset = open_dataset(data, split)
    assert isinstance(dataset, ShardDataset)
    return dataset


@pytest.mark.parametrize(
    ("form", "mask"),
    [
        (tarfile.USTAR_FORMAT, "mask.png"),
        (tarfile.PAX_FORMAT, "seg.png"),
        (tarfile.GNU_FORMAT, "label.png"),
    ],
)
def test_shards_of_other_tools(tmp_path, form, mask):
    write_tar(tmp_path / "train-0.tar", samples(3, mask=mask), form)
    write_tar(tmp_path / "train-1.tar", samples(2, 3, mask=mask), form)
    write_tar(tmp_path / "val-0.tar", samples(1, 9, mask=mask), form)
    data, splits = detect(str(tmp_path))
    assert (data.layout, splits) == ("shards", ("train", "val"))
    dataset = opened(tmp_path)
    assert sample_names(dataset) == [f"{seed:04d}" for seed in range(5)]
    assert dataset.entries[4].image == f"{tmp_path}/train-1.tar: 0004.png"
    for index in range(5):
        for got, wanted in zip(dataset.read(index), pixels(index)):
            assert np.array_equal(got, wanted)
        assert dataset.size(index) == (10, 14)
    assert len(opened(tmp_path, "val")) == 1
    with pytest.raises(ConfigError, match=r"data.classes is empty"):
        opened(tmp_path, classes="")


def test_folders_of_shards_plain_pairs_and_long_names(tmp_path):
    deep = "/".join(["a_long_folder_name"] * 12) + "/ünï"
    picture, ids = pixels(1)
    files = [
        (f"{deep}.jpg", cv2.imencode(".jpg", picture)[1].tobytes()),
        (f"{deep}.png", png(ids)),
        (f"{deep}.json", b"{}"),
    ]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        write_tar(tmp_path / "val" / f"{form}.tar", [("readme.txt", b"hello"), *files], form)
    dataset = opened(tmp_path, "val")
    assert sample_names(dataset) == [deep, deep]
    assert np.array_equal(dataset.read_mask(1), ids)
    assert dataset.read_image(0).shape == picture.shape


def test_a_foreign_index_is_kept_until_a_shard_changes(tmp_path, monkeypatch):
    write_tar(tmp_path / "train-0.tar", samples(3))
    first = opened(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("segtrain.data.shards.foreign.members", None)  # a second walk would fail
        assert opened(tmp_path).fingerprint() == first.fingerprint()
        assert opened(tmp_path).table.path == first.table.path
    write_tar(tmp_path / "train-0.tar", samples(2))
    second = opened(tmp_path)
    assert len(second) == 2
    assert second.fingerprint() != first.fingerprint()


def test_a_limit_chooses_the_samples_that_files_would(tmp_path):
    write_tar(tmp_path / "train-0.tar", samples(7))
    dataset = opened(tmp_path, limit=3)
    assert sample_names(dataset) == [f"{k * 7 // 3:04d}" for k in range(3)]
    assert np.array_equal(dataset.read_mask(1), pixels(2)[1])
    assert dataset.stamps().shape == (3, 2, 2)
    assert dataset.fingerprint() != opened(tmp_path).fingerprint()
    assert [entry.meta["name"] for entry in dataset.entries[1:]] == ["0002", "0004"]
    assert dataset.entries[-1].meta["name"] == "0004"
    with pytest.raises(IndexError):
        dataset.entries[3]


def test_arrays_are_views(tmp_path):
    picture, ids = pixels(0)
    files = [
        ("a.npy", npy(picture)),
        ("a.mask.npy", npy(ids)),
        ("b.npy", npy(picture)),
        ("b.mask.npy", npy(ids.astype(np.int64))),
    ]
    path = write_tar(tmp_path / "train-0.tar", files)
    dataset = opened(tmp_path)
    found = dataset.record(0)
    whole = np.frombuffer(
        storage.LOCAL.view(str(tmp_path / "train-0.tar"), 0, path.stat().st_size), np.uint8
    )
    assert np.shares_memory(found.image, whole)
    assert np.shares_memory(found.mask, whole)
    assert not found.image.flags.writeable
    assert np.array_equal(found.image, picture)
    assert (found.ids, dataset.record(1).ids) == ("raw", "train")
    assert np.array_equal(dataset.record(1).mask, ids)
    assert dataset.size(1) == (dataset.header(1).height, dataset.header(1).width) == (10, 14)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (npy(np.zeros((4, 4), np.float32)), "npy-unreadable"),
        (npy(np.asfortranarray(np.zeros((4, 5), np.uint8))), "npy-unreadable"),
        (npy(np.zeros((4, 4), np.uint8))[:-1], "npy-size-differs"),
        (npy(np.zeros((0, 4), np.uint8)), "npy-size-differs"),
        (b"\x93NUMPY\1\0\xff\xff", "npy-unreadable"),
        (b"", "npy-unreadable"),
        (b"\x93NUMPY\1\0\x10\0{'descr': '|u1'}", "npy-unreadable"),
        (npy(np.zeros((4, 4), np.uint8)).replace(b"(4, 4)", b"(9, 9)"), "npy-size-differs"),
    ],
)
def test_arrays_that_are_refused(content, code):
    with refused(code, file="x.npy"):
        array(memoryview(content), "x.npy")


def test_samples_that_are_not_whole_are_all_named(tmp_path):
    files = dict(samples(9))
    for name in ("0002.mask.png", "0004.mask.png", "0006.png"):
        del files[name]
    write_tar(tmp_path / "train-0.tar", list(files.items()))
    faults = [
        f"{tmp_path}/train-0.tar: {fault}"
        for fault in (
            "0002 (without a mask: png)",
            "0004 (without a mask: png)",
            "0006 (without an image: mask.png)",
        )
    ]
    with refused("samples-incomplete", split="train", found=faults):
        opened(tmp_path)


def test_damaged_tars(tmp_path):
    path = write_tar(tmp_path / "train-0.tar", samples(3))
    whole = path.read_bytes()
    used = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    for content, code in (
        (b"", "tar-ends-early"),
        (whole[: used // 2], "tar-ends-early"),
        (whole[:used], "tar-ends-early"),
        (b"\x1f\x8b" + whole, "tar-header"),
        (whole[:512] + b"\xff" * 512 + whole[1024:], None),
        (whole + whole, "tar-concatenated"),
        (whole[:124] + b"99999999999\0" + whole[136:], "tar-header"),
    ):
        path.write_bytes(content)
        if code is None:  # damage inside a picture: reading it says so
            dataset = opened(tmp_path)
            with pytest.raises(DataError, match=r"train-0.tar: 0000.png"):
                dataset.read(0)
            continue
        with refused(code, file=str(path)):
            opened(tmp_path)
    path.unlink()
    (tmp_path / "train-0.tar.gz").write_bytes(b"-")
    with refused("shards-compressed", found="train-0.tar.gz"):
        opened(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        opened(tmp_path / "gone")


@pytest.mark.parametrize(
    "order", [[0, 1, 2, 3, 0, 1], [0, 0, 1]], ids=["a sample again", "a file again"]
)
def test_a_key_that_stands_twice_in_a_shard_is_refused(tmp_path, order):
    """It would count as two samples, or hide a file."""
    files = samples(2)
    write_tar(tmp_path / "train-0.tar", [files[k] for k in order])
    with refused(
        "samples-incomplete", split="train", found=[f"{tmp_path}/train-0.tar: 0000 (twice)"]
    ):
        opened(tmp_path)


def members(content: bytes) -> list[tar.Member]:
    return list(tar.members(lambda at, size: memoryview(content)[at : at + size], len(content), ""))


def packed(root: Path, count: int = 4) -> Path:
    """A set with an index of ours, made by hand."""
    path = write_tar(root / "train-000000.tar", samples(count))
    found = {member.name: member for member in members(path.read_bytes())}
    places = [
        ShardSpan(
            f"{k:04d}",
            0,
            *(
                (
                    "png" if e == "png" else e,
                    found[f"{k:04d}.{e}"].offset,
                    found[f"{k:04d}.{e}"].size,
                )
                for e in ("png", "mask.png")
            ),
            (10, 14),
        )
        for k in range(count)
    ]
    labels = open_dataset(Data(layout="shards", root=str(root), classes=CLASSES), "train").labels
    what = Description("train", "", (Shard(path.name, path.stat().st_size, "0" * 64),), (), labels)
    shard_index.write(str(root / "train.index"), what, places)
    return path


def test_an_index_that_is_damaged_or_does_not_fit(tmp_path):
    shard = packed(tmp_path)
    index = tmp_path / "train.index"
    whole, content = index.read_bytes(), shard.read_bytes()
    assert np.array_equal(opened(tmp_path, classes="").read(3)[1], pixels(3)[1])
    # the index holds another checksum
    assert [path for path, _ in opened(tmp_path).verify()] == [str(shard)]
    version = whole.replace(b'"version": 1', b'"version": 9')
    version = (
        struct.pack("<24sII", *struct.unpack("<24sI", version[:28]), zlib.crc32(head(version)))
        + version[32:]
    )
    for damaged, code in (
        (whole[:20], "index-unknown-format"),
        (whole + b"-", "index-cut-off"),
        (whole.replace(b'"split"', b'"splat"'), "index-damaged"),
        (version, "index-version"),
        (b"", "file-empty"),
    ):
        index.write_bytes(damaged)
        with refused(code, file=str(index)):
            opened(tmp_path)
    index.write_bytes(whole)
    table = shard_index.load(str(index))
    rows, names, what = np.array(table.rows), bytes(table.names), table.description
    for column, value, code in (
        ("image_at", 1 << 40, "file-ends-early"),
        ("image_at", (1 << 64) - 1, "file-ends-early"),
        ("image_kind", 9, "index-row-wrong"),
        ("height", 11, None),
    ):
        changed = rows.copy()
        changed[column][2] = value
        start = len(whole) - rows.nbytes - 16
        index.write_bytes(whole[:start] + changed.tobytes() + whole[start + rows.nbytes :])
        with refused("index-damaged", f"delete {index} and pack again", file=str(index)):
            opened(tmp_path)
        # wrong, but with the checksum of what is there
        shard_index.write_arrays(str(index), what, changed, names)
        dataset = opened(tmp_path)
        if code:
            with refused(code):
                dataset.read(2)
        else:
            dataset.read(2)
    index.write_bytes(whole)
    shard.write_bytes(content[:-512])
    with refused(
        "shard-size-differs", file=str(shard), found=len(content) - 512, expected=len(content)
    ):
        opened(tmp_path)
    shard.unlink()
    with refused("file-unreadable", file=str(shard)):
        opened(tmp_path)


def head(content: bytes) -> bytes:
    return content[32 : 32 + struct.unpack("<I", content[24:28])[0]]


def test_random_damage_is_one_error_and_never_a_crash(tmp_path):
    shard = packed(tmp_path, 2)
    index, draw = tmp_path / "train.index", np.random.default_rng(0)
    whole = {shard: shard.read_bytes(), index: index.read_bytes()}
    messages = []
    for _ in range(200):
        for path, content in whole.items():
            damaged = bytearray(content)
            for _ in range(draw.integers(1, 6)):
                damaged[draw.integers(0, len(damaged))] = draw.integers(0, 256)
            path.write_bytes(
                damaged if draw.random() < 0.8 else damaged[: draw.integers(1, len(damaged))]
            )
        if draw.random() < 0.5:
            index.unlink()  # the tar is walked
        try:
            dataset = opened(tmp_path)
            for k in range(len(dataset)):
                dataset.read(k), dataset.record(k), dataset.size(k)
        except (DataError, ConfigError) as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert all(str(tmp_path) in message and "\n" not in message for message in messages)


def test_an_index_is_mapped_and_not_copied(tmp_path):
    """All processes of a host share its pages, and none has a list of names."""
    count = 200_000
    shard = write_tar(tmp_path / "train-000000.tar", samples(1))
    rows = np.zeros(count, shard_index.ROW)
    rows["name_size"], rows["name_at"], rows["height"], rows["width"] = (
        11,
        np.arange(count) * 11,
        1024,
        2048,
    )
    what = Description("train", "", (Shard(shard.name, shard.stat().st_size),), ("jpg",))
    shard_index.write_arrays(
        str(tmp_path / "train.index"), what, rows, b"".join(b"city_%06d" % k for k in range(count))
    )
    tracemalloc.start()
    dataset = opened(tmp_path)
    assert dataset.entries[count - 1].meta["name"] == "city_199999"
    assert dataset.size(count - 1) == (1024, 2048)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < rows.nbytes / 4


def test_mappings_are_few_and_follow_the_file(tmp_path, monkeypatch):
    storage._mapped.cache_clear()
    before = len(storage._alive)
    count = storage._MAPS + 5
    for k in range(count):
        (tmp_path / f"{k}").write_bytes(bytes([k]) * 4096)
    views = [storage.LOCAL.view(str(tmp_path / f"{k}"), 1, 3) for k in range(count)]
    assert storage._mapped.cache_info().currsize == storage._MAPS
    # those dropped live on where used
    assert [bytes(view) for view in views] == [bytes([k]) * 3 for k in range(count)]
    assert len(storage._alive) >= count
    del views
    assert len(storage._alive) <= before + storage._MAPS
    monkeypatch.setattr(storage, "_RESIDENT", 1)
    # also after its pages were given back
    assert bytes(storage.LOCAL.view(str(tmp_path / "7"), 1, 3)) == b"\7\7\7"
    with storage.writing(str(tmp_path / "7")) as stream:
        stream.write(b"other" * 1000)
    assert bytes(storage.LOCAL.view(str(tmp_path / "7"), 0, 5)) == b"other"
    with refused("file-ends-early", file=str(tmp_path / "7"), found=5000, expected=5001):
        storage.LOCAL.view(str(tmp_path / "7"), 4999, 2)
    with refused("file-unreadable", file=str(tmp_path / "absent")):
        storage.LOCAL.view(str(tmp_path / "absent"), 0, 1)
    assert storage.LOCAL.read(str(tmp_path / "7"), 5, 5) == b"other"
    with refused("file-ends-early", found=5000, expected=5001):
        storage.LOCAL.read(str(tmp_path / "7"), 4999, 2)


def test_a_file_in_a_folder_that_is_none_is_not_written(tmp_path):
    (tmp_path / "x").touch()
    with refused("file-unwritable"), storage.writing(str(tmp_path / "x" / "y")):
        pass
    assert storage.LOCAL.list(str(tmp_path), "") == ["x"]
