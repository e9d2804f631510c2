"""Tests of masks as tools and data sets store them: their class tables, codes, and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segtrain.data.audit.check import check_folder, settings_of
from segtrain.data.datasets import open_dataset


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
def test_class_tables_beside_the_data_are_no_lists(name: str, tmp_path: Path) -> None:
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


def test_images_and_masks_of_one_folder_have_an_ending_each(tmp_path: Path) -> None:
    for number in range(3):
        picture(tmp_path / f"train/{number}_sat.jpg")
        picture(tmp_path / f"train/{number}_mask.png", np.zeros((4, 6), np.uint8))
        picture(tmp_path / f"valid/{number}_sat.jpg")  # DeepGlobe keeps these masks to itself
    data, splits = settings_of(str(tmp_path), [])
    assert (data.pair, splits) == (("{name}_sat.jpg", "{name}_mask.png"), ("train",))


def test_an_ignored_first_class_that_masks_store_as_255_is_not_counted(tmp_path: Path) -> None:
    """COCO-Stuff: the third class of the file has the id 2, and some classes never occur."""
    names = ["unlabeled", "person", "bicycle", "car", "rock"]
    (tmp_path / "labels.txt").write_text("".join(f"{n}: {t}\n" for n, t in enumerate(names)))
    for split in ("train", "val"):
        picture(tmp_path / f"images/{split}/a.png")
        mask = np.array([[0, 0, 2, 2, 255, 2]] * 4, np.uint8)
        picture(tmp_path / f"stuffthingmaps/{split}/a.png", mask)
    (finding,) = (f for f in check_folder(str(tmp_path), None, []).reports[0].findings if f.fatal)
    assert finding.settings == {"data.label_map": {0: 0, 1: 1, 2: 2, 3: 3}}
    assert [settings["data.label_map"][0] for _, settings in finding.others] == [-1]
