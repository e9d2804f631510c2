"""Run lengths in a CSV file, as in competitions of Kaggle: one row for each object or class.

https://www.kaggle.com/c/severstal-steel-defect-detection/overview/evaluation
"""

from __future__ import annotations

import os
import re
from collections import defaultdict

import numpy as np

from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import reading, rows_of
from segtrain.data.annotations.shapes import UNNAMED, Annotated, Annotations, Shape

# Names of columns, in lower case and without blanks and underlines.
_RUNS = ("encodedpixels", "rlemask", "rle", "encoding", "segmentation", "annotation")
_IMAGE_AND_CLASS = ("imageidclassid", "imagelabel")
_IMAGE = ("imageid", "image", "img", "id", "filename")
_CLASS = ("classid", "class", "label", "celltype")
# Cells of images in which nothing is annotated.
_EMPTY = ("", "-1", "nan")
_LOOKS = re.compile(r'.*[\n,"]\d+ \d+[\d ]*[",\s]', re.DOTALL)


def _fits(path: str, head: str) -> bool:
    columns = {*map(_plain, head.partition("\n")[0].split(","))}
    named = columns & {*_RUNS} and columns & {*_IMAGE, *_IMAGE_AND_CLASS}
    submission = "submission" in os.path.basename(path).lower()
    return bool(named and _LOOKS.match(f"{head}\n")) and not submission


def _plain(column: str) -> str:
    return re.sub(r'[\s_"]', "", column).lower()


def _runs(path: str) -> dict[str, list[tuple[str, str]]]:
    """Image -> the class and the run lengths of each row."""
    images = defaultdict[str, list[tuple[str, str]]](list)
    for row in rows_of(path):
        cells = {_plain(str(column)): cell or "" for column, cell in row.items()}
        both = _cell(cells, _IMAGE_AND_CLASS)
        image, _, name = both.rpartition("_") if both else (_cell(cells, _IMAGE), "", "")
        if not image:
            raise ValueError(f"a row without an image: the columns are {list(row)}")
        rows = images[image]
        runs = _cell(cells, _RUNS).strip()
        if runs.lower() not in _EMPTY:
            rows.append((name or _cell(cells, _CLASS) or UNNAMED, runs))
    return dict(images)


def _cell(cells: dict[str, str], columns: tuple[str, ...]) -> str:
    return next((cells[column] for column in columns if cells.get(column)), "")


def _read(where: Where) -> Annotations:
    file = where.annotations
    images = []
    for image, rows in _runs(file).items():
        with reading(file, image):
            shapes = [
                Shape(name, {"runs": _lengths(runs), "order": where.rle_order})
                for name, runs in rows
            ]
        images.append(Annotated(image, file, shapes, upright=False))
    names = Annotations(images).names
    numbers = all(name.isdecimal() for name in names)
    return Annotations(images, {name: int(name) if numbers else 0 for name in names})


def _lengths(runs: str) -> np.ndarray:
    """The run lengths, as in ``unpacked``, of pairs of a first pixel, from 1, and a length."""
    begins, lengths = np.array(runs.split(), np.int64).reshape(-1, 2).T
    edges = np.stack([begins - 1, begins - 1 + lengths], 1).ravel()
    all_lengths = np.diff(edges, prepend=0)
    if lengths.min() < 1 or all_lengths.min() < 0:
        raise ValueError("runs that overlap, are not sorted, or do not start from 1")
    return all_lengths


KAGGLE_RLE = Format(
    "kaggle-rle",
    "a CSV file with the columns ImageId and EncodedPixels (Kaggle)",
    find.by_content(_fits, ".csv", images=_runs),
    _read,
).layout
