"""labelme's JSON: a file for each image, with polygons, rectangles, circles, and bitmaps.

Also as X-AnyLabeling writes it. https://github.com/wkentaro/labelme
"""

from __future__ import annotations

import base64
import math
import os
import re
from collections import Counter
from typing import Any

import numpy as np

from segtrain.base.terminal import counted
from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import json_of, png_pixels, polygon, reading, text
from segtrain.data.annotations.shapes import (
    Annotated,
    Annotations,
    Shape,
    box,
    ellipse,
    encoded,
    ring,
)
from segtrain.data.index.layout import Detected
from segtrain.data.index.listing import WARNING
from segtrain.data.index.walk import images_below
from segtrain.data.storage import Store
from segtrain.errors import file_error, some_of

_SHAPES = re.compile(r'"shapes"\s*:\s*\[')
_OURS = re.compile(r'"(imagePath|imageData|shape_type)"\s*:')
_POLYGONS = ("polygon", "oriented_rectangle", "rotation", "quadrilateral")
_LINES = ("line", "linestrip", "point", "points")


def _detect(root: str, store: Store) -> Detected | None:
    folders = {
        os.path.dirname(path)
        for path, head in find.files(root, store, ".json")
        if _SHAPES.search(head) and _OURS.search(head)
    }
    return find.detected_in_folders(root, store, sorted(folders), ".json")


def _read(where: Where) -> Annotations:
    pictures = {os.path.basename(path) for path in images_below(where.images, where.store)}
    pictures |= {os.path.splitext(name)[0] for name in pictures}
    images, others = list[Annotated](), list[str]()
    for name in sorted(where.store.walk(where.annotations)):
        path = os.path.join(where.annotations, name)
        content = json_of(path, without="imageData") if name.endswith(".json") else None
        if isinstance(content, dict) and "shapes" in content:
            images.append(_annotated(content, path, name, pictures))
        elif content is not None:
            others.append(name)
    what = counted(len(others), "JSON file")
    notes = (f"{WARNING}{what} without shapes left out: {some_of(others)}",) * bool(others)
    names = {shape.name for image in images for shape in image.shapes}
    return Annotations(tuple(images), {name: name for name in names}, notes=notes)


def _annotated(content: dict[str, Any], path: str, name: str, pictures: set[str]) -> Annotated:
    """pictures: names of the images, with and without suffix."""
    shapes, left_out = list[Shape](), Counter[str]()
    with reading(path):
        size = (content.get("imageHeight"), content.get("imageWidth"))
        full = (int(size[0]), int(size[1])) if size[0] and size[1] else None
        for number, item in enumerate(content["shapes"]):
            with reading(path, f"shape {number}"):
                shape = _shape(item, full, left_out)
                shapes += [shape] if shape else []
        image = os.path.join(os.path.dirname(name), str(content.get("imagePath")))
    # Where an image was renamed together with its JSON file, imagePath is the old name.
    if re.split(r"[/\\]", image)[-1] not in pictures:
        image = name
    if content.get("imageData") and os.path.basename(name)[:-5] not in pictures and image == name:
        reason = "its image exists only as imageData in this file: decode it into an image file"
        raise file_error(path, reason, code="image-inside-json")
    return Annotated(image, path, tuple(shapes), full, upright=True, left_out=left_out)


def _shape(
    item: dict[str, Any], size: tuple[int, int] | None, left_out: Counter[str]
) -> Shape | None:
    name, points = text(item["label"], "a label"), ring(item["points"])
    kind = item.get("shape_type") or "polygon"
    if kind in _LINES:
        left_out[kind] += 1
        return None
    if kind in _POLYGONS:
        return polygon(name, [points], left_out)
    if len(points) < 2:
        raise ValueError(f"a {kind} of fewer than 2 points")
    if kind == "rectangle":
        # The pixels of two opposite corners, or of all four, belong to it.
        (left, top), (right, bottom) = np.floor(points.min(0)), np.floor(points.max(0)) + 1
        return Shape(name, (box(left, top, right - left, bottom - top),))
    if kind == "circle":
        radius = math.dist(points[0], points[1])
        return Shape(name, (ellipse((points[0][0], points[0][1]), (radius, radius)),))
    if kind == "mask":
        (left, top), (right, bottom) = (
            np.rint(corner).astype(int).tolist() for corner in (points.min(0), points.max(0))
        )
        pixels = png_pixels(base64.b64decode(item["mask"]), (bottom - top + 2, right - left + 2))
        return Shape(name, pixels=encoded(pixels), at=(left, top))
    raise ValueError(f"the unknown shape_type {kind!r}")


LABELME = Format(
    "labelme",
    "a JSON file with shapes for each image (labelme, X-AnyLabeling)",
    _detect,
    _read,
    "file",
).layout
