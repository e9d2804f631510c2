"""Tests of annotations with a file per image, and of those of VIA."""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated_sets import (
    FORMATS,
    cvat,
    masks_of,
    needs_formats,
    opened,
    outline,
    pictures,
    referenced,
    supervisely,
    yolo,
)
from conftest import refused
from data_files import picture, run_check
from PIL import Image, ImageDraw

from segtrain.data.annotations import layout
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.shapes import Annotations
from segtrain.data.audit.check import settings_of
from segtrain.data.audit.overlap import overlap
from segtrain.data.datasets import open_dataset
from segtrain.data.storage import LOCAL


@needs_formats
def test_labelme_files_as_labelme_draws_them(tmp_path):
    root = tmp_path / "labelme"
    shutil.copytree(FORMATS / "labelme", root)
    with refused("annotated-image-missing", found=["inside.json (which holds it as imageData)"]):
        opened(root)
    assert "inside" not in masks_of(opened(root, "data.faults=skip"))
    image = json.loads((root / "inside.json").read_text())["imageData"]
    (root / "inside.png").write_bytes(base64.b64decode(image))
    dataset = opened(root)
    masks = masks_of(dataset)
    # The image is stored with the EXIF rotation 6, and labelme shows it upright.
    masks["phone"] = np.rot90(masks["phone"], -1)
    names = {1: "road", 2: "car", 3: "traffic sign"}
    for image, reference in {
        "scene": "mask",
        "inside": "mask_inside",
        "phone": "mask_phone",
    }.items():
        expected = referenced(dataset, root / f"{reference}.png", names)
        assert np.count_nonzero(masks[image] != expected) <= 0.45 * outline(expected), image
    assert not masks["empty"].any()
    assert "unlabelled" not in masks


CAR, BOX = "0 0.1 0.2 0.5 0.2 0.5 0.8 0.1 0.8", "1 0.5 0.5 0.2 0.2"


def test_yolo_labels_are_those_of_their_split_and_image(tmp_path):
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


def test_yolo_folders_below_a_split_are_read_together(tmp_path):
    rows = {"train/north/a": CAR, "train/south/a": CAR.replace("0 ", "1 ", 1), "val/north/b": CAR}
    yolo(tmp_path, rows)
    masks = masks_of(opened(tmp_path))
    assert (masks["north/a"].max(), masks["south/a"].max()) == (1, 2)


def test_a_split_of_yolo_may_have_more_folders_than_the_others(tmp_path):
    for folder in ("test/#", "train/#_1", "train/#_2"):
        image = folder.replace("#", "images")
        pictures(tmp_path / image, f"{image[-1]}.png")
        labels = tmp_path / folder.replace("#", "labels")
        labels.mkdir()
        (labels / f"{image[-1]}.txt").write_text(CAR)
    (tmp_path / "data.yaml").write_text("names: [car]")
    data, _ = settings_of(str(tmp_path), [])
    assert (data.images, data.annotations) == ("{split}", "{split}")
    masks = masks_of(open_dataset(data, "train"))
    assert {name: mask.any() for name, mask in masks.items()} == {
        "images_1/1": True,
        "images_2/2": True,
    }


@pytest.mark.parametrize("home", ["", "train_data/", "training/train-"])
def test_names_of_splits_in_other_names(tmp_path, home):
    for split in ("train", "val"):
        folder = tmp_path / f"{home}x" / split
        pictures(folder, "a.png")
        (folder / "a.txt").write_text(CAR if split == "val" else "")
    (tmp_path / "data.yaml").write_text("names: [car]")
    data, splits = settings_of(str(tmp_path), [])
    assert (data.images, data.annotations) == (f"{home}x/{{split}}", f"{home}x/{{split}}")
    assert splits == ("train", "val")
    assert masks_of(open_dataset(data, "val"))["a"].any()


def test_yolo_fractions_are_those_of_the_upright_image(tmp_path):
    yolo(tmp_path, {"a": "0 0 0 0.3 0 0.3 0.5 0 0.5"})
    image = Image.open(tmp_path / "images/a.png")
    image.getexif()[0x0112] = 6
    image.save(tmp_path / "images/a.png", exif=image.getexif())
    upright = np.zeros((20, 10), np.uint8)
    upright[:10, :3] = 1
    assert np.array_equal(masks_of(opened(tmp_path))["a"], np.rot90(upright))


@pytest.mark.parametrize(
    ("rows", "fits"),
    [
        ("0.0 1e-05 0 5e-1 0 .5 0.5", True),
        (f"\r\n{CAR}\r\n", True),
        ("1 0 1 1 0 0 1", False),
        ("0 0.1 0.2", False),
        ("0.5 0.1 0.1 0.5 0.1 0.5 0.5", False),
        (f"{CAR}\nroad 0.5 0.5 0.1 0.1\n", False),
    ],
)
def test_which_texts_are_labels_of_yolo(tmp_path, rows, fits):
    yolo(tmp_path, {"a": f"{rows}\n{rows}"})
    if fits:
        assert opened(tmp_path).labels.names == ("background", "car", "road")
    else:
        with refused("layout-unknown"):
            opened(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "tool"),
    [
        ("a.ndjson", '{"data_row": {"external_id": "a.png"}}', "Labelbox"),
        ("a.json", '[{"Labeled Data": "https://storage.labelbox.com/a.png"}]', "Labelbox"),
        (
            "a.geojson",
            '{"type": "FeatureCollection", "features": [{"geometry": {"type": "Polygon"}, '
            '"properties": {"objectType": "annotation"}}]}',
            "QuPath",
        ),
        ("a.json", '{"annotations": {"segmentation_bitmap": {}}}', "Segments.ai"),
        ("a.png___objects.json", '{"metadata": {"lastAction": {}}}', "SuperAnnotate"),
        ("a.json", '{"schema_ref": "https://darwin-public/darwin_json/2.0"}', "V7 Darwin"),
        ("a.json", '{"project": {"vid_list": ["1"]}}', "VIA 3"),
        ("a.json", '{"name": "a", "securityToken": "b"}', "VoTT"),
    ],
)
def test_tools_whose_files_are_not_read_are_named(tmp_path, name, content, tool):
    pictures(tmp_path, "a.png", "b.png")
    (tmp_path / name).write_text(content)
    with refused("layout-unknown", f"{name} is an export of {tool}, which is not read: export"):
        opened(tmp_path)


def test_boxes_that_are_written_as_polygons_are_said_for_each_class(tmp_path):
    for count, said in ((9, 0), (10, 1)):
        yolo(tmp_path, {"a": "\n".join([*[CAR] * count, "1 0 0 1 0 1 1"])})
        assert sum("shapes of car have 4" in note for note in opened(tmp_path).notes) == said


@pytest.mark.parametrize(
    ("rows", "names", "code"),
    [
        (BOX, "names: [car, road]", "boxes-alone"),
        (CAR.replace("0 ", "2 ", 1), "names: [car, road]", "annotation-invalid"),
        (f"{CAR} 0.5", "names: [car, road]", "annotation-invalid"),
        (CAR.replace("0.5", "50"), "names: [car, road]", "annotation-invalid"),
        (CAR.replace("0.5", "nan"), "names: [car, road]", "annotation-invalid"),
        (CAR, "names: car", "annotation-invalid"),
        (CAR, "names: [no, yes]", "annotation-invalid"),
        (CAR, "names: [car]\nkpt_shape: [17, 3]", "annotation-invalid"),
    ],
)
def test_yolo_labels_without_areas_or_with_unknown_classes_are_refused(tmp_path, rows, names, code):
    yolo(tmp_path, {"train/a": rows}, names)
    with refused(code):
        opened(
            tmp_path,
            "data.layout=yolo",
            "data.annotations=labels/train",
            "data.images=images/train",
        )


def test_yolo_numbers_are_the_names_of_classes_that_nothing_names(tmp_path):
    yolo(tmp_path, {"a": CAR, "b": f"{CAR}\n{CAR.replace('0 ', '3 ', 1)}"}, "nc: 4")
    dataset = opened(tmp_path)
    assert dataset.labels.names == ("background", "class_0", "class_3")
    (note,) = (note for note in dataset.notes if "nothing names" in note)
    named = re.search("`(.*)`", note)[1].replace("class_3", "road")
    (tmp_path / "data.yaml").write_text(named)
    assert opened(tmp_path).labels.names == ("background", "class_0", "road")


def test_yolo_boxes_beside_masks_are_no_rival_of_them(tmp_path):
    yolo(tmp_path, {"a": BOX, "b": BOX}, "names: [car, road]\ntrain: images\nval: images")
    for name in "ab":
        pictures(tmp_path, f"masks/{name}.png")
    assert opened(tmp_path, "data.classes=[none, car]").root == str(tmp_path)
    (tmp_path / "labels/c.txt").write_text(CAR)
    pictures(tmp_path, "images/c.png")
    with refused("layouts-ambiguous", found=["yolo", "folders"]) as caught:
        opened(tmp_path)
    folders = str(caught.value).splitlines()[-1]
    assert folders.endswith('data.images=images data.masks=masks "data.split_by={val: 20%}"')
    dataset = opened(tmp_path, "data.layout=yolo", "data.annotations=labels", "data.images=images")
    assert sum("val is train" in note for note in dataset.notes) == 1


def test_new_names_of_yolo_classes_count(tmp_path):
    yolo(tmp_path, {"train/a": CAR})
    assert masks_of(opened(tmp_path))["a"].max() == 1
    (tmp_path / "data.yaml").write_text("names: {0: truck, 1: car}")
    dataset = opened(tmp_path)
    assert dataset.labels.names == ("background", "truck", "car")
    assert masks_of(dataset)["a"].max() == 1


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def labelme(root: Path, image: str, *shapes: tuple[str, str, Any], **keys: Any) -> None:
    """A picture and its JSON. shapes: class, shape_type, points."""
    pictures(root, image)
    content = {
        "shapes": [
            {"label": name, "shape_type": kind, "points": points, **keys}
            for name, kind, points in shapes
        ],
        "imagePath": image.rpartition("/")[2],
    }
    (root / image).with_suffix(".json").write_text(json.dumps(content))


TRIANGLE = [[1, 1], [9, 1], [9, 8]]


def test_labelme_rectangles_and_bitmaps_are_pixels(tmp_path):
    corners = [[5.3, 7.9], [2.2, 3.1]]
    labelme(tmp_path, "a.png", ("car", "rectangle", corners), ("car", "linestrip", TRIANGLE))
    bitmap = np.array([[255, 0, 255], [0, 255, 255]], np.uint8)
    labelme(tmp_path, "b.png", ("car", "mask", [[-1.2, 8.6], [1, 10]]), mask=text(png(bitmap)))
    dataset = opened(tmp_path)
    expected = Image.new("L", (20, 10))
    ImageDraw.Draw(expected).rectangle([2.2, 3.1, 5.3, 7.9], fill=1)
    masks = masks_of(dataset)
    assert np.array_equal(masks["a"], np.array(expected))
    # Its second row and its first column are outside of the image.
    assert np.argwhere(masks["b"]).tolist() == [[9, 1]]
    assert sum("linestrip" in note for note in dataset.notes) == 1


def test_xml_of_the_older_labelme(tmp_path):
    (tmp_path / "Annotations").mkdir()
    pictures(tmp_path, "Images/a.png")
    points = "".join(f"<pt><x>{x}</x><y>{y}</y></pt>" for x, y in TRIANGLE)
    shapes = "".join(
        f"<object><name>{name}\n</name><deleted>{gone}</deleted><polygon>{points}</polygon></object>"
        for name, gone in (("car", 0), ("dog", 1))
    )
    text = f"<annotation><filename>a.png</filename>{shapes}</annotation>"
    (tmp_path / "Annotations/a.xml").write_text(text)
    dataset = opened(tmp_path)
    assert dataset.labels.names == ("background", "car")
    labelme(tmp_path / "json", "a.png", ("car", "polygon", TRIANGLE))
    assert np.array_equal(masks_of(dataset)["a"], masks_of(opened(tmp_path / "json"))["a"])


def test_labelme_images_are_those_beside_the_files(tmp_path):
    # Two folders without splits, with images of the same name, one of them renamed.
    labelme(tmp_path, "north/1.png", ("car", "polygon", TRIANGLE))
    labelme(tmp_path, "south/1.png", ("road", "polygon", TRIANGLE))
    labelme(tmp_path, "south/old.png", ("_background_", "polygon", TRIANGLE))
    for ending in (".png", ".json"):
        (tmp_path / f"south/old{ending}").rename(tmp_path / f"south/new{ending}")
    (tmp_path / "south/config.json").write_text("[1]")
    dataset = opened(tmp_path)
    masks = masks_of(dataset)
    assert dataset.labels.names == ("_background_", "car", "road")
    assert {name: mask.max() for name, mask in masks.items()} == {
        "north/1": 1,
        "south/1": 2,
        "south/new": 0,
    }
    assert sum("without shapes" in note for note in dataset.notes) == 1


def test_photos_with_numbers_are_no_masks_of_others(tmp_path):
    for seed, name in enumerate(("photo.jpg", "photo (1).jpg", "photo (2).jpg")):
        labelme(tmp_path, name, ("car", "polygon", TRIANGLE))
        picture(tmp_path / name, (10, 20), seed)
    assert sorted(masks_of(opened(tmp_path))) == ["photo", "photo (1)", "photo (2)"]


def test_equal_images_in_both_parts_are_left_out_by_the_proposal(tmp_path):
    for seed, name in enumerate(("one/e", "one/f", "one/g", "two/e", "two/f", "two/h")):
        labelme(tmp_path, f"{name}.png", ("car", "polygon", TRIANGLE))
        picture(tmp_path / f"{name}.png", (10, 20), seed % 3 + (seed == 5))
    checked = run_check(tmp_path, "data.split_by={val: 2, seed: 1}")
    (finding,) = (f for report in checked.reports for f in report.findings if f.pairs)
    assert not checked.failed
    assert checked.data.leave_out == tuple(finding.settings["data.leave_out"])
    parts = [open_dataset(checked.data, split) for split in ("train", "val")]
    assert sum(map(len, parts)) == 6 - len(finding.pairs)
    assert overlap(*parts).count == 0


def test_folders_of_several_annotators_are_not_read_together(tmp_path):
    for folder in ("first", "second"):
        labelme(tmp_path, f"{folder}/a.png", (folder, "polygon", TRIANGLE))
        (tmp_path / folder / "a.png").unlink()
    pictures(tmp_path, "images/a.png")
    with refused("annotations-ambiguous") as caught:
        run_check(tmp_path)
    setting = str(caught.value).splitlines()[-1].split()[-1]
    assert setting == "data.annotations=second"
    assert opened(tmp_path, setting).labels.names == ("background", "second")
    (tmp_path / "second/a.json").unlink()
    labelme(tmp_path, "second/b.png", ("second", "polygon", TRIANGLE))
    (tmp_path / "second/b.png").rename(tmp_path / "images/b.png")
    assert len(opened(tmp_path)) == 2


def via(root: Path, *regions: dict[str, Any]) -> None:
    """A picture a.png and its regions."""
    pictures(root, "a.png", "b.png")
    files = {
        f"{name}.png99": {"filename": f"{name}.png", "size": 99, "regions": items}
        for name, items in (("b", []), ("a", [*regions]))
    }
    (root / "via_region_data.json").write_text(json.dumps(files))


def region(kind: str, attributes: dict[str, Any], **shape: Any) -> dict[str, Any]:
    return {"shape_attributes": {"name": kind, **shape}, "region_attributes": attributes}


RECT = {"x": 2, "y": 3, "width": 4, "height": 5}


def test_the_attribute_of_via_that_names_the_class(tmp_path):
    via(
        tmp_path,
        region("rect", {"kind": "car", "state": "new", "note": "", "ok": {"a": 1, "b": 1}}, **RECT),
        region("rect", {"kind": "", "state": {"old": True, "new": False}}, **{**RECT, "x": 12}),
        region("point", {"kind": "car"}, cx=1, cy=1),
    )
    with refused("label-key-unclear", found=["kind", "ok", "state"]):
        opened(tmp_path)
    with refused("label-key-unclear"):
        opened(tmp_path, "data.label_key=class")
    dataset = opened(tmp_path, "data.label_key=kind")
    mask = masks_of(dataset)["a"]
    assert (mask == 1).sum() == (mask[3:8, 2:6] == 1).sum() == 20
    assert not masks_of(dataset)["b"].any()
    assert sum("not drawn" in note for note in dataset.notes) == 2
    dataset = opened(tmp_path, "data.label_key=state")
    assert dataset.labels.names == ("background", "new", "old")
    assert masks_of(dataset)["a"][5, 13] == 2


def test_the_images_are_in_the_folder_with_the_most_named_ones(tmp_path):
    """Some masks have the names of the images; another folder has the images in another format."""
    via(tmp_path, region("rect", {"kind": "car"}, **RECT))
    pictures(tmp_path, "few/a.png", "images_masks/a.png", "images_masks/b.png")
    for name in ("a.png", "b.png"):
        (tmp_path / name).unlink()
    pictures(tmp_path, "originals/a.tif", "originals/b.tif", "plots/a.png", "plots/b.png")
    assert settings_of(str(tmp_path), [])[0].images == "plots"
    pictures(tmp_path, "depth/a.png", "depth/b.png")
    with refused("images-ambiguous") as caught:
        opened(tmp_path)
    assert str(caught.value).splitlines()[1:] == ["  data.images=depth", "  data.images=plots"]
    assert opened(tmp_path, "data.images=plots").entries[0].image.endswith("plots/a.png")
    (tmp_path / "b.csv").write_text("ImageId,EncodedPixels\na.png,1 4\n")
    with refused("layouts-ambiguous") as caught:
        opened(tmp_path, "data.images=plots")
    assert "data.images=depth" not in str(caught.value)


def test_each_proposed_command_is_printed_once_and_divides_two_images(tmp_path):
    """Two folders of images, and a pair of folders that does not depend on their choice."""
    via(tmp_path, region("rect", {"kind": "car"}, **RECT))
    for name in ("a.png", "b.png"):
        (tmp_path / name).unlink()
        pictures(tmp_path, f"depth/{name}", f"plots/{name}")
    pictures(tmp_path, "images/e.png", "images/f.png", "masks/e.png", "masks/f.png")
    with refused("images-ambiguous") as caught:
        run_check(tmp_path, "data.classes=[none, car]")
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    kinds = [re.search(r"data.images=(\S+)", line)[1] for line in lines]
    assert kinds == ["depth", "images", "plots"]
    for line in lines:
        words = shlex.split(line)[4:]
        assert ("val: 1" in line) == ("images=images" in line)  # 20% are none
        assert len(run_check(tmp_path, *words).reports) == 2


def test_points_tell_which_orientation_of_the_images_they_are_for(tmp_path):
    """Stored as 20 x 10 pixels, shown as 10 x 20: a point at y = 15 is for the shown image."""

    def both(root: Path, *corners: tuple[int, int]) -> Any:
        pictures(root, "a.png")
        regions = [region("rect", {}, x=x, y=y, width=3, height=2) for x, y in corners]
        content = {}
        for name, shapes in zip("ab", (regions[:1], regions[1:])):
            image = Image.new("RGB", (20, 10))
            image.getexif()[0x0112] = 6
            image.save(root / f"{name}.png", exif=image.getexif())
            content[name] = {"filename": f"{name}.png", "size": 9, "regions": shapes}
        (root / "via.json").write_text(json.dumps(content))
        return opened(root)

    shown = masks_of(both(tmp_path / "shown", (1, 1), (1, 14)))
    # The image is shown turned clockwise: its upper left corner is stored at the lower left.
    assert np.argwhere(shown["a"])[0].tolist() == [6, 1]
    assert np.argwhere(shown["b"])[0].tolist() == [6, 14]
    stored = masks_of(both(tmp_path / "stored", (1, 1), (14, 1)))
    assert [np.argwhere(stored[name])[0].tolist() for name in "ab"] == [[1, 1], [1, 14]]
    for name, other in (("unknown", (2, 2)), ("outside", (15, 15))):
        with refused("rotation-ambiguous"):
            both(tmp_path / name, (1, 1), other).read_mask(0)


CLOSED = [[1, 1], [9, 1], [9, 8], [2, 2]]


def test_closed_lines_are_areas_and_other_lines_no_background(tmp_path):
    x, y = ([point[axis] for point in CLOSED] for axis in (0, 1))
    via(
        tmp_path / "via",
        region("polyline", {"kind": "car"}, all_points_x=x, all_points_y=y),
        region("polyline", {"kind": "car"}, all_points_x=x[:3], all_points_y=y[:3]),
    )
    labelme(tmp_path / "labelme", "a.png", ("car", "linestrip", CLOSED))
    labelme(tmp_path / "labelme", "b.png", ("car", "linestrip", TRIANGLE))
    cvat(
        tmp_path / "cvat",
        '><polyline label="car" points="1,1;9,1;9,8;2,2"/>',
        '><polyline label="car" points="1,1;9,1;9,8"/>',
    )
    points = {"exterior": CLOSED, "interior": []}
    supervisely(tmp_path / "supervisely", "x", "line", points=points)
    for name in ("via", "labelme", "cvat", "supervisely"):
        dataset = opened(tmp_path / name)
        first, *others = masks_of(dataset).values()
        assert 20 < first.sum() < 60, name
        assert [mask.any() for mask in others] == [False] * (name == "via")
        assert any("1 image in" in note for note in dataset.notes) == (name in ("labelme", "cvat"))
    assert len(opened(tmp_path / "labelme", "data.absent_mask=background")) == 2
    with refused("annotation-absent"):
        opened(tmp_path / "labelme", "data.absent_mask=error")


def test_lines_whose_ends_nearly_meet_are_outlines(tmp_path):
    for gap, drawn in ((2.8, True), (3, False)):
        x, y = [2, 26, 26, 2], [2, 2, 18, 2 + gap]  # 28.8 pixels from corner to corner
        outline = region("polyline", {}, all_points_x=x, all_points_y=y)
        via(tmp_path, outline, region("rect", {}, x=0, y=0, width=1, height=1))
        dataset = opened(tmp_path)
        assert masks_of(dataset)["a"][5:].any() == drawn
        assert ("1 line drawn as areas, since the ends meet" in dataset.notes) == drawn


def test_supervisely_data_sets_are_read_together(tmp_path):
    (tmp_path / "meta.json").write_text('{"classes": [{"title": "road"}, {"title": "car"}]}')
    bitmap = np.zeros((2, 3, 4), np.uint8)
    bitmap[0, 1, 3] = 200
    packed = text(zlib.compress(png(bitmap)))
    supervisely(tmp_path, "one", "bitmap", bitmap={"data": packed, "origin": [7, 5]})
    hole = [[[4, 4], [6, 4], [6, 6], [4, 6]]]
    ring = [[2, 2], [8, 2], [8, 8], [2, 8]]
    supervisely(tmp_path, "two", "polygon", points={"exterior": ring, "interior": hole})
    dataset = opened(tmp_path)
    masks = masks_of(dataset)
    assert dataset.labels.names == ("background", "road", "car")
    assert np.argwhere(masks["one/img/a"] == 2).tolist() == [[5, 8]]
    # Between the centers of the pixels of the outline.
    assert (masks["two/img/a"] == 2).sum() == 6 * 6 - 2 * 2
    for name in ("train", "val"):
        supervisely(tmp_path / "splits", name, "rectangle", points={"exterior": [[6, 5], [2, 3]]})
    mask = masks_of(opened(tmp_path / "splits", split="val"))["a"]
    assert mask.sum() == mask[3:6, 2:7].sum() == 15


BOMB = text(zlib.compress(bytes(1 << 27)))
LARGE = text(png(np.ones((11, 1), np.uint8)))


@pytest.mark.parametrize("data", ["%", text(b"no zlib"), text(b"\x89PNG"), BOMB, LARGE, 7, None])
def test_bitmaps_that_are_none_are_refused(tmp_path, data):
    supervisely(tmp_path, "ds", "bitmap", bitmap={"data": data, "origin": [0, 0]})
    with refused("annotation-invalid"):
        opened(tmp_path)
    labelme(tmp_path / "labelme", "a.png", ("car", "mask", [[0, 0], [1, 1]]), mask=data)
    if data not in (BOMB, LARGE):
        with refused("annotation-invalid"):
            opened(tmp_path / "labelme")


@pytest.mark.parametrize(
    ("kind", "points"),
    [
        ("polygon", [[0, 0], [1e9, 0], [1e9, 9]]),
        ("polygon", [[0, 0], [float("nan"), 0], [5, 9]]),
        ("polygon", [[0, 0, 1], [5, 5, 1]]),
        ("polygon", "abc"),
        ("circle", [[1, 1]]),
        ("blob", TRIANGLE),
    ],
)
def test_points_that_no_image_has_are_refused(tmp_path, kind, points):
    labelme(tmp_path, "a.png", ("car", kind, points))
    with refused("annotation-invalid"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        '{"a": {"filename": "a.png", "regions": [{"shape_attributes": {"name": "rect"}}]}}',
        '{"_via_img_metadata": 7, "regions": []}',
        '{"_via_img_metadata": {}',
        '{"_via_img_metadata": ' + "[" * 100_000,
    ],
)
def test_broken_files_are_refused_with_their_name(tmp_path, content):
    pictures(tmp_path, "a.png")
    (tmp_path / "via.json").write_text(content)
    with refused("annotation-invalid", file=str(tmp_path / "via.json")):
        opened(tmp_path)


def test_a_division_in_data_yaml_that_is_not_read_is_named(tmp_path):
    for folder in ("alpha", "beta"):
        (tmp_path / "images" / folder).mkdir(parents=True)
        (tmp_path / "labels" / folder).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (20, 20)).save(tmp_path / f"images/{folder}/{folder}{number}.png")
            text = "\ufeff0 0.1 0.1 0.9 0.1 0.5 0.9\n" if number == 0 else "0 .1 .1 .9 .1 .5 .9\n"
            (tmp_path / f"labels/{folder}/{folder}{number}.txt").write_text(text, encoding="utf-8")
    yaml = tmp_path / "data.yaml"
    for train, val in (("../images/alpha", "./images/beta/"), ("[images/train]", "images/val")):
        yaml.write_text(f"names: [road]\ntrain: {train}\nval: {val}\n")
        assert len(opened(tmp_path)) == 8
        assert any("are not read" in note for note in opened(tmp_path).notes), train
    yaml.write_text("names: [road]\ntrain: ../train/images\nval: ../val/images\n")
    assert not any("are not read" in note for note in opened(tmp_path).notes)
    (tmp_path / "labels/beta/beta3.txt").write_text("0.5 word\n")
    with refused("annotation-invalid", place="line 1"):
        opened(tmp_path)


@pytest.mark.parametrize("label", [None, "", [], True])
def test_a_label_is_text(tmp_path, label):
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    shape = {"label": label, "points": [[1, 1], [9, 1], [9, 9]], "shape_type": "polygon"}
    content = {"shapes": [shape], "imagePath": "a.png", "imageHeight": 20, "imageWidth": 20}
    (tmp_path / "a.json").write_text(json.dumps({"version": "5", **content}))
    with refused("annotation-invalid", place="shape 0"):
        opened(tmp_path)
    shapes = [{**shape, "label": name} for name in ("Cat", "cat ")]
    (tmp_path / "a.json").write_text(json.dumps({"version": "5", **content, "shapes": shapes}))
    assert any("only by case or blanks" in note for note in opened(tmp_path).notes)


def test_classes_are_kept_until_a_file_changes(tmp_path):
    root, read = tmp_path / "set", list[str]()
    names = iter((["car"], ["dog"]))

    def classes(where: Where) -> Annotations:
        read.append(where.annotations)
        return Annotations((), dict.fromkeys(next(names), 0), notes=())

    form = Format("some", "", lambda root, store: None, classes)
    where = Where(str(root), str(root), str(root), LOCAL, "", "columns")
    labelme(root, "a.png", ("car", "polygon", TRIANGLE))
    for content, counted in (("{}", 1), ("", 1), ("[]  ", 2)):
        if content:
            (root / "a.json").write_text(content)
        layout._unchanged.cache_clear()
        found = layout._classes(form, where)
        assert (len(read), [*found["order"]]) == (counted, ["car", "dog"][counted - 1 :][:1])
