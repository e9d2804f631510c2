"""Tests of masks as tools and data sets store them: their class tables, codes, and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from data_files import run_check
from PIL import Image

from segtrain.config import Data
from segtrain.data.audit.check import settings_of
from segtrain.data.audit.mask_colors import code_of
from segtrain.data.audit.mask_values import MaskValues
from segtrain.data.datasets import open_dataset
from segtrain.data.pixels.crop import mask_of


def picture(path: Path, values: object = None) -> None:
    """A file of these values, or an RGB image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((4, 6, 3), 9, np.uint8) if values is None else np.array(values)
    Image.fromarray(pixels).save(path)


ROAD, CAR = (128, 64, 128), (64, 0, 128)
TABLES = {
    "class_dict.csv": ("name,r,g,b\nRoad,128,64,128\nVoid,0,0,0\nCar,64,0,128\n", True),
    "label_colors.txt": ("128 64 128\tRoad\n64 0 128\tCar\n0 0 0\tVoid\n", True),
    "train/_classes.csv": ("Pixel Value, Class\n0, Road\n1, Car\n", False),
    "labels.txt": ("Road\nCar\n", False),
}


@pytest.mark.parametrize("name", TABLES)
def test_class_tables_beside_the_data_are_no_lists(name, tmp_path):
    text, colored = TABLES[name]
    picture(tmp_path / "train/a.png")
    values = [[ROAD] * 3 + [CAR] * 3] * 4 if colored else [[0] * 3 + [1] * 3] * 4
    picture(tmp_path / "train_labels/a_L.png", np.array(values, np.uint8))
    (tmp_path / name).write_text(text)
    data, splits = settings_of(str(tmp_path), [])
    assert (data.layout, data.masks, splits) == ("folders", "{split}_labels", ("train",))
    dataset = open_dataset(data, "train")
    assert dataset.labels.names == ("Road", "Car")
    assert dataset.read_mask(0)[0].tolist() == [0, 0, 0, 1, 1, 1]
    # Names in the config keep their own ids.
    own = open_dataset(data.model_copy(update={"classes": ("a", "b", "c")}), "train").labels
    assert own.names == ("a", "b", "c")


def test_images_and_masks_of_one_folder_have_an_ending_each(tmp_path):
    for number in range(3):
        picture(tmp_path / f"train/{number}_sat.jpg")
        picture(tmp_path / f"train/{number}_mask.png", np.zeros((4, 6), np.uint8))
        picture(tmp_path / f"valid/{number}_sat.jpg")  # DeepGlobe keeps these masks to itself
    data, splits = settings_of(str(tmp_path), [])
    assert (data.pair, splits) == (("{name}_sat.jpg", "{name}_mask.png"), ("train",))


def test_an_ignored_first_class_that_masks_store_as_255_is_not_counted(tmp_path):
    """COCO-Stuff: the third class of the file has the id 2, and some classes never occur."""
    names = ["unlabeled", "person", "bicycle", "car", "rock"]
    (tmp_path / "labels.txt").write_text("".join(f"{n}: {t}\n" for n, t in enumerate(names)))
    for split in ("train", "val"):
        picture(tmp_path / f"images/{split}/a.png")
        mask = np.array([[0, 0, 2, 2, 255, 2]] * 4, np.uint8)
        picture(tmp_path / f"stuffthingmaps/{split}/a.png", mask)
    (finding,) = (f for f in run_check(tmp_path).reports[0].findings if f.fatal and f.settings)
    assert finding.settings == {"data.label_map": {0: 0, 1: 1, 2: 2, 3: 3}}
    assert [settings["data.label_map"][0] for _, settings in finding.others] == [-1]


def masks(root: Path, values: np.ndarray) -> Path:
    """A data set of one image."""
    picture(root / "images/a.png")
    picture(root / "masks/a.png", values)
    return root


def dataset_settings(root: Path, *overrides: str) -> Data:
    return settings_of(str(root), list(overrides))[0]


# Stored values -> ids. Two objects of a class have the same id.
CODED = {
    "ade20k": ([[10, 145, 40], [10, 145, 80], [80, 83, 0], [0, 0, 0]], [401, 401, 2131, 0]),
    "mots": ([1001, 1002, 2001, 10000, 0], [1, 1, 2, 255, 0]),
    "cityscapes": ([26000, 26001, 26, 7, 24003], [26, 26, 26, 7, 24]),
    "mapillary": ([3328, 14081, 14082, 6912], [13, 55, 55, 27]),
}


@pytest.mark.parametrize("code", CODED)
def test_coded_ids_are_recognized_and_read(code, tmp_path):
    stored, ids = CODED[code]
    kind = np.uint8 if code == "ade20k" else np.uint16
    root = masks(tmp_path, np.array([stored] * 3, kind))
    picture(root / "images/a.png", np.zeros((3, len(ids), 3), np.uint8))
    checked = run_check(root)
    assert (checked.unnamed, checked.data.mask_code) == (True, code)
    classes = "data.classes=[a, b, c]"
    (finding,) = (f for f in run_check(root, classes).reports[0].findings if f.fatal and f.settings)
    assert finding.settings == {"data.mask_code": code}
    numbers = sorted({*ids} - {255})
    table = ", ".join(f"{raw}: {train % 3}" for train, raw in enumerate(numbers))
    overrides = [classes, f"data.mask_code={code}", f"data.label_map={{{table}}}"]
    dataset = open_dataset(run_check(root, *overrides).data, "all")
    expected = [numbers.index(raw) % 3 if raw != 255 else 255 for raw in ids]
    assert dataset.read_mask(0)[0].tolist() == expected
    assert mask_of(dataset.record(0), dataset.labels)[0].tolist() == expected
    prints = [
        open_dataset(dataset_settings(root, classes, f"data.mask_code={name}"), "all").fingerprint()
        for name in ("none", code)
    ]
    assert prints[0] != prints[1]


@pytest.mark.parametrize(
    "values", [[0, 257, 514, 771], [300, 4711, 12000, 31000, 65000], [256, 512, 1024]]
)
def test_other_deep_values_are_no_codes(values):
    assert code_of(MaskValues(ids=dict.fromkeys(values, 9))) == ""


def test_a_table_of_colors_is_no_code():
    colors = [0x0A1428, 0x140A00, 0x1E0050]  # red is 10, 20, 30
    assert code_of(MaskValues(colors=dict.fromkeys(colors, 9))) == ""


def test_colors_blurred_by_a_lossy_copy_are_cut(tmp_path):
    values = np.array([[[3, 250, 255], [0, 252, 251], [2, 1, 0]]] * 3, np.uint8)
    root = masks(tmp_path, values)
    picture(root / "images/a.png", np.zeros((3, 3, 3), np.uint8))
    (root / "class_dict.csv").write_text("name,r,g,b\nland,0,0,0\nurban,0,255,255\n")
    (finding,) = (f for f in run_check(root).reports[0].findings if f.fatal and f.settings)
    assert finding.settings == {"data.mask_code": "cut"}
    dataset = open_dataset(dataset_settings(root, "data.mask_code=cut"), "all")
    assert dataset.read_mask(0)[0].tolist() == [1, 1, 0]


def test_a_code_of_other_masks_is_refused(tmp_path):
    root = masks(tmp_path, np.zeros((4, 6), np.uint8))
    settings = ("data.classes=[a, b]", "data.mask_code=ade20k")
    with refused("mask-code-differs"):
        open_dataset(dataset_settings(root, *settings), "all").read_mask(0)
    with refused("conflicting-settings"):
        dataset_settings(root, *settings, "data.layout=coco", "data.annotations=a.json")
