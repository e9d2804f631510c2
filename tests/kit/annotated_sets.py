"""Makes and opens data sets with annotations, and reads the reference masks of ``../shared/data/formats``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from PIL import Image

from segtrain.data.audit.check import settings_of
from segtrain.data.datasets import open_dataset

FORMATS = Path(os.environ.get("SEGTRAIN_FORMATS", ROOT.parent / "shared/data/formats"))
needs_formats = pytest.mark.skipif(not FORMATS.is_dir(), reason="needs ../shared/data/formats")


def opened(root: Path, *overrides: str, split: str = "") -> Any:
    data, splits = settings_of(str(root), list(overrides))
    split = split or splits[0]
    return open_dataset(data.model_copy(update={"train_split": split}), split)


def masks_of(dataset: Any) -> dict[str, np.ndarray]:
    return {
        entry.meta["name"]: dataset.read_mask(index) for index, entry in enumerate(dataset.entries)
    }


def referenced(dataset: Any, path: Path, names: dict[int, str]) -> np.ndarray:
    """The train ids of a reference mask. names: reference id -> class name."""
    ids = {0: 0, 255: dataset.labels.ignore_index}
    ids |= {raw: dataset.labels.names.index(name) for raw, name in names.items()}
    table = np.full(256, 254, np.uint8)
    table[list(ids)] = list(ids.values())
    return table[np.array(Image.open(path))]


def outline(mask: np.ndarray) -> int:
    """The number of pixels with another value than the pixel above or to the left of them."""
    edge = np.zeros(mask.shape, bool)
    edge[1:] |= mask[1:] != mask[:-1]
    edge[:, 1:] |= mask[:, 1:] != mask[:, :-1]
    return int(edge.sum())


def coco(
    root: Path, shapes: list[list[Any]], images: int = 2, size: tuple[int, int] = (20, 30)
) -> None:
    """A COCO set with one split, whose shapes [image, class, polygon] are in train.json."""
    (root / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(images):
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"images/{number}.png")
    names = sorted({name for _, name, _ in shapes})
    content = {
        "images": [
            {"id": n, "file_name": f"{n}.png", "height": size[0], "width": size[1]}
            for n in range(images)
        ],
        "categories": [{"id": 10 * n, "name": name} for n, name in enumerate(names, 1)],
        "annotations": [
            {
                "id": n,
                "image_id": image,
                "category_id": 10 * (names.index(name) + 1),
                "segmentation": [polygon],
            }
            for n, (image, name, polygon) in enumerate(shapes)
        ],
    }
    (root / "train.json").write_text(json.dumps(content))


def cvat(root: Path, *images: str, head: str = "") -> None:
    """CVAT's file of images of 30 x 20 pixels. images: the attributes and shapes of each."""
    (root / "images").mkdir(parents=True, exist_ok=True)
    for number in range(len(images)):
        Image.new("RGB", (30, 20)).save(root / f"images/{number}.png")
    rows = "".join(
        f'<image name="{number}.png" width="30" height="20" {image}</image>'
        for number, image in enumerate(images)
    )
    text = f"{head}<annotations><version>1.1</version><meta/>{rows}</annotations>"
    (root / "annotations.xml").write_text(text)


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


def supervisely(root: Path, dataset: str, kind: str, **item: Any) -> None:
    """A picture with one object."""
    pictures(root, f"{dataset}/img/a.png")
    content = {
        "size": {"height": 10, "width": 20},
        "objects": [{"classTitle": "car", "geometryType": kind, **item}],
    }
    (root / dataset / "ann").mkdir()
    (root / dataset / "ann/a.png.json").write_text(json.dumps(content))
