"""COCO's instances: one JSON file per split with polygons or run lengths.

Also as Roboflow, CVAT, and Label Studio export it. https://cocodataset.org/#format-data
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import (
    boxes_alone,
    by_key,
    json_of,
    polygon,
    reading,
    run_lengths,
    text,
)
from segtrain.data.annotations.shapes import Annotated, Annotations, Shape, encoded
from segtrain.data.index.detect_pairs import pair_of_folders
from segtrain.data.index.layout import Detected
from segtrain.data.index.listing import WARNING
from segtrain.data.storage import Store

KEYS = re.compile(r'"(images|annotations|categories)"\s*:\s*\[')


def _detect(root: str, store: Store) -> Detected | None:
    paths = [
        path
        for path, head in find.files(root, store, ".json")
        if KEYS.search(head) and '"shapes"' not in head and "segments_info" not in head
    ]
    contents = {path: json_of(os.path.join(root, path)) for path in paths}
    paths = [path for path in paths if _is_coco(contents[path])]
    # Boxes beside masks are left alone. Without masks, ``_read`` refuses them.
    alone = paths and not any(map(_has_areas, map(contents.get, paths)))
    if alone and pair_of_folders(root, store):
        return None
    return find.detected(root, store, paths, images_of)


def _is_coco(content: Any) -> bool:
    return isinstance(content, dict) and all(
        isinstance(content.get(key), list) and all(isinstance(item, dict) for item in content[key])
        for key in ("images", "annotations", "categories")
    )


def _has_areas(content: Any) -> bool:
    return any(item.get("segmentation") for item in content["annotations"])


def images_of(path: str) -> list[str]:
    """The names of the first images in a file."""
    return [text(image["file_name"], "a file_name") for image in json_of(path)["images"][:20]]


def _read(where: Where) -> Annotations:
    content = json_of(where.annotations)
    with reading(where.annotations):
        categories = by_key(content["categories"], "id")
        names = {key: text(item["name"], "a name") for key, item in categories.items()}
        by_image: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for item in content["annotations"]:
            by_image[item["image_id"]].append(item)
        images = tuple(
            _annotated(image, by_image.pop(key, []), names, where.annotations)
            for key, image in by_key(content["images"], "id").items()
        )
        used = {item["category_id"] for item in content["annotations"]}
        # Roboflow adds a category with the name of the project, in which nothing is annotated.
        listed = [
            item
            for item in content["categories"]
            if item["id"] in used or item.get("supercategory") != "none"
        ]
        if not any(image.shapes for image in images) and any(image.left_out for image in images):
            raise boxes_alone(where.annotations)
        orphans = sum(map(len, by_image.values()))
        if orphans == len(content["annotations"]) > 0:
            raise ValueError(f"no image has the image_id {next(iter(by_image))!r} or any other")
        notes = (
            f"{WARNING}{orphans:,} annotations left out, because the file lists no image with "
            f"their image_id, such as {next(iter(by_image), '')!r}",
        ) * bool(orphans)
    return Annotations(images, {names[item["id"]]: item["id"] for item in listed}, notes=notes)


def _annotated(
    image: dict[str, Any], items: list[dict[str, Any]], names: dict[Any, str], file: str
) -> Annotated:
    size = (int(image["height"]), int(image["width"]))
    shapes, left_out = list[Shape](), Counter[str]()
    for item in items:
        with reading(file, f"annotation {item.get('id')}"):
            if item["category_id"] not in names:
                raise ValueError(f"no category has the id {item['category_id']!r}")
            shape = _shape(item.get("segmentation"), names[item["category_id"]], size, left_out)
        shapes += [shape] if shape else []
    return Annotated(
        text(image["file_name"], "a file_name"), file, tuple(shapes), size, None, left_out
    )


def _shape(area: Any, name: str, size: tuple[int, int], left_out: Counter[str]) -> Shape | None:
    from pycocotools import mask as rle

    if not area:
        left_out["box without an area"] += 1
        return None
    if isinstance(area, dict) and "counts" in area:
        if tuple(area["size"]) != size:
            raise ValueError(f"a mask of the size {area['size']} in an image of {size}")
        counts = area["counts"]
        compressed = isinstance(counts, (str, bytes))
        pixels = int(sum(run_lengths(counts) if compressed else counts))
        if pixels != size[0] * size[1]:
            raise ValueError(f"run lengths of {pixels:,} pixels in an image of {size}")
        runs = area if compressed else rle.frPyObjects(area, *size)
        return Shape(name, pixels=encoded(rle.decode(runs)))
    if isinstance(area, dict):
        raise ValueError(f"a segmentation with the keys {sorted(area)}")
    rings = [area] if np.isscalar(area[0]) else area
    return polygon(name, [np.reshape(ring, (-1, 2)) for ring in rings], left_out)


COCO = Format(
    "coco",
    "a JSON file with images, annotations, and categories (COCO, Roboflow, CVAT, Label Studio)",
    _detect,
    _read,
    "smallest",
).layout
