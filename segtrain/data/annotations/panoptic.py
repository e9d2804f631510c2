"""COCO's panoptic form: one JSON file per split, and an RGB PNG of segment ids for each image.

https://cocodataset.org/#format-data
"""

from __future__ import annotations

import os
from collections import defaultdict

from segtrain.data.annotations import find
from segtrain.data.annotations.coco import files_of, images_of, names_of
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import by_id, json_of, reading, size_of
from segtrain.data.annotations.shapes import Annotated, Annotations, Shape
from segtrain.data.index.layout import Detected
from segtrain.data.index.skeleton import is_dir
from segtrain.data.storage import Store


def _detect(root: str, store: Store) -> Detected | None:
    paths = files_of(root, store, panoptic=True)
    masks = [os.path.relpath(_masks(os.path.join(root, path), root, store), root) for path in paths]
    return find.detected(root, store, paths, images_of, masks)


def _masks(path: str, root: str, store: Store) -> str:
    """The folder of the PNGs: it has the name of the JSON file, or holds it."""
    beside, name = os.path.splitext(path)[0], os.path.splitext(os.path.basename(path))[0]
    places = (beside, os.path.join(root, name))
    return next((place for place in places if is_dir(place, store)), os.path.dirname(path))


def _read(where: Where) -> Annotations:
    content = json_of(where.annotations)
    folder = _masks(where.annotations, where.root, where.store)
    with reading(where.annotations):
        names = names_of(content)
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
            annotated.append(
                Annotated(image["file_name"], where.annotations, shapes, size_of(image))
            )
    return Annotations(annotated, {name: key for key, name in names.items()}, "void")


PANOPTIC = Format(
    "coco-panoptic",
    "a JSON file with images, segments_info, and categories, and PNGs of segment ids",
    _detect,
    _read,
).layout
