"""Tests of the audit: pixel counts, all faults at once, the cache."""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest
from conftest import refused
from data_files import camvid, ids

from segtrain.config import Data
from segtrain.data.audit.audit import audit, check_before_training, class_weights
from segtrain.data.datasets import open_dataset


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def data(tmp_path):
    return camvid(tmp_path / "set", ("a", "b", "c"))


def broken(root):
    """A split of 30 pairs: a broken pair of each kind at the front, 26 whole ones behind."""
    data = camvid(root, tuple(f"n{i:02d}" for i in range(30)))
    (root / "val" / "n00.jpg").write_bytes(b"")
    whole = (root / "val" / "n01.jpg").read_bytes()
    (root / "val" / "n01.jpg").write_bytes(whole[:-20])
    ids(root / "valannot" / "n02.png", (0, 77))
    ids(root / "valannot" / "n03.png", size=(12, 8))
    return data


@pytest.mark.parametrize("workers", [1, 4])
def test_statistics(data, workers):
    dataset = open_dataset(data, "val")
    masks = np.stack([dataset.read_mask(i) for i in range(3)])
    report = audit(dataset, workers)
    assert report.images == 3
    assert report.sizes == {(12, 16): 3}
    assert not report.faults
    assert report.pixels.dtype == np.int64
    assert report.pixels.tolist() == [int((masks == c).sum()) for c in range(11)]
    assert report.void == int((masks == 255).sum())
    assert report.images_with.tolist() == [3, *[0] * 9, 3]
    assert report.fingerprint == dataset.fingerprint()
    assert any("no pixel of building" in text for text in report.warnings)


def test_a_checksum_of_each_mask_is_kept(data, tmp_path):
    dataset = open_dataset(data, "val")
    expected = [zlib.crc32(dataset.read_mask(index).tobytes()) for index in range(3)]
    for _ in range(2):  # read, then from the cache
        assert audit(dataset).mask_crc.tolist() == expected
    (tmp_path / "set/val/b.jpg").write_bytes(b"")
    assert audit(dataset).mask_crc.tolist() == [expected[0], 0, expected[2]]


def test_all_faults_at_once(tmp_path):
    dataset = open_dataset(broken(tmp_path / "set"), "val")
    report = audit(dataset)
    found = {os.path.basename(file): message for file, message in report.faults}
    assert sorted(found) == ["n00.jpg", "n01.jpg", "n02.png", "n03.png"]
    assert "0 bytes" in found["n00.jpg"]
    assert "ends early" in found["n01.jpg"]
    assert "77 (96 pixels)" in found["n02.png"]
    assert "12 x 8" in found["n03.png"]
    assert report.images == 30
    assert all(message in report.table() for message in found.values())


def test_training_is_refused_with_one_error(tmp_path):
    dataset = open_dataset(broken(tmp_path / "set"), "val")
    with refused("samples-faulty", "n03.png", faults=4):
        check_before_training(dataset)
    for index in range(4, 30):
        ids(tmp_path / "set" / "valannot" / f"n{index:02d}.png", (0, 99))
    with refused("samples-faulty", faults=30) as caught:
        check_before_training(dataset)
    with refused("samples-faulty", samples=30):
        check_before_training(dataset, faults="skip")  # nothing would be left
    _, *lines, _ = str(caught.value).splitlines()
    assert len(lines) == 4  # one for each kind: 27 masks have unknown ids
    (unknown,) = [line for line in lines if "; 26 more like this: " in line]
    assert [name in unknown for name in ("n02.png", "n04.png", "n05.png", "n06.png")] == [
        True,
        True,
        True,
        False,
    ]


def test_a_split_of_void_is_refused(tmp_path):
    data = camvid(tmp_path / "set")
    for name in "ab":
        ids(tmp_path / "set" / "valannot" / f"{name}.png", (11,))
    assert any(
        "2 masks without a class" in text for text in audit(open_dataset(data, "val")).warnings
    )
    with refused("split-void", split="val"):
        check_before_training(open_dataset(data, "val"))


def test_statistics_are_kept_until_a_file_changes(data, cache, tmp_path, monkeypatch):
    dataset = open_dataset(data, "val")
    first = audit(dataset)
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr("segtrain.data.audit.audit._scan", lambda *_: pytest.fail("read again"))
    again = audit(dataset)
    assert again.to_dict() == first.to_dict()
    check_before_training(dataset)
    monkeypatch.undo()
    monkeypatch.setenv("SEGTRAIN_CACHE", str(cache))
    mask = ids(tmp_path / "set" / "valannot" / "a.png", (0, 10, 9))
    os.utime(mask, ns=(1, 1))
    assert audit(dataset).pixels[9] > 0


def test_faulty_splits_are_kept_too(tmp_path, monkeypatch):
    dataset = open_dataset(broken(tmp_path / "set"), "val")
    first = audit(dataset)
    assert first.bad.tolist() == [0, 1, 2, 3]
    assert first.sizes == {(12, 16): 26}
    with monkeypatch.context() as patch:
        patch.setattr("segtrain.data.audit.audit._scan", lambda *_: pytest.fail("read again"))
        assert audit(dataset).to_dict() == first.to_dict()
        with refused("samples-faulty", faults=4, samples=4):
            check_before_training(dataset)
        assert check_before_training(dataset, faults="skip").bad.tolist() == [0, 1, 2, 3]
    ids(tmp_path / "set" / "valannot" / "n02.png", (0, 1, 2))
    assert audit(open_dataset(broken_data(tmp_path), "val")).bad.tolist() == [0, 1, 3]


def broken_data(tmp_path):
    return Data(layout="camvid", root=str(tmp_path / "set"))


def test_faults_of_reading_are_not_kept(data, tmp_path, cache):
    dataset = open_dataset(data, "val")
    path = tmp_path / "set" / "val" / "b.jpg"
    content = path.read_bytes()
    os.unlink(path)
    assert [os.path.basename(file) for file, _ in audit(dataset).faults] == ["b.jpg"]
    assert not list(cache.glob("audit-*"))
    path.write_bytes(content)
    assert not audit(dataset).faults


def test_a_damaged_cache_is_replaced_and_one_that_cannot_be_written_is_told(data, cache):
    dataset = open_dataset(data, "val")
    report = audit(dataset)
    next(cache.iterdir()).write_text('{"name": 1}')
    assert audit(dataset).to_dict() == report.to_dict()
    assert '"mask_crc"' in next(cache.iterdir()).read_text()
    for path in cache.iterdir():
        path.unlink()
    cache.rmdir()
    cache.write_text("a file where the folder should be")
    report = audit(dataset)
    assert "SEGTRAIN_CACHE" in report.notes[-1]
    assert report.images == 3


def test_class_weights():
    assert class_weights([100, 25, 400, 0], 0.5).tolist() == [1.0, 2.0, 0.5, 1.0]
    assert class_weights([100, 25, 400, 0], 0.0).tolist() == [1.0] * 4
    assert class_weights([0, 0]).tolist() == [1.0, 1.0]
    assert class_weights(np.array([1, 3])).dtype == np.float32


def test_generated_scenes_are_audited_too():
    report = audit(open_dataset(Data(scenes=6, scene_size=(48, 64)), "train"))
    assert report.pixels.sum() + report.void == 6 * 48 * 64
    assert not report.faults
    wrong = Data(scenes=4, scene_size=(48, 64), classes=("x",), label_map={0: 0})
    assert len(audit(open_dataset(wrong, "train")).faults) == 4
