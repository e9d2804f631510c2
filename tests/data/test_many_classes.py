"""Tests of masks with more than 254 classes, which have 16 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated_sets import coco, masks_of, opened
from conftest import refused
from data_files import batches, ids, packed, picture, quiet, run_check, smooth
from PIL import Image

from segtrain.config import Data
from segtrain.data.audit.audit import audit
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.labels.space import plain_space
from segtrain.data.shards.pack_sample import Packing
from segtrain.data.train_loader import EvalLoader, TrainLoader
from segtrain.errors import DataError

FIRST, CLASSES = 280, 300  # the classes in the masks are the last ones
SIZE = (40, 56)


def folders(root: Path, first: int, void: int, kind: Any) -> Dataset:
    """The same seven images and masks, with the 20 classes from ``first`` on."""
    rng = np.random.default_rng(0)
    for part in ("images/train", "masks/train"):
        (root / part).mkdir(parents=True)
    for seed in range(7):
        Image.fromarray(smooth(seed)).save(root / f"images/train/{seed}.jpg", quality=95)
        mask = np.kron(rng.integers(first, first + 20, (5, 7)), np.ones((8, 8)))
        mask[:3, :9] = void
        Image.fromarray(mask.astype(kind)).save(root / f"masks/train/{seed}.png")
    names = tuple(map(str, range(first + 20)))
    pairs = (first, first + 1)
    return open_dataset(
        Data(layout="folders", root=str(root), classes=names, flip_pairs=[pairs]), "train"
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Dataset]:
    root = tmp_path_factory.mktemp("many")
    return (
        folders(root / "few", 0, 255, np.uint8),
        folders(root / "many", FIRST, 65535, np.uint16),
    )


def small_ids(masks: np.ndarray) -> np.ndarray:
    assert masks.dtype == np.uint16
    return np.where(masks == 65535, 255, masks - FIRST).astype(np.uint8)


@pytest.mark.parametrize("count", [254, 255, 256, 300])
def test_every_class_and_void_have_a_value(count):
    space, void = plain_space(tuple(map(str, range(count)))), 255 if count < 256 else 65535
    raw = np.array([[*range(count), void]])
    for kind in (np.uint16, np.int32, *([np.uint8] if count < 256 else [])):
        ids = space.remap(raw.astype(kind))
        assert ids.dtype == (np.uint8 if count == 254 else np.uint16)
        np.testing.assert_array_equal(ids, raw)
    assert len({tuple(color) for color in space.colorize(ids)[0].tolist()}) == count + 1
    assert space.remap(np.array([[count + 2]]), strict=False) == space.unknown
    with refused("mask-ids-unknown", found={300: 1}):
        space.remap(np.array([[300]], np.uint16))


@pytest.mark.parametrize(
    "settings",
    [
        {"scale": (0.3, 2.0), "class_balanced_crop_prob": 0.5},
        {"rotate": 40.0},
        {"cache": "ram"},
        {"scale": (1.0, 1.0), "worker_kind": "process"},
    ],
)
def test_crops_are_those_of_few_classes(both, settings):
    taken = []
    for dataset in both:
        data = Data(crop=(24, 32), **settings)
        with TrainLoader(dataset, data, seed=3, batch_size=5, last_step=4, workers=2) as loader:
            taken.append([(b.images.numpy().copy(), b.masks.numpy().copy()) for (b,) in loader])
    for (image, mask), (other_image, other_mask) in zip(*taken):
        np.testing.assert_array_equal(other_image, image)
        np.testing.assert_array_equal(small_ids(other_mask), mask)


def test_whole_masks_and_counts_are_those_of_few_classes(both):
    masks = []
    for dataset in both:
        with EvalLoader(dataset, [range(4), range(4, 7)]) as loader:
            masks.append([ids.numpy().copy() for _, _, ids in loader])
    for few, many in zip(*masks):
        np.testing.assert_array_equal(small_ids(many), few)
    few, many = (audit(dataset, cache=False) for dataset in both)
    assert (many.pixels[:FIRST].sum(), many.void) == (0, few.void)
    np.testing.assert_array_equal(many.pixels[FIRST:], few.pixels)


@pytest.mark.parametrize("form", ["keep", "raw"])
def test_shards_hold_the_same_ids(both, tmp_path, form):
    many = both[1]
    quiet(many, tmp_path, Packing(form))
    shards = packed(tmp_path, flip_pairs=[(FIRST, FIRST + 1)])
    for index in range(len(many)):
        np.testing.assert_array_equal(shards.read(index)[1], many.read(index)[1])
    assert batches(shards) == batches(many)


def test_categories_of_coco(tmp_path):
    """300 categories: the last ones are drawn, and an unused one keeps its class."""
    box = [2, 2, 12, 2, 12, 10, 2, 10]
    names = [f"c{number:03d}" for number in range(300)]
    coco(tmp_path, [[n % 2, name, box] for n, name in enumerate(names)])
    masks = masks_of(opened(tmp_path))
    for number, mask in enumerate(masks.values()):
        assert mask.dtype == np.uint16
        last = len(names) - 1 + number  # class 0 is the background
        assert sorted(np.unique(mask)) == [0, last]
        assert (mask == last).sum() == 80


def test_unknown_ids_are_named(both, tmp_path):
    dataset = folders(tmp_path, FIRST, 65535, np.uint16)
    mask = tmp_path / "masks/train/3.png"
    pixels = np.array(Image.open(mask))
    pixels[20, 5:9] = 40000
    Image.fromarray(pixels).save(mask)
    with pytest.raises(DataError, match=r"3\.png: unknown ids 40000 \(4 pixels\)"):
        dataset.read(3)
    assert json.loads(json.dumps(audit(dataset, cache=False).to_dict()))["bad"] == [3]


def test_rare_ids_of_many_classes_are_found_in_all_masks(tmp_path, monkeypatch):
    monkeypatch.setattr("segtrain.data.audit.settled._SOME", 2)
    for number in range(8):
        picture(tmp_path / f"images/{number}.png", seed=number)
        ids(tmp_path / f"masks/{number}.png", (*range(0, 100, 4), 40 + number))
    checked = run_check(tmp_path)
    assert not checked.failed
    assert len(checked.data.classes) == 25 + 6  # 40 and 44 are among the others
