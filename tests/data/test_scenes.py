"""Tests that generated scenes depend only on (seed, index), and can be learned."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from segtrain.config import Data
from segtrain.data.datasets import open_dataset
from segtrain.data.labels.presets import SCENES
from segtrain.data.scenes.scene import scene


def test_the_same_arguments_give_the_same_pixels():
    once, other = scene(3, 5), scene(3, 6)
    scene(9, 9)  # nothing carries over
    again = scene(3, 5)
    assert all(np.array_equal(a, b) for a, b in zip(once, again))
    assert not np.array_equal(once[1], other[1])
    assert not np.array_equal(once[1], scene(4, 5)[1])


@pytest.mark.parametrize("size", [(144, 192), (8, 8), (64, 200), (200, 64), (129, 171)])
def test_any_size(size):
    image, mask = scene(0, 1, size)
    assert image.shape == (*size, 3)
    assert mask.shape == size
    assert image.dtype == mask.dtype == np.uint8
    assert set(np.unique(mask)) <= {*range(SCENES.num_classes), 255}


def test_two_sizes_show_the_same_street():
    small, large = scene(1, 2, (72, 96))[1], scene(1, 2, (216, 288))[1]
    shrunk = cv2.resize(large, (96, 72), interpolation=cv2.INTER_NEAREST)
    both = (small != 255) & (shrunk != 255)
    assert np.mean(small[both] == shrunk[both]) > 0.9


def test_every_class_occurs_and_none_is_most_of_the_street():
    masks = [scene(0, index, (72, 96))[1] for index in range(24)]
    values, counts = np.unique(masks, return_counts=True)
    assert list(values) == [*range(SCENES.num_classes), 255]
    assert counts[:-1].max() / counts[:-1].sum() < 0.5
    assert counts[-1] / counts.sum() < 0.1


def test_the_scenes_data_set():
    data = Data(scenes=8, scene_size=(48, 64))
    train, val = open_dataset(data, "train"), open_dataset(data, "val")
    assert (len(train), len(val), train.size(0)) == (8, 2, (48, 64))
    assert not np.array_equal(train.read(0)[1], val.read(0)[1])
    assert np.array_equal(train.read_image(3), train.read(3)[0])
    assert np.array_equal(train.read_mask(3), train.read(3)[1])
    marks = {
        d.fingerprint()
        for d in (train, val, open_dataset(data.model_copy(update={"scenes": 9}), "train"))
    }
    assert len(marks) == 3
    assert open_dataset(data, "train").fingerprint() == train.fingerprint()


def test_scenes_with_fewer_classes():
    mapping = dict.fromkeys(range(7), 0) | {7: 1, 8: 1, 9: -1}
    data = Data(scenes=4, scene_size=(48, 64), classes=("street", "traffic"), label_map=mapping)
    mask = open_dataset(data, "train").read_mask(0)
    assert set(np.unique(mask)) <= {0, 1, 255}
