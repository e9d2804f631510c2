"""Tests of annotations with a file per image, and of those of VIA."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from annotated_sets import FORMATS, masks_of, needs_formats, opened, outline, referenced
from conftest import refused
from PIL import Image

# The folder, overrides, the image's name, the reference, and reference id -> class name. The tools
# fill polygons up to half a pixel further on all sides.
SAMPLES = [
    (
        "yolo-seg",
        ("data.split=train",),
        "scene",
        "mask.png",
        {1: "car", 2: "road", 3: "traffic sign"},
    ),
    (
        "yolo-seg-roboflow",
        (),
        "group0277_jpeg.rf.30f2fdc0fe3603d780f2213dcff07315",
        "mask.png",
        {1: "cat"},
    ),
]


@needs_formats
@pytest.mark.parametrize(("folder", "overrides", "image", "reference", "names"), SAMPLES)
def test_masks_differ_from_those_of_the_tools_along_outlines(
    folder: str, overrides: tuple[str, ...], image: str, reference: str, names: dict[int, str]
) -> None:
    dataset = opened(FORMATS / folder, *overrides)
    expected = referenced(dataset, FORMATS / folder / reference, names)
    mask = masks_of(dataset)[image]
    assert set(np.unique(mask)) == set(np.unique(expected))
    assert np.count_nonzero(mask != expected) <= 0.55 * outline(expected)


def pictures(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 10), (9, 9, 9)).save(root / path)


def yolo(root: Path, labels: dict[str, str], names: str = "names: [car, road]") -> None:
    """A YOLO set. labels: path below labels/ -> rows."""
    for path, rows in labels.items():
        pictures(root, f"images/{path}.png")
        (root / f"labels/{path}.txt").parent.mkdir(parents=True, exist_ok=True)
        (root / f"labels/{path}.txt").write_text(rows)
    (root / "data.yaml").write_text(names)


CAR, BOX = "0 0.1 0.2 0.5 0.2 0.5 0.8 0.1 0.8", "1 0.5 0.5 0.2 0.2"


def test_yolo_labels_are_those_of_their_split_and_image(tmp_path: Path) -> None:
    # Other splits have images of the same names, and the first files are empty.
    empty = {f"train/{number:02}": "" for number in range(10)}
    yolo(tmp_path, {**empty, "test/a.b": "", "train/a": "", "train/a.b": f"{CAR}\n{BOX}\n"})
    pictures(tmp_path, "images/train/new.png")
    dataset = opened(tmp_path)
    assert dataset.entries[10].image.endswith("images/train/a.b.png")
    mask = masks_of(dataset)["a.b"]
    assert dataset.labels.names == ("background", "car", "road")
    assert (mask == 1).nonzero()[0].size == (mask[2:8, 2:10] == 1).sum() == 48
    assert not masks_of(dataset)["a"].any()
    assert "new" not in masks_of(dataset)
    assert sum("box without an area" in note for note in dataset.notes) == 1


def test_yolo_folders_below_a_split_are_read_together(tmp_path: Path) -> None:
    rows = {"train/north/a": CAR, "train/south/a": CAR.replace("0 ", "1 ", 1), "val/north/b": CAR}
    yolo(tmp_path, rows)
    masks = masks_of(opened(tmp_path))
    assert (masks["north/a"].max(), masks["south/a"].max()) == (1, 2)


@pytest.mark.parametrize(
    ("rows", "names", "code"),
    [
        (BOX, "names: [car, road]", "boxes-alone"),
        (CAR.replace("0 ", "2 ", 1), "names: [car, road]", "annotation-invalid"),
        (f"{CAR} 0.5", "names: [car, road]", "annotation-invalid"),
        (CAR.replace("0.5", "50"), "names: [car, road]", "annotation-invalid"),
        (CAR.replace("0.5", "nan"), "names: [car, road]", "annotation-invalid"),
        (CAR, "names: car", "annotation-invalid"),
        (CAR, "names: [car]\nkpt_shape: [17, 3]", "annotation-invalid"),
        (CAR, "nc: 2", "class-names-missing"),
    ],
)
def test_yolo_labels_without_areas_or_classes_are_refused(
    tmp_path: Path, rows: str, names: str, code: str
) -> None:
    yolo(tmp_path, {"train/a": rows}, names)
    with refused(code):
        opened(
            tmp_path,
            "data.layout=yolo",
            "data.annotations=labels/train",
            "data.images=images/train",
        )


def test_yolo_boxes_beside_masks_are_no_rival_of_them(tmp_path: Path) -> None:
    yolo(tmp_path, {"a": BOX, "b": BOX}, "names: [car, road]\ntrain: images\nval: images")
    for name in "ab":
        pictures(tmp_path, f"masks/{name}.png")
    assert opened(tmp_path, "data.classes=[none, car]").root == str(tmp_path)
    (tmp_path / "labels/c.txt").write_text(CAR)
    pictures(tmp_path, "images/c.png")
    with refused("layouts-ambiguous"):
        opened(tmp_path)
    dataset = opened(tmp_path, "data.layout=yolo", "data.annotations=labels", "data.images=images")
    assert sum("val is train" in note for note in dataset.notes) == 1
