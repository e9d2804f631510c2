"""Tests of masks that are drawn from annotations, against masks made by the formats' own libraries
(``../shared/data/formats``) and by pycocotools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated_sets import FORMATS, coco, masks_of, needs_formats, opened, outline, referenced
from conftest import refused
from PIL import Image
from pycocotools import mask as rle

from segtrain.data.annotations.draw import draw, stored_orientation
from segtrain.data.annotations.read import run_lengths
from segtrain.data.audit.check import settings_of
from segtrain.data.datasets import open_dataset
from segtrain.data.index import listing

NAMES = {1: "road", 2: "car", 3: "traffic sign"}
COCO = {1: "road", 2: "traffic sign", 3: "car"}
NUCLEI = "01d44a26f6680c42ba94c9bc6339228579a95d0e2695b149b7cc0c9592b21baf"
ROBOFLOW = "IMG_6040_scaled_0_png_jpg.rf.d88ad66ae49dee1ac56a459c67a15127"
FACADES = {4: "facade", 5: "fence", 8: "street", 10: "vegetation", 11: "window"}
CATS = "group0277_jpeg.rf.30f2fdc0fe3603d780f2213dcff07315"
VIA = "data.paint=file data.layout=via data.images=images data.annotations="
KAGGLE = "data.layout=kaggle-rle data.images=images data.annotations="
NUMBERS, CLASSES, OBJECT = (
    {n: str(n) for n in (1, 2, 3)},
    dict(enumerate(("Road", "Car", "Traffic Sign"), 1)),
    {1: "object"},
)
# The folder, overrides, the image's name, the reference, and reference id -> class name.
EXACT = [
    ("coco-instances", "data.paint=file", "scene", "mask", COCO),
    ("coco-instances", "", "scene", "mask_largest_first", COCO),
    ("coco-instances", "data.paint=void", "scene", "mask_overlap_void", COCO),
    ("coco-instances", "", "nothing", "mask_nothing", {}),
    ("coco-roboflow", "data.paint=file", ROBOFLOW, "mask", FACADES),
    ("folder-per-image", "", f"{NUCLEI}/images/{NUCLEI}", "mask_01d44a26", OBJECT),
    ("cvat-images", "", "frame 1", "mask", NAMES),
    ("label-studio", "", "3f2a9c11-scene", "mask", NAMES),
    ("kaggle-rle", f"{KAGGLE}train_v1.csv", "a1", "mask", NUMBERS),
    ("kaggle-rle", f"{KAGGLE}train_v2.csv", "a1", "mask", NUMBERS),
    ("kaggle-rle", f"{KAGGLE}train_clouds.csv", "a1", "mask", CLASSES),
    ("kaggle-rle", f"{KAGGLE}stage1_train_labels.csv", "a1", "mask_objects", OBJECT),
    ("kaggle-rle", f"{KAGGLE}train_ship_segmentations_v2.csv", "a1", "mask_objects", OBJECT),
]
# These tools fill polygons up to half a pixel further on all sides.
ALONG_OUTLINES = [
    ("yolo-seg", "data.split=train", "scene", "mask", {1: "car", 2: "road", 3: "traffic sign"}),
    ("yolo-seg-roboflow", "", CATS, "mask", {1: "cat"}),
    ("via-kudzu", "", "40", "mask_40", OBJECT),
    ("via", f"{VIA}via_project.json", "scene", "mask", NAMES),
    ("via", f"{VIA}via1_region_data.json", "scene", "mask", NAMES),
    ("via", f"{VIA}via_region_data.csv", "scene", "mask", NAMES),
    ("supervisely", "", "scene", "mask", NAMES),
]


@needs_formats
@pytest.mark.parametrize(
    ("sample", "most"), [*((row, 0) for row in EXACT), *((row, 0.55) for row in ALONG_OUTLINES)]
)
def test_masks_are_those_of_the_tools(sample, most):
    folder, overrides, image, reference, names = sample
    dataset = opened(FORMATS / folder, *overrides.split())
    expected = referenced(dataset, FORMATS / folder / f"{reference}.png", names)
    mask = masks_of(dataset)[image]
    assert set(np.unique(mask)) == set(np.unique(expected))
    assert np.count_nonzero(mask != expected) <= most * outline(expected)


def test_polygons_have_the_pixels_of_pycocotools():
    rng = np.random.default_rng(0)
    size = (75, 99)
    # An edge of it runs through a tie, which pycocotools rounds by its distance to the corner.
    rings = [np.array([[94.0, 68], [14, 54], [58, 69]])]
    for number in range(300):
        corner, spread = rng.uniform(-10, 90, 2), rng.uniform(1, 60)
        ring = corner + rng.uniform(0, spread, (rng.integers(3, 9), 2))
        rings.append(np.round(ring, number % 4))  # of one decimal, they are on ties of the grid
    for ring in rings:
        runs = rle.merge(rle.frPyObjects([ring.ravel().tolist()], *size))
        expected = rle.decode(runs)
        shape = {"name": "a", "polygons": [ring.ravel().tolist()], "holes": []}
        mask = draw([shape], size, {"a": 1}, 0, 255, "file")
        assert np.array_equal(np.zeros(size) if mask is None else mask, expected), ring
        assert mask is not None or not expected.any()


def test_a_mask_turns_as_its_image_is_stored(tmp_path):
    from PIL import ImageOps

    stored = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for orientation in range(1, 9):
        image = Image.fromarray(stored)
        image.getexif()[0x0112] = orientation
        image.save(tmp_path / "a.png", exif=image.getexif())
        upright = np.array(ImageOps.exif_transpose(Image.open(tmp_path / "a.png")))
        assert np.array_equal(stored_orientation(upright, orientation), stored), orientation


BOX = [2, 2, 12, 2, 12, 9, 2, 9]


@contextmanager
def changed(root: Path) -> Iterator[dict[str, Any]]:
    """The content of train.json, to be changed."""
    content = json.loads((root / "train.json").read_text())
    yield content
    (root / "train.json").write_text(json.dumps(content))


def test_classes_are_matched_by_name(tmp_path):
    coco(tmp_path, [[0, "road", BOX], [0, "car", [20, 2, 29, 2, 29, 9]]])
    assert opened(tmp_path).labels.names == ("background", "car", "road")
    both = opened(tmp_path, "data.classes=[road, sky, car]")
    assert both.labels.names == ("road", "sky", "car")
    mask = masks_of(both)["0"]
    # Without a background among the classes, pixels in no shape are ignored.
    assert (mask[3, 3], mask[4, 27], mask[15, 15]) == (0, 2, 255)
    merged = opened(tmp_path, "data.classes=[none, way]", "data.label_map={0: 0, 1: -1, 2: 1}")
    mask = masks_of(merged)["0"]
    assert (mask[3, 3], mask[4, 27], mask[15, 15]) == (1, 255, 0)
    with refused("annotation-class-unknown"):
        opened(tmp_path, "data.classes=[background, car]")


def test_splits_share_one_order_of_classes(tmp_path):
    """Each file may number the classes in its own way."""
    for split in ("train", "val"):
        coco(tmp_path / split, [[0, "car", BOX], [1, "road", BOX]])
    content = (tmp_path / "val/train.json").read_text().replace("road", "lane")
    content = content.replace("car", "road").replace("lane", "car")
    (tmp_path / "val/val.json").write_text(content)
    (tmp_path / "val/train.json").unlink()
    data, splits = settings_of(str(tmp_path), [])
    train, val = (open_dataset(data, split) for split in splits)
    assert train.labels.names == val.labels.names == ("background", "car", "road")
    assert [train.read_mask(n)[3, 3] for n in (0, 1)] == [1, 2]
    assert [val.read_mask(n)[3, 3] for n in (0, 1)] == [2, 1]


def test_what_annotations_lack_is_said(tmp_path):
    coco(tmp_path, [[0, "road", BOX], [1, "road", [5, 5, 6, 6]]], images=3)
    Image.new("RGB", (30, 20)).save(tmp_path / "images/new.png")
    notes = opened(tmp_path).notes
    assert [note.split(":")[0] for note in notes] == [
        "1 image of 3 without a shape",
        "warning",  # the line of 2 points
        "warning",  # new.png has no annotation, and 1.png none that is drawn
    ]
    assert len(opened(tmp_path)) == 2
    assert len(opened(tmp_path, "data.absent_mask=background")) == 4
    with refused("annotation-absent"):
        opened(tmp_path, "data.absent_mask=error")
    Image.new("L", (30, 20)).save(tmp_path / "images/0.bmp")  # maybe the mask of 0.png
    dataset = opened(tmp_path, "data.absent_mask=background")
    assert len(dataset) == 4
    assert any("not read: 0.bmp: are they masks?" in note for note in dataset.notes)
    (tmp_path / "images/1.png").unlink()
    with refused("annotated-image-missing", "leave them out\n  data.faults=skip"):
        opened(tmp_path)
    assert len(opened(tmp_path, "data.faults=skip")) == 2


def test_shapes_of_another_image_are_refused(tmp_path):
    coco(tmp_path, [[0, "road", BOX], [1, "road", [40, 40, 50, 40, 50, 50]]])
    dataset = opened(tmp_path)
    with refused("shapes-outside"):
        dataset.read_mask(1)
    Image.new("RGB", (31, 20)).save(tmp_path / "images/0.png")
    with refused("mask-size-differs"):
        dataset.read_mask(0)


def test_a_changed_annotation_file_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "_FEW", 0)
    monkeypatch.setattr(listing, "_CLOCK", -1)
    coco(tmp_path, [[0, "road", BOX]])
    assert masks_of(opened(tmp_path))["0"].sum() == 70
    annotations = tmp_path / "train.json"
    annotations.write_text(annotations.read_text().replace("9", "3"))
    assert masks_of(opened(tmp_path))["0"].sum() == 10


def test_boxes_alone_are_refused_by_name(tmp_path):
    coco(tmp_path, [[0, "road", BOX]])
    with changed(tmp_path) as content:
        content["annotations"][0]["segmentation"] = []
    with refused("boxes-alone"):
        opened(tmp_path)
    # Beside masks, also several such files are left alone.
    (tmp_path / "keypoints.json").write_text((tmp_path / "train.json").read_text() + " ")
    (tmp_path / "masks").mkdir()
    for number in range(2):
        Image.new("L", (30, 20), number).save(tmp_path / f"masks/{number}.png")
    assert opened(tmp_path, "data.classes=[a, b]").ids == "raw"


def test_shapes_without_a_class_are_of_the_only_one(tmp_path):
    """Regions of the validation split have no attributes; the attributes of the others agree."""
    for split, attributes in (("train", {"plant": "kudzu", "planta": "kudzu"}), ("val", {})):
        (tmp_path / split).mkdir()
        Image.new("RGB", (30, 20)).save(tmp_path / split / f"{split}.png")
        shape = {"name": "rect", "x": 2, "y": 2, "width": 10, "height": 7}
        region = {"shape_attributes": shape, "region_attributes": attributes}
        image = {"filename": f"{split}.png", "size": 1, "regions": [region]}
        (tmp_path / split / "via.json").write_text(json.dumps({"a": image}))
    for split in ("train", "val"):
        data, _ = settings_of(str(tmp_path), [])
        dataset = open_dataset(data, split)
        assert dataset.labels.names == ("background", "kudzu")
        assert int(dataset.read_mask(0).sum()) == 70


def test_tools_annotate_images_as_their_exif_rotation_shows_them(tmp_path):
    """The image is stored upside down. Kaggle's run lengths are of the stored pixels."""
    image = Image.new("RGB", (4, 3))
    image.getexif()[0x0112] = 3
    region = {
        "original_width": 4,
        "original_height": 3,
        "value": {"x": 0, "y": 0, "width": 25, "height": 34, "rectanglelabels": ["a"]},
    }
    tasks = [{"data": {"image": "a.png"}, "annotations": [{"result": [region]}]}]
    files = {
        "cvat.xml": "<annotations><version>1.1</version><image name='a.png' width='4' height='3'>"
        "<box label='a' xtl='0' ytl='0' xbr='1' ybr='1'/></image></annotations>",
        "label-studio.json": json.dumps(tasks),
        "kaggle-rle.csv": "ImageId,EncodedPixels\na.png,1 1\n",
    }
    corners = []
    for name, text in files.items():
        folder = tmp_path / name
        folder.mkdir()
        image.save(folder / "a.png", exif=image.getexif())
        (folder / name).write_text(text)
        mask = masks_of(opened(folder))["a"]
        corners.append((int(mask.sum()), *np.argwhere(mask)[0].tolist()))
    assert corners == [(1, 2, 3), (1, 2, 3), (1, 0, 0)]


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("images", 1, "id"), 0, "0.png and of 1.png"),
        (("images", 1, "file_name"), None, "file_name is None"),
        (("categories", 0, "name"), {}, "a name is {}"),
        (("annotations", 1, "category_id"), "10", "annotation 1: "),
        (("annotations", 0, "segmentation"), [[1, 2, "x"]], "annotation 0: "),
        (("annotations", 0, "segmentation"), {"size": [20, 30], "counts": [9, 9]}, "18 pixels"),
        (("annotations", 0, "segmentation"), {"size": [20, 30], "counts": ""}, "0 pixels"),
        (("annotations", 0, "segmentation"), {"size": [30, 20], "counts": [600]}, "size [30, 20]"),
    ],
)
def test_what_a_coco_file_has_wrong_is_named(tmp_path, place, value, words):
    coco(tmp_path, [[0, "road", BOX], [1, "road", BOX]])
    with changed(tmp_path) as content:
        content[place[0]][place[1]][place[2]] = value
    with refused("annotation-invalid", words):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("categories", {"label": {"labels": [{"name": "road"}]}}, "Datumaro"),
        ("annotations", ["x"], "of another type"),
        ("images", {"a": 1}, "of another type"),
        ("images", None, "of another type"),
    ],
)
def test_members_of_other_formats_are_no_python_errors(tmp_path, key, value, words):
    coco(tmp_path, [[0, "road", BOX]])
    with changed(tmp_path) as content:
        content[key] = value
    with refused("annotation-invalid", words):
        opened(tmp_path, "data.layout=coco", "data.images=images", "data.annotations=train.json")


def test_annotations_of_no_image_are_counted(tmp_path):
    coco(tmp_path, [[0, "road", BOX], [1, "road", BOX]])
    with changed(tmp_path) as content:
        content["annotations"][0]["image_id"] = "0"
    assert "1 annotations left out" in opened(tmp_path).notes[0]
    with changed(tmp_path) as content:
        content["annotations"][1]["image_id"] = "1"
    with refused("annotation-invalid"):
        opened(tmp_path)


def test_run_lengths_of_the_compressed_form():
    rng = np.random.default_rng(0)
    for number in range(60):
        pixels = rng.random(tuple(rng.integers(1, 90, 2))) < (number % 7) / 6
        runs = rle.encode(np.asfortranarray(pixels, np.uint8))
        lengths = run_lengths(runs["counts"])
        decoded = np.repeat(np.arange(len(lengths)) % 2, lengths).reshape(pixels.shape, order="F")
        assert np.array_equal(decoded, pixels)


def test_several_annotation_files_stop_the_detection(tmp_path):
    coco(tmp_path, [[0, "road", BOX]])
    content = (tmp_path / "train.json").read_text()
    for name in ("keypoints", "keypoints_again"):  # equal files, of which one is named
        (tmp_path / f"{name}.json").write_text(f"{content} ")
    (tmp_path / "train_again.json").write_text(content)
    with refused("annotations-ambiguous") as caught:
        opened(tmp_path)
    assert str(caught.value).splitlines()[1:] == [
        "  \"data.annotations='{split}.json'\"",
        "  data.annotations=keypoints.json",
    ]
    assert opened(tmp_path, "data.annotations=keypoints.json").split == "all"
    (tmp_path / "keypoints_again.json").unlink()
    (tmp_path / "keypoints.json").rename(tmp_path / "val.json")
    assert opened(tmp_path).split == "train"
