"""CVAT's XML for images: one file with polygons, boxes, ellipses, and masks of all images.

https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import numpy as np

from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import polygon, reading
from segtrain.data.annotations.shapes import Annotated, Annotations, Shape, box, ellipse, encoded
from segtrain.data.bucket.tree import local_copy
from segtrain.data.index.layout import Detected
from segtrain.data.pixels.header import MAX_PIXELS
from segtrain.data.storage import Store
from segtrain.errors import file_error

_ROOT = re.compile(r"\ufeff?\s*(<\?xml[^>]*>)?\s*<annotations>\s*<version>")
_NO_AREAS = ("cuboid", "points", "polyline", "skeleton", "tag")


def _detect(root: str, store: Store) -> Detected | None:
    paths = [path for path, head in find.files(root, store, ".xml") if _ROOT.match(head)]
    detected = find.detected(root, store, paths, _names)
    if detected is None:
        return None
    settings, splits = detected
    tree = _xml(os.path.join(root, settings["annotations"].replace("{split}", splits[0])))
    subsets = {image.get("subset", "") for image in tree.iter("image")}
    if len(subsets) == 1:
        return detected
    # The export of a project has all its subsets in one file, and their images in images/SUBSET/.
    above = os.path.dirname(settings["images"])
    return {**settings, "images": os.path.join(above, "{split}")}, sorted(subsets)


def _names(path: str) -> list[str]:
    with reading(path):
        return [_name(image) for image in _xml(path).iter("image")][:20]


def _name(image: Element) -> str:
    return os.path.join(image.get("subset", ""), image.attrib["name"])


def _xml(path: str) -> Element:
    """The root of an XML file. A file with a document type is refused, because it could define
    entities that fill the memory or read other files.
    """

    def refuse(*_: Any) -> None:
        raise ValueError("it has a document type")

    builder, parser = TreeBuilder(), expat.ParserCreate()
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse
    with reading(path), open(local_copy(path), "rb") as stream:
        parser.ParseFile(stream)
        return builder.close()


def _read(where: Where) -> Annotations:
    file = where.annotations
    root = _xml(file)
    if root.find("track") is not None:
        reason = "has the key frames of a video: export the task as 'CVAT for images 1.1'"
        raise file_error(file, reason, code="annotation-of-video")
    with reading(file):
        labels = [
            label.findtext("name", "")
            for label in root.iterfind("meta//labels/label")
            if label.find("parent") is None and label.findtext("type") not in _NO_AREAS
        ]
        images = list(root.iter("image"))
        subset = os.path.basename(where.images)
        if subset in {image.get("subset") for image in images}:
            images = [image for image in images if image.get("subset") == subset]
        annotated = tuple(_annotated(image, file) for image in images)
    drawn = {shape.name: len(labels) for image in annotated for shape in image.shapes}
    return Annotations(annotated, drawn | {name: number for number, name in enumerate(labels)})


def _annotated(image: Element, file: str) -> Annotated:
    shapes, left_out = list[Shape](), Counter[str]()
    for element in image:
        if element.tag in _NO_AREAS:
            left_out += {element.tag: 1} if element.tag != "tag" else {}
        else:
            shape = _shape(element, left_out)
            shapes += [shape] if shape else []
    size = (int(image.attrib["height"]), int(image.attrib["width"]))
    # CVAT shows images as their EXIF rotation says.
    return Annotated(_name(image), file, tuple(shapes), size, True, left_out)


def _shape(element: Element, left_out: Counter[str]) -> Shape | None:
    name, rank = element.attrib["label"], int(element.get("z_order", 0))
    turn = float(element.get("rotation", 0))
    if element.tag == "polygon":
        points = [p.split(",") for p in element.attrib["points"].split(";") if p]
        return polygon(name, [points], left_out, rank=rank)
    if element.tag == "box":
        left, top, right, bottom = _numbers(element, "xtl", "ytl", "xbr", "ybr")
        return Shape(name, (box(left, top, right - left, bottom - top, turn),), rank=rank)
    if element.tag == "ellipse":
        x, y, x_radius, y_radius = _numbers(element, "cx", "cy", "rx", "ry")
        return Shape(name, (ellipse((x, y), (x_radius, y_radius), turn),), rank=rank)
    if element.tag != "mask":
        raise ValueError(f"an unknown shape: {element.tag}")
    left, top, width, height = map(int, _numbers(element, "left", "top", "width", "height"))
    pixels = _pixels([int(run) for run in element.attrib["rle"].split(",")], (height, width))
    return Shape(name, pixels=encoded(pixels), at=(left, top), rank=rank)


def _numbers(element: Element, *keys: str) -> list[float]:
    numbers = [float(element.attrib[key]) for key in keys]
    if not np.isfinite(numbers).all():
        raise ValueError(f"{element.tag}: a number is not finite")
    return numbers


def _pixels(runs: list[int], size: tuple[int, int]) -> np.ndarray:
    """The pixels of run lengths, row by row; the first run is of pixels that are not set, and the
    last one of such pixels may be missing.
    """
    area = size[0] * size[1]
    if len(runs) % 2 == 0:
        runs = [*runs, area - sum(runs)]
    if min(runs) < 0 or sum(runs) != area or not 0 < area <= MAX_PIXELS:
        raise ValueError(f"run lengths of {sum(runs)} pixels in a mask of {size[0]} x {size[1]}")
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(size)


CVAT = Format("cvat", "an XML file of CVAT's export 'CVAT for images 1.1'", _detect, _read).layout
