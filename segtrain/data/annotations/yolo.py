"""YOLO's labels for segmentation: a .txt for each image with one polygon per row, and data.yaml.

https://docs.ultralytics.com/datasets/segment/
"""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from segtrain import config
from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import (
    BOX,
    files_below,
    parts_of,
    reading,
    text_of,
)
from segtrain.data.annotations.shapes import Annotated, Annotations, Shape, polygon
from segtrain.data.index.detect_pairs import pair_of_folders
from segtrain.data.index.layout import Detected
from segtrain.data.index.listing import WARNING
from segtrain.data.index.split_by import POOL
from segtrain.data.storage import Store

# Files without labels among those with labels.
_OTHERS = re.compile(r"(classes|readme.*)\.txt", re.IGNORECASE)
# Names of the classes, the preferred file first.
_NAMES = ("/data.yaml", "/dataset.yaml", ".yaml", ".yml", "/classes.txt", "/obj.names")


def _detect(root: str, store: Store) -> Detected | None:
    rows_of: dict[str, list[str]] = defaultdict(list)
    for path, head in find.files(root, store, ".txt"):
        if not _OTHERS.fullmatch(os.path.basename(path)):
            rows_of[os.path.dirname(path)] += filter(str.strip, head.splitlines())
    folders = [folder for folder, rows in rows_of.items() if _are_labels(rows)]
    longest = max((len(row.split()) for folder in folders for row in rows_of[folder]), default=0)
    if not longest or (longest < 7 and pair_of_folders(root, store)):
        return None
    return find.detected_in_folders(root, store, folders, ".txt")


def _are_labels(rows: list[str]) -> bool:
    """Whether most rows are labels, so that ``_read`` names the others. Rows of 0 and 1 may be
    anything.
    """
    most = 2 * sum(map(_is_label, rows)) > len(rows)
    return not rows or (most and "." in "".join(rows))


def _is_label(row: str) -> bool:
    """Whether a row is the number of a class and the fractions of a box or polygon."""
    try:
        number, *values = (float(value) for value in row.split())
    except ValueError:
        return False
    fractions = all(-0.5 <= value <= 1.5 for value in values)
    return number.is_integer() and len(values) >= 4 and fractions


def _read(where: Where) -> Annotations:
    files = {
        (name, path): text_of(path).splitlines()
        for name, path in files_below(where, ".txt")
        if not _OTHERS.fullmatch(os.path.basename(name))
    }
    names, notes = _names(where, itertools.chain(*files.values()))
    images = []
    for (name, path), lines in files.items():
        rows = ((number, row) for number, row in enumerate(lines, 1) if row.strip())
        parts = parts_of(path, "line", rows, lambda row: _shape(row, names))
        images.append(Annotated(name, path, parts, upright=True))
    return Annotations(images, {name: key for key, name in names.items()}, notes=notes)


def _shape(row: str, names: dict[int, str]) -> Shape | str:
    number, *values = map(float, row.split())
    if number not in names:
        raise ValueError(f"class {number:g}, but the classes are {names}")
    if len(values) in (4, 5):
        return BOX
    points = np.reshape(values, (-1, 2))
    if not (abs(points - 0.5) <= 1.5).all():
        raise ValueError("the points are not fractions of the width and height")
    return polygon(names[int(number)], [points], relative=True)


def _names(where: Where, rows: Iterable[str]) -> tuple[dict[int, str], tuple[str, ...]]:
    """Number -> class name, and notes. rows: the labels, whose numbers are the names if no file has
    any.
    """
    for path in where.others:
        with reading(path):
            text = text_of(path)
            if path.endswith((".yaml", ".yml")):
                content = config.load_yaml(text)
            else:
                content = {"names": [line.strip() for line in text.splitlines() if line.strip()]}
            if isinstance(content, dict) and content.get("names"):
                return _classes(content), _notes(content, path)
    numbers = sorted({int(float(row.split()[0])) for row in rows if _is_label(row)})
    names = {number: f"class_{number}" for number in numbers}
    note = (
        f"{WARNING}nothing names the classes: write `names: {names}` with better names "
        f"into {os.path.join(where.root, 'data.yaml')}"
    )
    return names, (note,)


def _classes(content: dict[str, Any]) -> dict[int, str]:
    if "kpt_shape" in content:
        raise ValueError("kpt_shape: its labels are keypoints, not areas")
    names = content["names"]
    classes = dict[int, str]()
    for number, name in (dict(enumerate(names)) if isinstance(names, list) else names).items():
        # YAML reads a plain `no` as false.
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise ValueError(f"names: {name!r} is not a text: put it in quotes")
        classes[int(number)] = str(name)
    return classes


def _notes(content: dict[str, Any], path: str) -> tuple[str, ...]:
    given = {key: str(content[key]) for key in ("train", "val") if content.get(key)}
    if len(given) == 2 and given["train"] == given["val"]:
        return (f"{WARNING}{path}: val is train: scores would be of training images",)
    note = (
        f"{WARNING}{path}: {given} are not read, only folders with the names of splits: check the "
        "splits"
    )
    return (note,) * any(
        place.endswith((".txt", "]")) or find.by_split([place])[1] == [POOL]
        for place in given.values()
    )


YOLO = Format(
    "yolo",
    "a .txt for each image, with a polygon per row, and data.yaml (YOLO)",
    _detect,
    _read,
    "smallest",
    _NAMES,
).layout
