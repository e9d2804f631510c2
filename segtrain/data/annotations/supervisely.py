"""Supervisely's projects: meta.json, and a JSON file in ``ann`` for each image in ``img``.

Also from Dataset Ninja. https://docs.supervisely.com/customization-and-integration
"""

from __future__ import annotations

import base64
import os
import re
import zlib
from collections import Counter
from typing import Any

from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import json_of, png_pixels, polygon, reading, text
from segtrain.data.annotations.shapes import Annotated, Annotations, Shape, box, encoded, ring
from segtrain.data.index.layout import Detected
from segtrain.data.storage import Store

_KEYS = ('"objects"', '"size"')
# Geometries without an area.
_LINES = ("point", "line", "polyline", "graph", "cuboid", "cuboid_2d", "point_3d")
# The largest PNG of a shape, in bytes.
_LARGEST = 1 << 26
_ANN = re.compile(r"(^|/)ann(?=/|$)")


def _detect(root: str, store: Store) -> Detected | None:
    folders = {
        os.path.dirname(path)
        for path, head in find.files(root, store, ".json")
        if _ANN.search(os.path.dirname(path)) and all(key in head for key in _KEYS)
    }
    detected = find.detected_in_folders(root, store, sorted(folders), ".json")
    if detected:
        # If several folders are read together, their names are in no setting.
        settings, splits = detected
        images = _ANN.sub(r"\1img", settings["annotations"])
        return {**settings, "images": images}, splits
    return None


def _meta_files(where: Where) -> list[str]:
    return find.files_above(where.annotations, where.root, where.store, ("/meta.json",))


def _read(where: Where) -> Annotations:
    images = []
    for name in sorted(where.store.walk(where.annotations)):
        path = os.path.join(where.annotations, name)
        if name.endswith(".json") and _ANN.search(os.path.relpath(path, where.root)):
            images.append(_annotated(path, _ANN.sub(r"\1img", name).removesuffix(".json")))
    names = sorted({shape.name for image in images for shape in image.shapes})
    for path in _meta_files(where):
        content = json_of(path)
        with reading(path):
            names = [text(item["title"], "a title") for item in content["classes"]]
    return Annotations(tuple(images), {name: number for number, name in enumerate(names)})


def _annotated(path: str, image: str) -> Annotated:
    content = json_of(path)
    shapes, left_out = list[Shape](), Counter[str]()
    with reading(path):
        size = (int(content["size"]["height"]), int(content["size"]["width"]))
        for number, item in enumerate(content["objects"]):
            with reading(path, f"object {number}"):
                shape = _shape(item, size, left_out)
                shapes += [shape] if shape else []
    return Annotated(image, path, tuple(shapes), size, left_out=left_out)


def _shape(item: dict[str, Any], size: tuple[int, int], left_out: Counter[str]) -> Shape | None:
    name, kind = text(item["classTitle"], "a classTitle"), item["geometryType"]
    if kind in _LINES:
        left_out[kind] += 1
        return None
    if kind in ("bitmap", "alpha_mask"):
        left, top = map(int, item["bitmap"]["origin"])
        pixels = png_pixels(_unpacked(item["bitmap"]["data"]), size)
        return Shape(name, pixels=encoded(pixels), at=(left, top))
    # The points are pixels, and belong to the shape.
    exterior = ring(item["points"]["exterior"])
    if kind == "rectangle":
        (left, top), (right, bottom) = exterior.min(0), exterior.max(0) + 1
        return polygon(name, [box(left, top, right - left, bottom - top)], left_out)
    if kind == "polygon":
        holes = [ring(hole) + 0.5 for hole in item["points"].get("interior") or ()]
        return polygon(name, [exterior + 0.5], left_out, holes)
    raise ValueError(f"the unknown geometryType {kind!r}")


def _unpacked(text: str) -> bytes:
    """A PNG from base64, mostly with zlib."""
    content = base64.b64decode(text)
    if content.startswith(b"\x89PNG"):
        return content
    unpacking = zlib.decompressobj()
    content = unpacking.decompress(content, _LARGEST)
    if unpacking.unconsumed_tail:
        raise ValueError(f"a bitmap of more than {_LARGEST:,} bytes")
    return content


SUPERVISELY = Format(
    "supervisely",
    "meta.json, DATASET/img/, and DATASET/ann/ with a JSON file for each image (Supervisely)",
    _detect,
    _read,
    "file",
    _meta_files,
).layout
