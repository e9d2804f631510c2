"""Tests of one mask file per object or class of an image."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import numpy as np
from conftest import refused
from data_files import ids, picture, run_check, sample_names
from PIL import Image

from segtrain.config import Data
from segtrain.data.audit.check import settings_of
from segtrain.data.datasets import open_dataset
from segtrain.data.index.detect import detect


def nuclei(root: Path) -> Data:
    """Two images of two nuclei each, a folder per image."""
    for name in ("3fa", "d01"):
        picture(root / f"stage1_train/{name}/images/{name}.png")
        for number in range(2):
            values = (255 * (number == 0), 0, 0, 255 * (number == 1))
            ids(root / f"stage1_train/{name}/masks/{number}{name}.png", values)
    data = detect(str(root))[0]
    assert (data.layout, data.images, data.annotations) == ("objects", *["stage1_{split}"] * 2)
    return data


def test_a_folder_per_image(tmp_path):
    dataset = open_dataset(nuclei(tmp_path), "train")
    assert sample_names(dataset) == ["3fa/images/3fa", "d01/images/d01"]
    assert dataset.labels.names == ("background", "object")
    assert dataset.read_mask(0)[0, :4].tolist() == [1, 0, 0, 1]
    assert np.array_equal(np.asarray(dataset.record(0).mask), dataset.read_mask(0))
    assert len(dataset.ranges(0)) == 3


def test_a_change_of_any_mask_shows(tmp_path):
    data = nuclei(tmp_path)
    dataset = open_dataset(data, "train")
    before = dataset.stamps()
    os.utime(tmp_path / "stage1_train/d01/masks/1d01.png", ns=(1, 1))
    changed = (dataset.stamps([0, 1]) != before).any(axis=(1, 2))
    assert changed.tolist() == [False, True]


def test_masks_that_do_not_fit_are_refused(tmp_path):
    data = nuclei(tmp_path)
    dataset, mask = open_dataset(data, "train"), tmp_path / "stage1_train/3fa/masks/03fa.png"
    ids(mask, (0, 1), (12, 15))
    with refused("mask-size-differs"):
        dataset.read_mask(0)
    ids(mask, (0, 1, 2))
    with refused("mask-not-of-two-values"):
        dataset.read_mask(0)
    mask.unlink()
    with refused("file-unreadable"):
        dataset.read_mask(0)
    (tmp_path / "stage1_train/3fa/images/3fa.png").unlink()
    with refused("annotated-image-missing"):
        open_dataset(data, "train")


def test_colors_and_jpegs_of_two_values(tmp_path):
    data, folder = nuclei(tmp_path), tmp_path / "stage1_train/3fa/masks"
    disk = np.zeros((12, 16), np.uint8)
    disk[:, 8:] = 255
    Image.fromarray(disk).convert("RGBA").save(folder / "03fa.png")
    (folder / "13fa.png").unlink()
    Image.fromarray(disk).save(folder / "1.jpg")
    assert np.array_equal(open_dataset(data, "train").read_mask(0), disk // 255)


def test_images_without_masks_are_not_background(tmp_path):
    data = nuclei(tmp_path)
    picture(tmp_path / "stage1_train/new/images/new.png")
    dataset = open_dataset(data, "train")
    assert len(dataset) == 2
    assert any("new.png" in note for note in dataset.notes)
    assert len(open_dataset(data.model_copy(update={"absent_mask": "background"}), "train")) == 3


def test_masks_of_two_annotators_are_no_classes(tmp_path):
    for number in range(9):
        picture(tmp_path / f"a{number}.jpg")
        ids(tmp_path / f"a{number}_1stHO.png", (255, 255, 255, 0))
        ids(tmp_path / f"a{number}_2ndHO.png", (0, 255, 255, 0))
    with refused("masks-alike", found=["1stHO", "2ndHO"]) as caught:
        detect(str(tmp_path))
    first = shlex.split(str(caught.value).splitlines()[1])
    assert "data.pair=['{name}.jpg', '{name}_1stHO.png']" in first
    data = settings_of(
        str(tmp_path), [*first, "data.classes=[a, b]", "data.label_map={0: 0, 255: 1}"]
    )[0]
    assert open_dataset(data, "train").read_mask(0)[0].tolist().count(0) > 0
    for number in range(9):  # they differ in most pixels, and one image has no object
        ids(tmp_path / f"a{number}_1stHO.png", (255 * (number > 0), 0, 0, 0))
        ids(tmp_path / f"a{number}_2ndHO.png", (255 * (number > 0), 255, 255, 255))
    with refused("masks-alike") as caught:
        detect(str(tmp_path))
    assert len(caught.value.values["choices"]) == 3
    for number in range(9):  # parts of one image
        ids(tmp_path / f"a{number}_2ndHO.png", (0, 0, 255, 255))
    assert detect(str(tmp_path))[0].layout == "objects"


def test_numbered_masks_of_a_few_images_are_all_read(tmp_path):
    for name in ("b (1)", "b (2)", "b (3)"):
        picture(tmp_path / f"b/{name}.png", seed=3)
        ids(tmp_path / f"b/{name}_mask.png", (255, 0, 0, 0))
    ids(tmp_path / "b/b (2)_mask_1.png", (0, 255, 0, 0))
    pair = "data.pair=['{name}.png', '{name}_mask.png']"
    data = settings_of(str(tmp_path), ["data.images=b", "data.masks=b", pair, "data.classes=[a]"])
    with refused("files-unpaired", "1 of 3 images have several masks"):
        open_dataset(data[0], "all")
    dataset = open_dataset(detect(str(tmp_path))[0], "all")
    assert [dataset.read_mask(row)[0, :4].tolist() for row in (0, 1)] == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
    ]


def test_the_names_of_masks_hold_the_image_the_class_and_a_number(tmp_path):
    for image in ("1000", "1001"):
        picture(tmp_path / f"shapes_train2018/{image}.jpg")
        for number, name in enumerate(("square", "circle")):
            ids(tmp_path / f"parts/{image}_{name}_{number}.png", (255 * number, 255, 0, 0))
    data = detect(str(tmp_path))[0]
    assert (data.layout, data.images, data.annotations) == ("objects", "shapes_train2018", "parts")
    assert open_dataset(data, "all").labels.names == ("background", "circle", "square")


def test_a_mask_of_the_name_beside_numbered_ones_has_two_readings(tmp_path):
    for number in range(3):
        picture(tmp_path / f"images/{number}.png", seed=number)
        ids(tmp_path / f"masks/{number}.png", (0,) * number + (1,))
        ids(tmp_path / f"masks/{number}_18.png", (1,) * number + (0, 0, 1))
    with refused("masks-ambiguous", found=["0_18.png"]) as caught:
        run_check(tmp_path)
    one, objects = (shlex.split(line)[4:] for line in str(caught.value).splitlines()[1:])
    for words, layout in ((one, "folders"), (objects, "objects")):
        checked = run_check(tmp_path, *words)
        assert (checked.data.layout, checked.failed) == (layout, False)
    # Copies of the others say nothing new.
    for number in range(3):
        copy = tmp_path / f"masks/{(number + 1) % 3}.png"
        (tmp_path / f"masks/{number}_18.png").write_bytes(copy.read_bytes())
    checked = run_check(tmp_path)
    assert (checked.data.layout, checked.data.faults, checked.failed) == ("folders", "skip", False)
    assert "masks, such as 0_18.png, are copies of masks of other images" in checked.text()
