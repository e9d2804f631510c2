"""Supervisely's projects: meta.json, and a JSON file in ``ann`` for each image in ``img``.

Also from Dataset Ninja. https://docs.supervisely.com/customization-and-integration
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any

from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import (
    files_below,
    json_of,
    parts_of,
    png_pixels,
    reading,
    size_of,
    text,
)
from segtrain.data.annotations.shapes import (
    LINES,
    Annotated,
    Annotations,
    Shape,
    Size,
    bitmap,
    box,
    polygon,
    ring,
)
from segtrain.data.index.layout import Detected
from segtrain.data.storage import Store

_KEYS = ('"objects"', '"size"')
# Geometries without an area.
_NO_AREAS = ("point", "graph", "cuboid", "cuboid_2d", "point_3d")
_ANN = re.compile(r"(^|/)ann(?=/|$)")


def _fits(path: str, head: str) -> bool:
    return bool(_ANN.search(os.path.dirname(path))) and all(key in head for key in _KEYS)


_in_folders = find.by_content(_fits, ".json")


def _detect(root: str, store: Store) -> Detected | None:
    detected = _in_folders(root, store)
    if detected:
        # If several folders are read together, their names are in no setting.
        settings, splits = detected
        images = _ANN.sub(r"\1img", settings["annotations"])
        return {**settings, "images": images}, splits
    return None


def _read(where: Where) -> Annotations:
    images, classes = [], dict[str, int]()
    for name, path in files_below(where, ".json"):
        if _ANN.search(os.path.relpath(path, where.root)):
            content = json_of(path)
            with reading(path):
                size = size_of(content["size"])
                objects = enumerate(content["objects"])
                parts = parts_of(path, "object", objects, partial(_shape, size))
            image = _ANN.sub(r"\1img", name).removesuffix(".json")
            images.append(Annotated(image, path, parts, size))
    for path in where.others:
        content = json_of(path)
        with reading(path):
            names = [text(item["title"], "a title") for item in content["classes"]]
            classes = {name: number for number, name in enumerate(names)}
    return Annotations(images, classes)


def _shape(size: Size, item: dict[str, Any]) -> Shape | str:
    name, kind = text(item["classTitle"], "a classTitle"), item["geometryType"]
    if kind in _NO_AREAS:
        return str(kind)
    if kind in ("bitmap", "alpha_mask"):
        left, top = map(int, item["bitmap"]["origin"])
        return bitmap(name, png_pixels(item["bitmap"]["data"], size), (left, top))
    # The points are pixels, and belong to the shape.
    exterior = ring(item["points"]["exterior"])
    if kind == "rectangle":
        return polygon(name, [box(exterior.min(0), exterior.max(0) + 1)])
    if kind in ("polygon", *LINES):
        holes = [ring(hole) + 0.5 for hole in item["points"].get("interior") or ()]
        return polygon(name, [exterior + 0.5], holes, kind)
    raise ValueError(f"the unknown geometryType {kind!r}")


SUPERVISELY = Format(
    "supervisely",
    "meta.json, DATASET/img/, and DATASET/ann/ with a JSON file for each image (Supervisely)",
    _detect,
    _read,
    others=("/meta.json",),
).layout
