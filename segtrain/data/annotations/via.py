"""VIA's files, versions 1 and 2: the project, or the exported JSON or CSV file.

https://www.robots.ox.ac.uk/~vgg/software/via/
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any

import numpy as np

from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import json_of, label_key, rows_of
from segtrain.data.annotations.shapes import (
    UNNAMED,
    Annotated,
    Annotations,
    Shape,
    box,
    ellipse,
    polygon,
)

# The project; or an export, of whose images some may have no region.
_JSON = re.compile(
    r'.*"_via_img_metadata"|(?=.*"filename")(?=.*"(shape|file)_attributes").*"regions"\s*:\s*[\[{]',
    re.DOTALL,
)
_CSV = re.compile("#?filename,file_size,file_attributes,region_count,region_id,region_shape_attr")


# The shape of a region, and its attributes.
_Region = tuple[dict[str, Any], dict[str, Any]]
# The name of an image, and its regions.
_Image = tuple[str, list[_Region]]


def _read(where: Where) -> Annotations:
    images = _images(where.annotations)
    key = label_key([attributes for _, regions in images for _, attributes in regions], where)
    return Annotations(
        [
            Annotated(name, where.annotations, [_shape(*region, key) for region in regions])
            for name, regions in images
        ]
    )


def _images(path: str) -> list[_Image]:
    if path.endswith(".csv"):
        return _rows(path)
    content = json_of(path)
    images = []
    for item in content.get("_via_img_metadata", content).values():
        regions = item["regions"]
        listed = regions.values() if isinstance(regions, dict) else regions  # version 1 has a dict
        pairs = [(region["shape_attributes"], region["region_attributes"]) for region in listed]
        images.append((str(item["filename"]), pairs))
    return images


def _rows(path: str) -> list[_Image]:
    regions = defaultdict[tuple[str, str], list[_Region]](list)
    for row in rows_of(path):
        of_image = regions[row["filename"], row["file_size"]]
        shape = json.loads(row["region_shape_attributes"])
        if shape:
            of_image.append((shape, json.loads(row["region_attributes"])))
    return [(name, of_image) for (name, _), of_image in regions.items()]


def _label(value: Any) -> str:
    """The class that an attribute names: a text, or the checked one of several boxes."""
    if not isinstance(value, dict):
        return "" if value is None else str(value).strip()
    checked = [name for name, on in value.items() if on]
    if len(checked) > 1:
        raise ValueError(f"a region has the classes {checked}")
    return "".join(checked)


def _shape(shape: dict[str, Any], attributes: dict[str, Any], key: str) -> Shape | str:
    label = _label(attributes.get(key)) if key else UNNAMED
    if key and not label:
        return f"region without {key!r}"
    kind = shape["name"]
    if kind == "point":
        return str(kind)
    if kind in ("polygon", "polyline"):
        points = np.stack([shape["all_points_x"], shape["all_points_y"]], 1)
    elif kind == "rect":
        corner = np.array([shape["x"], shape["y"]])
        points = box(corner, corner + [shape["width"], shape["height"]])
    elif kind in ("circle", "ellipse"):
        center, keys = (shape["cx"], shape["cy"]), ("r", "r") if kind == "circle" else ("rx", "ry")
        turn = np.degrees(shape.get("theta", 0))
        points = ellipse(center, [shape[key] for key in keys], turn)
    else:
        raise ValueError(f"the unknown shape {kind!r}")
    return polygon(label, [points], kind=kind)


VIA = Format(
    "via",
    "a JSON or CSV file with regions of images (VGG Image Annotator, version 1 or 2)",
    find.by_content(
        lambda path, head: _JSON.match(head) or _CSV.match(head),
        ".json",
        ".csv",
        images=lambda path: (name for name, _ in _images(path)),
        same=lambda path: repr(_images(path)),  # a project, and what was exported from it
    ),
    _read,
    "smallest",
).layout
