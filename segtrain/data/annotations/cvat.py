"""CVAT's XML for images: one file with polygons, boxes, ellipses, and masks of all images.

https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/
"""

from __future__ import annotations

import os
import re
from typing import Any
from xml.etree.ElementTree import Element

from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import size_of, xml_of
from segtrain.data.annotations.shapes import (
    LINES,
    Annotated,
    Annotations,
    Shape,
    bitmap,
    box,
    ellipse,
    polygon,
    rotated,
    unpacked,
)
from segtrain.data.index.layout import Detected
from segtrain.data.storage import Store
from segtrain.errors import file_error

_ROOT = re.compile(r"\ufeff?\s*(<\?xml[^>]*>)?\s*<annotations>\s*<version>")
_NO_AREAS = ("cuboid", "points", "skeleton", "tag")


def _detect(root: str, store: Store) -> Detected | None:
    detected = _in_files(root, store)
    if detected is None:
        return None
    settings, splits = detected
    tree = xml_of(os.path.join(root, settings["annotations"].replace("{split}", splits[0])))
    subsets = {image.get("subset", "") for image in tree.iter("image")}
    if len(subsets) < 2:  # none in a video
        return detected
    # The export of a project has all its subsets in one file, and their images in images/SUBSET/.
    above, name = os.path.split(settings["images"])
    images = os.path.join(above, "" if name in subsets else name, "{split}")
    return {"annotations": settings["annotations"], "images": images}, sorted(subsets)


def _name(image: Element) -> str:
    return os.path.join(image.get("subset", ""), image.attrib["name"])


_in_files = find.by_content(
    lambda path, head: _ROOT.match(head),
    ".xml",
    images=lambda path: map(_name, xml_of(path).iter("image")),
)


def _read(where: Where) -> Annotations:
    file = where.annotations
    root = xml_of(file)
    if root.find("track") is not None:
        reason = "has the key frames of a video: export the task as 'CVAT for images 1.1'"
        raise file_error(file, reason, code="annotation-of-video")
    labels = [
        label.findtext("name", "")
        for label in root.iterfind("meta//labels/label")
        if label.find("parent") is None and label.findtext("type") not in (*_NO_AREAS, *LINES)
    ]
    images = list(root.iter("image"))
    subset = os.path.basename(where.images)
    inside = [image for image in images if image.get("subset") == subset]
    # CVAT shows images as their EXIF rotation says.
    annotated = [
        Annotated(
            _name(image),
            file,
            [_shape(element) for element in sorted(image, key=_order) if element.tag != "tag"],
            size_of(image.attrib),
            upright=True,
        )
        for image in inside or images
    ]
    return Annotations(annotated, {name: number for number, name in enumerate(labels)})


def _order(element: Element) -> int:
    return int(element.get("z_order", 0))


def _shape(element: Element) -> Shape | str:
    if element.tag in _NO_AREAS:
        return element.tag
    name, turn = element.attrib["label"], float(element.get("rotation", 0))
    if element.tag == "mask":
        corner = int(element.attrib["left"]), int(element.attrib["top"])
        runs = [int(run) for run in element.attrib["rle"].split(",")]
        return bitmap(name, unpacked(runs, size_of(element.attrib)), corner)
    if element.tag in ("polygon", "polyline"):
        points = element.attrib["points"].split(";")
        outline: Any = [point.split(",") for point in points if point]
    elif element.tag == "box":
        left, top, right, bottom = _numbers(element, "xtl", "ytl", "xbr", "ybr")
        center = (left + right) / 2, (top + bottom) / 2
        outline = rotated(box((left, top), (right, bottom)), center, turn)
    elif element.tag == "ellipse":
        x, y, *radii = _numbers(element, "cx", "cy", "rx", "ry")
        outline = ellipse((x, y), radii, turn)
    else:
        raise ValueError(f"an unknown shape: {element.tag}")
    return polygon(name, [outline], kind=element.tag)


def _numbers(element: Element, *keys: str) -> list[float]:
    return [float(element.attrib[key]) for key in keys]


CVAT = Format("cvat", "an XML file of CVAT's export 'CVAT for images 1.1'", _detect, _read).layout
