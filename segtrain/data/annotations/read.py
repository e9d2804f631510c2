"""What the readers of all formats share: safe reading of files, and shapes without an area."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from segtrain.data.annotations.shapes import Shape, ring
from segtrain.data.bucket.tree import local_copy
from segtrain.errors import DataError, SegtrainError, file_error, some_of

if TYPE_CHECKING:
    from segtrain.data.annotations.layout import Where

# The longest cell of a table, in characters.
_LONGEST = 1 << 27


@contextlib.contextmanager
def reading(file: str, what: str = "") -> Iterator[None]:
    """Turn what a reader raises for unexpected content into a DataError about ``file``.

    what: the place in the file, such as "line 3".
    """
    try:
        yield
    except SegtrainError:
        raise
    except Exception as error:  # such as zlib.error, csv.Error, RecursionError
        missing = isinstance(error, KeyError)
        reason = f"the key {error} is missing" if missing else str(error) or type(error).__name__
        place = f"{what}: " if what else ""
        message = f"{place}cannot be read as annotations ({reason}): correct or export it again"
        raise file_error(file, message, code="annotation-invalid", place=what) from None


def json_of(path: str, without: str = "") -> Any:
    """The content of a JSON file. Raises DataError.

    without: a key whose text, such as an image, costs more time than the rest: it is replaced.
    """
    with reading(path):
        copy = local_copy(path)
        return _json(copy, os.stat(copy).st_mtime_ns, without)


def text_of(path: str) -> str:
    """The content of a text file. Raises DataError."""
    with reading(path), open(local_copy(path), encoding="utf-8-sig") as stream:
        return stream.read()


def rows_of(path: str) -> list[dict[str, str]]:
    """The rows of a CSV file, by its first line. Raises DataError."""
    csv.field_size_limit(_LONGEST)
    with reading(path):
        return list(csv.DictReader(io.StringIO(text_of(path).removeprefix("#"), newline="")))


@lru_cache(4)
def _json(path: str, changed: int, without: str) -> Any:
    with open(path, "rb") as stream:
        content = stream.read()
    if without:
        content = re.sub(rb'("%b"\s*:\s*)"[^"]+"' % without.encode(), rb'\1"left out"', content)
    return json.loads(content)


def polygon(
    name: str,
    rings: Sequence[Any],
    left_out: Counter[str],
    holes: Sequence[Any] = (),
    rank: int = 0,
    relative: bool = False,
) -> Shape | None:
    """A shape of polygons, or None and a count in ``left_out`` if no ring has three points."""
    usable = [points for points in map(ring, rings) if len(points) >= 3]
    if not usable:
        left_out["polygon of fewer than 3 points"] += 1
        return None
    cut = tuple(points for points in map(ring, holes) if len(points) >= 3)
    return Shape(name, tuple(usable), cut, rank=rank, relative=relative)


def png_pixels(content: bytes, size: tuple[int, int] | None) -> np.ndarray:
    """The drawn pixels of a PNG, bool (h, w): those whose alpha, or else whose value, is not 0.

    Raises ValueError if it is larger than ``size`` (height, width) of the image.
    """
    if not content.startswith(b"\x89PNG"):
        raise ValueError("a bitmap in another format than PNG")
    with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
        if size and (image.height > size[0] or image.width > size[1]):
            raise ValueError(f"a bitmap of {image.height} x {image.width} in an image of {size}")
        if image.mode in ("LA", "RGBA") or "transparency" in image.info:
            return np.array(image.convert("RGBA"))[..., 3] > 0
        pixels = np.array(image) > 0
    if pixels.ndim > 2:
        raise ValueError("a bitmap of colors")
    return pixels


def by_key(items: Sequence[dict[str, Any]], key: str) -> dict[Any, dict[str, Any]]:
    """The items by a key of theirs. Raises ValueError if two have the same."""
    found: dict[Any, dict[str, Any]] = {}
    for item in items:
        if found.setdefault(item[key], item) is not item:
            names = [
                str(entry.get("file_name", entry.get("name"))) for entry in (found[item[key]], item)
            ]
            raise ValueError(f"the {key} {item[key]!r} is that of {' and of '.join(names)}")
    return found


def text(value: Any, what: str) -> str:
    """A text that is not empty. Raises ValueError for anything else."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{what} is {value!r} instead of text")
    return value


def run_lengths(counts: str | bytes) -> np.ndarray:
    """The run lengths in COCO's compressed form, int64 (rleFrString in maskApi.c)."""
    chars = np.frombuffer(counts.encode() if isinstance(counts, str) else counts, np.uint8)
    values = chars.astype(np.int64) - 48
    last = values & 32 == 0  # the last character of a number
    number = np.cumsum(last) - last
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    place = 5 * (np.arange(len(values)) - starts[number])
    sums = np.bincount(number, (values & 31) << place).astype(np.int64)
    negative = (values[last] & 16) > 0
    sums[negative] -= np.left_shift(1, place[last][negative] + 5)
    for first in (1, 2):  # from the fourth number on, the difference to the last but one
        sums[first::2] = np.cumsum(sums[first::2])
    return sums


def label_key(attributes: Sequence[dict[str, Any]], where: Where) -> str:
    """The attribute of shapes that names the class; "" if they have none."""
    values: dict[str, list[str]] = defaultdict(list)
    for of_shape in attributes:
        for key, value in of_shape.items():
            values[key] += [str(value)] * bool(value)
    used = sorted(key for key in values if values[key])
    same = len({tuple(values[key]) for key in used}) == 1  # such as the class in two languages
    key = where.label_key or (used[0] if same else "")
    if key not in used and (used or (key and attributes)):
        texts = [f"{name} ({some_of(sorted(set(values[name])), 3)})" for name in used]
        message = (
            f"{where.annotations}: data.label_key is {key!r}, and the shapes have the attributes "
            f"{', '.join(texts)}: set it to the one that names the class"
        )
        raise DataError(message, code="label-key-unclear", file=where.annotations, found=used)
    return key


def boxes_alone(file: str) -> DataError:
    reason = "the labels are boxes alone, without polygons: export them for segmentation"
    return file_error(file, reason, code="boxes-alone")
