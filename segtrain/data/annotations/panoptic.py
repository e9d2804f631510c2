"""COCO's panoptic form: one JSON file per split, and an RGB PNG of segment ids for each image.

https://cocodataset.org/#format-data
"""

from __future__ import annotations

import os
from typing import Any

from segtrain.data.annotations import find
from segtrain.data.annotations.coco import KEYS, images_of
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import by_key, json_of, reading, text
from segtrain.data.annotations.shapes import Annotated, Annotations, Shape
from segtrain.data.index.layout import Detected
from segtrain.data.index.skeleton import is_dir
from segtrain.data.storage import Store


def _detect(root: str, store: Store) -> Detected | None:
    paths = [
        path
        for path, head in find.files(root, store, ".json")
        if KEYS.search(head) and '"shapes"' not in head and _has_segments(os.path.join(root, path))
    ]
    masks = [os.path.relpath(_masks(os.path.join(root, path), root, store), root) for path in paths]
    return find.detected(root, store, paths, images_of, masks)


def _has_segments(path: str) -> bool:
    content = json_of(path)
    items = content.get("annotations") if isinstance(content, dict) else None
    return isinstance(items, list) and items[:1] != [] and "segments_info" in (items[0] or ())


def _masks(path: str, root: str, store: Store) -> str:
    """The folder of the PNGs: it has the name of the JSON file, or holds it."""
    beside, name = os.path.splitext(path)[0], os.path.splitext(os.path.basename(path))[0]
    places = (beside, os.path.join(root, name))
    return next((place for place in places if is_dir(place, store)), os.path.dirname(path))


def _read(where: Where) -> Annotations:
    content = json_of(where.annotations)
    folder = _masks(where.annotations, where.root, where.store)
    with reading(where.annotations):
        categories = by_key(content["categories"], "id")
        names = {key: text(item["name"], "a name") for key, item in categories.items()}
        classes = {name: key for key, name in names.items()}
        images = by_key(content["images"], "id")
        annotated = tuple(
            _annotated(images[item["image_id"]], item, names, where.annotations, folder)
            for item in content["annotations"]
        )
    return Annotations(annotated, classes, "void")


def _annotated(
    image: dict[str, Any], item: dict[str, Any], names: dict[Any, str], file: str, folder: str
) -> Annotated:
    mask = os.path.join(folder, os.path.basename(item["file_name"]))
    ids: dict[str, list[int]] = {}
    for segment in item["segments_info"]:
        ids.setdefault(names[segment["category_id"]], []).append(int(segment["id"]))
    shapes = tuple(
        Shape(name, pixels={"file": mask, "segments": segments}) for name, segments in ids.items()
    )
    size = (int(image["height"]), int(image["width"]))
    return Annotated(str(image["file_name"]), file, shapes, size)


PANOPTIC = Format(
    "coco-panoptic",
    "a JSON file with images, segments_info, and categories, and PNGs of segment ids",
    _detect,
    _read,
).layout
