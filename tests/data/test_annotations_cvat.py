"""Tests of annotations of CVAT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from annotated_sets import FORMATS, cvat, masks_of, needs_formats, opened, referenced
from conftest import refused
from data_files import picture, run_check, sample_names
from PIL import Image

from segtrain import config
from segtrain.data.audit.check import settings_of
from segtrain.data.datasets import open_dataset
from segtrain.data.labels import presets

SCENE = {1: "road", 2: "car", 3: "traffic sign"}


def test_shapes_of_cvat(tmp_path):
    cvat(
        tmp_path,
        '><box label="b" xtl="4" ytl="6" xbr="10" ybr="8" rotation="90"/>'
        '<polyline label="a" points="0,0;9,9"/><tag label="a"/>'
        '<ellipse label="a" cx="20" cy="10" rx="8" ry="4"/>',
        '><mask label="a" rle="0,3,1,4" left="28" top="-1" width="3" height="3"/>'
        '<polygon label="b" z_order="-1" points="25,0;30,0;30,20;25,20;"/>',
    )
    dataset = opened(tmp_path)
    assert [note.split(": ")[1] for note in dataset.notes] == ["1 x not drawn"]
    turned, patch = masks_of(dataset).values()
    assert dataset.labels.names == ("background", "a", "b")
    rows, columns = np.nonzero(turned == 2)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (4, 9, 6, 7)
    assert abs((turned == 1).sum() - np.pi * 8 * 4) < 3
    # Rows of the patch: 111, 011, 110; the first is above the image, the last column beside it.
    assert patch[:3, 24:].tolist() == [[0, 2, 2, 2, 2, 1], [0, 2, 2, 2, 1, 1], [0, 2, 2, 2, 2, 2]]


def test_the_root_may_be_the_working_folder(tmp_path, monkeypatch):
    cvat(tmp_path, '><polygon label="a" points="0,0;9,0;9,9"/>')
    monkeypatch.chdir(tmp_path)
    assert masks_of(opened(Path()))["0"].any()


def test_subsets_of_a_cvat_project_are_splits(tmp_path):
    polygon = '><polygon label="a" points="0,0;9,0;9,9"/>'
    cvat(tmp_path, f'subset="Train" {polygon}', f'subset="Validation" {polygon}')
    for number, subset in enumerate(("Train", "Validation")):
        (tmp_path / "images" / subset).mkdir()
        (tmp_path / f"images/{number}.png").rename(tmp_path / f"images/{subset}/{number}.png")
    data, splits = settings_of(str(tmp_path), [])
    assert (data.images, splits) == ("images/{split}", ("Train", "Validation"))
    assert sample_names(opened(tmp_path, split="Validation")) == ["1"]


@pytest.mark.parametrize(
    "image",
    [
        '><mask label="a" rle="9,9" left="0" top="0" width="3" height="3"/>',
        '><mask label="a" rle="0" left="0" top="0" width="99999999" height="99999999"/>',
        '><box label="a" xtl="nan" ytl="0" xbr="1" ybr="1"/>',
        '><polygon label="a" points="1"/>',
        '><polygon points="0,0;9,0;9,9"/>',
        '><blob label="a"/>',
        '/><image width="30" height="20">',
        "></annotations>",
    ],
)
def test_unexpected_content_of_cvat_is_refused(tmp_path, image):
    cvat(tmp_path, image)
    with refused("annotation-invalid"):
        opened(tmp_path)


def test_entities_and_videos_of_cvat_are_refused(tmp_path):
    """Entities that read another file, and those that would take 10 GB."""
    settings = {"layout": "cvat", "images": "images", "annotations": "annotations.xml"}
    data = config.Data.model_validate({"root": str(tmp_path), **settings})
    file = f'<!ENTITY e SYSTEM "{__file__}">'
    bomb = '<!ENTITY e0 "0123456789">' + "".join(
        f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10)
    )
    for entities, text in ((file, "&e;"), (bomb, "&e9;")):
        cvat(tmp_path, f">{text}", head=f"<!DOCTYPE a [{entities}]>")
        with refused("annotation-invalid"):
            open_dataset(data, "all")
    cvat(tmp_path, '></image><track id="0" label="a"/><image name="1.png">')
    with refused("annotation-of-video"):
        opened(tmp_path)
    picture(tmp_path / "video/frame.png")
    xml = '<annotations><version>1.1</version><track id="0" label="a"/></annotations>'
    (tmp_path / "video/annotations.xml").write_text(xml)
    with refused("annotation-of-video"):
        run_check(tmp_path / "video")


@needs_formats
@pytest.mark.parametrize("folder", ["cvat-segmentation-mask", "cvat-camvid"])
def test_exported_masks_of_cvat_are_the_reference(folder):
    with refused("files-unpaired"):
        opened(FORMATS / folder)  # no mask of a frame without shapes
    dataset = opened(FORMATS / folder, "data.absent_mask=leave-out")
    expected = referenced(dataset, FORMATS / folder / "mask.png", SCENE)
    assert list(masks_of(dataset)) == ["frame 1"]
    assert np.array_equal(dataset.read_mask(0), expected)


@pytest.mark.parametrize(("colored", "layout"), [(True, "folders"), (False, "camvid")])
def test_colors_of_cvat_begin_with_a_black_background(tmp_path, colored, layout):
    mask = np.zeros((2, 3, 3) if colored else (2, 3), np.uint8)
    mask[0, 0] = (0, 0, 142) if colored else 1
    for folder, pixels in (("Train", np.zeros((2, 3, 3), np.uint8)), ("Trainannot", mask)):
        (tmp_path / folder).mkdir()
        Image.fromarray(pixels).save(tmp_path / folder / "a b.png")
    (tmp_path / "label_colors.txt").write_text("220 220 0 traffic sign\n0 0 142 car\n")
    dataset = opened(tmp_path)
    assert settings_of(str(tmp_path), [])[0].layout == layout
    # SegNet's masks hold ids of its own classes, whatever the table beside them says.
    names = ("background", "traffic sign", "car") if colored else presets.CAMVID11.names
    assert dataset.labels.names == names
    assert dataset.read_mask(0)[0].tolist() == [2 if colored else 1, 0, 0]
