"""labelme's JSON: a file for each image, with polygons, rectangles, circles, and bitmaps.

Also as X-AnyLabeling writes it, and the XML of the older LabelMe of MIT, with polygons.
https://github.com/wkentaro/labelme, http://labelme.csail.mit.edu
"""

from __future__ import annotations

import math
import os
import re
from typing import Any

import numpy as np

from segtrain.base.terminal import counted
from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import (
    files_below,
    json_of,
    parts_of,
    png_pixels,
    reading,
    text,
    xml_of,
)
from segtrain.data.annotations.shapes import (
    LINES,
    Annotated,
    Annotations,
    Shape,
    bitmap,
    box,
    ellipse,
    polygon,
    ring,
)
from segtrain.data.index.listing import WARNING
from segtrain.data.index.walk import images_below
from segtrain.errors import some_of

_SHAPES = re.compile(r'"shapes"\s*:\s*\[')
_OURS = re.compile(r'"(imagePath|imageData|shape_type)"\s*:')
_XML = re.compile(r"\s*(<\?xml[^>]*>)?\s*<annotation>.*<polygon>.*<pt>", re.DOTALL)
_POLYGONS = ("polygon", "oriented_rectangle", "rotation", "quadrilateral", *LINES)


def _fits(path: str, head: str) -> bool:
    return bool((_SHAPES.search(head) and _OURS.search(head)) or _XML.match(head))


def _read(where: Where) -> Annotations:
    pictures = {os.path.basename(path) for path in images_below(where.images, where.store)}
    pictures |= {os.path.splitext(name)[0] for name in pictures}
    images, others = list[Annotated](), list[str]()
    for name, path in (*files_below(where, ".json"), *files_below(where, ".xml")):
        content = _of_xml(path) if name.endswith(".xml") else json_of(path)
        if not isinstance(content, dict) or "shapes" not in content:
            others.append(name)
            continue
        with reading(path):
            height, width = content.get("imageHeight"), content.get("imageWidth")
            size = (int(height), int(width)) if height and width else None
            parts = parts_of(path, "shape", enumerate(content["shapes"]), _shape)
            image = os.path.join(os.path.dirname(name), str(content.get("imagePath")))
        # Where an image was renamed together with its JSON file, imagePath is the old name.
        if re.split(r"[/\\]", image)[-1] not in pictures:
            image = name
            if content.get("imageData") and os.path.basename(name)[:-5] not in pictures:
                image = f"{name} (which holds it as imageData)"
        images.append(Annotated(image, path, parts, size, upright=True))
    what = counted(len(others), "file")
    notes = (f"{WARNING}{what} without shapes left out: {some_of(others)}",) * bool(others)
    return Annotations(images, notes=notes)


def _of_xml(path: str) -> dict[str, Any]:
    """The content of an XML file in the form of labelme's JSON."""
    root = xml_of(path)
    shapes = [
        {
            "label": item.findtext("name", "").strip(),
            "points": [[point.findtext(axis) for axis in "xy"] for point in item.iter("pt")],
        }
        for item in root.iterfind("object")
        if item.findtext("deleted") != "1"
    ]
    return {"shapes": shapes, "imagePath": root.findtext("filename", "").strip()}


def _shape(item: dict[str, Any]) -> Shape | str:
    name, points = text(item["label"], "a label"), ring(item["points"])
    kind = item.get("shape_type") or "polygon"
    if kind in ("point", "points"):
        return str(kind)
    if kind in _POLYGONS:
        return polygon(name, [points], kind=kind)
    if len(points) < 2:
        raise ValueError(f"a {kind} of fewer than 2 points")
    begin, end = points.min(0), points.max(0)
    if kind == "rectangle":
        # The pixels of two opposite corners, or of all four, belong to it.
        return polygon(name, [box(np.floor(begin), np.floor(end) + 1)])
    if kind == "circle":
        return polygon(name, [ellipse(points[0], [math.dist(points[0], points[1])] * 2)])
    if kind == "mask":
        left, top, right, bottom = np.rint([*begin, *end]).astype(int).tolist()
        return bitmap(
            name, png_pixels(item["mask"], (bottom - top + 2, right - left + 2)), (left, top)
        )
    raise ValueError(f"the unknown shape_type {kind!r}")


LABELME = Format(
    "labelme",
    "a JSON file with shapes for each image (labelme, X-AnyLabeling), or an XML file (LabelMe)",
    find.by_content(_fits, ".json", ".xml"),
    _read,
).layout
