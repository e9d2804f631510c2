"""COCO's two forms: instances, one JSON file per split with polygons or run lengths, also as
Roboflow, CVAT, and Label Studio export it; and panoptic, one JSON file per split, and an RGB PNG of
segment ids for each image. https://cocodataset.org/#format-data
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import (
    BOX,
    by_id,
    json_of,
    parts_of,
    run_lengths,
    size_of,
    text,
)
from segtrain.data.annotations.shapes import Annotated, Annotations, Shape, Size, polygon
from segtrain.data.index.detect_pairs import pair_of_folders
from segtrain.data.index.layout import Detected
from segtrain.data.index.listing import WARNING
from segtrain.data.index.walk import is_dir
from segtrain.data.storage import Store

_LISTS = ("images", "annotations", "categories")
_KEYS = re.compile(rf'"({"|".join(_LISTS)})"\s*:\s*\[')


def _detect(root: str, store: Store) -> Detected | None:
    def fits(path: str, head: str) -> bool:
        # Boxes beside masks are left alone. Without masks, the layout refuses them.
        return _is_coco(path, head) and (_has_areas(path) or not pair_of_folders(root, store))

    return find.by_content(fits, ".json", images=_images)(root, store)


def _has_areas(path: str) -> bool:
    return any(item.get("segmentation") for item in json_of(path)["annotations"])


def _is_coco(path: str, head: str, panoptic: bool = False) -> bool:
    """Whether a JSON file has this form."""
    if not _KEYS.search(head) or '"shapes"' in head:
        return False
    content = json_of(path)
    try:
        keys = [[item.keys() for item in content[key]] for key in _LISTS]
    except (AttributeError, KeyError, TypeError):
        return False
    return panoptic == any("segments_info" in of_item for of_item in keys[1][:1])


def _images(path: str) -> Iterator[str]:
    """The names of the images in a file."""
    return (text(image["file_name"], "a file_name") for image in json_of(path)["images"])


def _names(content: dict[str, Any]) -> dict[Any, str]:
    """Category id -> name."""
    if "label" in content["categories"]:
        raise ValueError("this is Datumaro's format, not COCO's: export the set as COCO")
    return {key: item["name"] for key, item in by_id(content["categories"], "name").items()}


def _read(where: Where) -> Annotations:
    content = json_of(where.annotations)
    names = _names(content)
    by_image: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for item in content["annotations"]:
        by_image[item["image_id"]].append(item)
    images = []
    for key, image in by_id(content["images"], "file_name").items():
        size = size_of(image)
        items = ((item.get("id"), item) for item in by_image.pop(key, ()))
        parts = parts_of(where.annotations, "annotation", items, partial(_shape, names, size))
        images.append(Annotated(image["file_name"], where.annotations, parts, size))
    used = {item["category_id"] for item in content["annotations"]}
    # Roboflow adds a category with the name of the project, in which nothing is annotated.
    classes = {
        item["name"]: item["id"]
        for item in content["categories"]
        if item["id"] in used or item.get("supercategory") != "none"
    }
    orphans = sum(map(len, by_image.values()))
    if orphans == len(content["annotations"]) > 0:
        raise ValueError(f"no image has the image_id {next(iter(by_image))!r} or any other")
    notes = (
        f"{WARNING}{orphans:,} annotations left out, because the file lists no image with "
        f"their image_id, such as {next(iter(by_image), '')!r}",
    ) * bool(orphans)
    return Annotations(images, classes, notes=notes)


def _shape(names: dict[Any, str], size: Size, item: dict[str, Any]) -> Shape | str:
    from pycocotools import mask as rle

    area, category = item.get("segmentation"), item["category_id"]
    if category not in names:
        raise ValueError(f"no category has the id {category!r}")
    name = names[category]
    if not area:
        return BOX
    if isinstance(area, dict) and "counts" in area:
        if tuple(area["size"]) != size:
            raise ValueError(f"a mask of the size {area['size']} in an image of {size}")
        listed = isinstance(area["counts"], list)
        counts = rle.frPyObjects(area, *size)["counts"] if listed else area["counts"].encode()
        lengths = run_lengths(counts)
        if sum(lengths) != size[0] * size[1] or min(lengths) < 0:
            raise ValueError(f"run lengths of {sum(lengths):,} pixels in an image of {size}")
        return Shape(name, {"pixels": {"size": size, "counts": counts.decode()}})
    if isinstance(area, dict):
        raise ValueError(f"a segmentation with the keys {sorted(area)}")
    rings = [area] if np.isscalar(area[0]) else area
    return polygon(name, [np.reshape(ring, (-1, 2)) for ring in rings])


COCO = Format(
    "coco",
    "a JSON file with images, annotations, and categories (COCO, Roboflow, CVAT, Label Studio)",
    _detect,
    _read,
    "smallest",
).layout


def _masks(path: str, root: str, store: Store) -> str:
    """The folder of the PNGs: it has the name of the JSON file, or holds it."""
    beside, name = os.path.splitext(path)[0], os.path.splitext(os.path.basename(path))[0]
    places = (beside, os.path.join(root, name))
    return next((place for place in places if is_dir(place, store)), os.path.dirname(path))


def _read_panoptic(where: Where) -> Annotations:
    content = json_of(where.annotations)
    folder = _masks(where.annotations, where.root, where.store)
    names = _names(content)
    images = by_id(content["images"], "file_name")
    annotated = []
    for item in content["annotations"]:
        image, mask = images[item["image_id"]], os.path.basename(item["file_name"])
        ids: dict[str, list[int]] = defaultdict(list)
        for segment in item["segments_info"]:
            ids[names[segment["category_id"]]].append(int(segment["id"]))
        shapes = [
            Shape(name, {"pixels": {"file": os.path.join(folder, mask), "segments": segments}})
            for name, segments in ids.items()
        ]
        annotated.append(Annotated(image["file_name"], where.annotations, shapes, size_of(image)))
    return Annotations(annotated, {name: key for key, name in names.items()})


PANOPTIC = Format(
    "coco-panoptic",
    "a JSON file with images, segments_info, and categories, and PNGs of segment ids",
    find.by_content(partial(_is_coco, panoptic=True), ".json", images=_images),
    _read_panoptic,
    background="void",
).layout
