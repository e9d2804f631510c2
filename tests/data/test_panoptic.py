"""Tests of COCO's panoptic form: a PNG of segment ids for each image."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from annotated_sets import FORMATS, masks_of, needs_formats, opened
from conftest import refused
from PIL import Image

CAR, ROAD = 300, 3 + (5 << 8) + (7 << 16)
IDS = np.array([[CAR, ROAD, ROAD, 0, 9, 9]] * 4)


def panoptic(root: Path, ids: np.ndarray = IDS) -> None:
    """COCO's folders: the PNGs have the names of the photos."""
    folders = ("train2017", "annotations/panoptic_train2017")
    for folder in folders:
        (root / folder).mkdir(parents=True)
    Image.new("RGB", (6, 4)).save(root / folders[0] / "0142.jpg")
    channels = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], -1)
    Image.fromarray(channels.astype(np.uint8)).save(root / folders[1] / "0142.png")
    segments = [(CAR, 200, 0), (ROAD, 7, 0), (9, 200, 1)]
    content = {
        "images": [{"id": 142, "file_name": "0142.jpg", "height": 4, "width": 6}],
        "annotations": [
            {
                "image_id": 142,
                "file_name": "0142.png",
                "segments_info": [
                    {"id": number, "category_id": category, "iscrowd": crowd}
                    for number, category, crowd in segments
                ],
            }
        ],
        "categories": [{"id": 200, "name": "car"}, {"id": 7, "name": "road"}],
    }
    (root / "annotations/panoptic_train2017.json").write_text(json.dumps(content))


@needs_formats
def test_the_sample_of_panopticapi(tmp_path):
    root = shutil.copytree(FORMATS / "coco-panoptic", tmp_path / "set")
    content = json.loads((root / "panoptic_examples.json").read_text())
    (image,) = content["images"]
    (root / "photos").mkdir()
    Image.new("RGB", (image["width"], image["height"])).save(root / "photos" / image["file_name"])
    dataset = opened(root)
    table = np.full(256, 255, np.uint8)
    for item in content["categories"]:
        table[item["id"]] = dataset.labels.names.index(item["name"])
    expected = table[np.array(Image.open(root / "mask.png"))]
    assert np.array_equal(dataset.read_mask(0), expected)


def test_segments_have_the_classes_of_their_ids(tmp_path):
    panoptic(tmp_path)
    dataset = opened(tmp_path)
    assert dataset.labels.names == ("road", "car")
    assert dataset.entries[0].image == str(tmp_path / "train2017/0142.jpg")
    assert masks_of(dataset)["0142"][0].tolist() == [1, 0, 0, 255, 1, 1]
    own = opened(tmp_path, "data.classes=[car, sky, road]")
    assert own.read_mask(0)[0].tolist() == [0, 2, 2, 255, 0, 0]


def test_segments_that_no_annotation_lists_are_refused(tmp_path):
    """As of a PNG that was written in the order blue, green, red."""
    panoptic(tmp_path, np.where(IDS == CAR, (CAR & 255) << 16 | CAR & 0xFF00, IDS))
    with refused("segment-unknown", found=[(CAR & 255) << 16 | CAR & 0xFF00]):
        opened(tmp_path).read_mask(0)
    shutil.rmtree(tmp_path / "annotations/panoptic_train2017")
    with refused("file-unreadable"):
        opened(tmp_path).read_mask(0)
