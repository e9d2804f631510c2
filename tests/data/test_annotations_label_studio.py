"""Tests of annotations of Label Studio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated_sets import masks_of, opened
from conftest import refused
from PIL import Image

SIZE = {"original_width": 40, "original_height": 20}
# 40 x 20 pixels of 4 words of 8 bits, all of them 255.
WHOLE = f"{40 * 20 * 4:032b}" + "00111" + "1111" * 4 + "100" + f"{40 * 20 * 4 - 1:016b}" + "1" * 8


def region(kind: str, name: str, **value: Any) -> dict[str, Any]:
    return {"id": name, "type": kind, **SIZE, "value": {kind: [name], **value}}


def tasks(root: Path, *annotations: list[dict[str, Any]], name: str = "{}.png") -> None:
    """An export with the annotations of images of 40 x 20 pixels."""
    for number in range(len(annotations)):
        Image.new("RGB", (40, 20)).save(root / f"{number}.png")
    content = [
        {"data": {"text": "a.b", "photo": name.format(number)}, "annotations": items}
        for number, items in enumerate(annotations)
    ]
    (root / "export.json").write_text(json.dumps(content))


def brush(bits: str) -> list[int]:
    bits += "0" * (-len(bits) % 8)
    return [int(bits[at : at + 8], 2) for at in range(0, len(bits), 8)]


def test_shapes_of_label_studio(tmp_path):
    turned = region("rectanglelabels", "a", x=50, y=50, width=25, height=10, rotation=90)
    oval = region("ellipselabels", "b", x=25, y=50, radiusX=10, radiusY=40)
    point = region("keypointlabels", "b", x=25, y=50, width=1)
    bare = {"id": 1, "type": "polygon", **SIZE, "value": {"points": [[0, 0], [9, 0], [9, 9]]}}
    tasks(tmp_path, [{"result": [turned, oval, point, bare, {"type": "relation"}]}])
    dataset = opened(tmp_path)
    (mask,) = masks_of(dataset).values()
    rows, columns = np.nonzero(mask == 1)
    # It turns about its upper left corner, 20, 10: 10 x 2 pixels become 2 x 10 to the left of it.
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (10, 19, 18, 19)
    assert abs((mask == 2).sum() - np.pi * 4 * 8) < 3
    assert sum(note.startswith("warning: 1 x not drawn") for note in dataset.notes) == 2


def test_one_of_several_annotations_is_read(tmp_path):
    first, last = (
        {"result": [region("brushlabels", name, format="rle", rle=brush(WHOLE))]} for name in "ab"
    )
    cancelled = {"result": [region("brushlabels", "c")], "was_cancelled": True}
    tasks(tmp_path, [first, last, cancelled], [first | {"ground_truth": True}, last], [cancelled])
    dataset = opened(tmp_path, "data.classes=[background, a, b, c]")
    assert {name: set(mask.flat) for name, mask in masks_of(dataset).items()} == {
        "0": {2},
        "1": {1},
    }


@pytest.mark.parametrize(
    "name",
    [
        "/data/upload/1/3f2a9c11-{}.png",
        "/data/local-files/?d=a%20b%5C{}.png",
        "https://host/a/{}.png?X-Amz-Date=1/7.png",
        "s3://bucket/%61/{}.png",
    ],
)
def test_images_are_found_by_the_places_of_label_studio(tmp_path, name):
    tasks(tmp_path, [{"result": [region("brushlabels", "a", rle=brush(WHOLE))]}], name=name)
    assert masks_of(opened(tmp_path))["0"].all()


def test_the_small_export_is_read(tmp_path):
    tasks(tmp_path, [])
    item = {"points": [[0, 0], [100, 0], [100, 100], [0, 100]], "polygonlabels": ["a"], **SIZE}
    (tmp_path / "export.json").write_text(
        json.dumps([{"id": 1, "photo": "0.png", "label": [item]}])
    )
    assert masks_of(opened(tmp_path))["0"].all()


@pytest.mark.parametrize(
    "change",
    [
        {"value": {"brushlabels": ["a"], "rle": brush(WHOLE)[:-4]}},
        {"value": {"brushlabels": ["a"], "rle": brush("1" + WHOLE[1:])}},
        {"value": {"brushlabels": ["a"], "rle": [256]}},
        {"value": {"brushlabels": ["a", "b"], "rle": brush(WHOLE)}},
        {"value": {"polygonlabels": ["a"], "points": "abc"}},
        {"value": 3},
        {"image_rotation": 90},
        {"original_height": None},
    ],
)
def test_unexpected_content_of_label_studio_is_refused(tmp_path, change):
    shape = region("brushlabels", "a", rle=brush(WHOLE)) | change
    tasks(tmp_path, [{"result": [shape]}])
    with refused("annotation-invalid"):
        opened(tmp_path)
