"""What the readers of all formats share: safe reading of files, and shapes without an area."""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import json
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
from PIL import Image

from segtrain.data.annotations.shapes import Shape, Size
from segtrain.data.bucket.tree import local_copy
from segtrain.errors import SegtrainError, file_error, some_of

if TYPE_CHECKING:
    from segtrain.data.annotations.layout import Where

Item = TypeVar("Item")
# The image in a file of labelme, which would take more time than the rest.
_IMAGE = re.compile(rb'("imageData"\s*:\s*)"[^"]+"')
# What a label without a polygon is.
BOX = "box without an area"
# The largest PNG of a shape, in bytes.
_LARGEST = 1 << 26
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
        if isinstance(error, (AttributeError, IndexError, TypeError)):
            reason = "a value is missing, or of another type than in this format"
        place = f"{what}: " if what else ""
        message = f"{place}cannot be read as annotations ({reason}): correct or export it again"
        raise file_error(file, message, code="annotation-invalid", place=what) from None


def json_of(path: str) -> Any:
    """The content of a JSON file. Raises DataError."""
    with reading(path):
        copy = local_copy(path)
        return _json(copy, os.stat(copy).st_mtime_ns)


def text_of(path: str) -> str:
    """The content of a text file. Raises DataError."""
    with reading(path), open(local_copy(path), encoding="utf-8-sig") as stream:
        return stream.read()


def xml_of(path: str) -> Element:
    """The root of an XML file. The parser reads no other file, and stops where entities grow.
    Raises DataError.
    """
    with reading(path):
        return ElementTree.parse(local_copy(path)).getroot()


def rows_of(path: str) -> list[dict[str, str]]:
    """The rows of a CSV file, by its first line. Raises DataError."""
    csv.field_size_limit(_LONGEST)
    with reading(path):
        return list(csv.DictReader(io.StringIO(text_of(path).removeprefix("#"), newline="")))


@lru_cache(4)
def _json(path: str, changed: int) -> Any:
    with open(path, "rb") as stream:
        content = stream.read()
    return json.loads(_IMAGE.sub(rb'\1"left out"', content))


def parts_of(
    file: str,
    what: str,
    items: Iterable[tuple[object, Item]],
    part: Callable[[Item], Shape | str],
) -> list[Shape | str]:
    """What ``part`` makes of each item. what, items: for errors, "line", and pairs (3, item)."""
    parts = []
    for number, item in items:
        with reading(file, f"{what} {number}"):
            parts.append(part(item))
    return parts


def size_of(item: Any) -> Size:
    return int(item["height"]), int(item["width"])


def png_pixels(text: str, size: Size) -> np.ndarray:
    """The drawn pixels of a PNG in base64, bool (h, w): those whose alpha, or else whose value, is
    not 0. The PNG may be packed with zlib.

    Raises ValueError if it is larger than ``size`` (height, width) of the image.
    """
    content = base64.b64decode(text)
    if not content.startswith(b"\x89PNG"):
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(content, _LARGEST)
        if unpacking.unconsumed_tail:
            raise ValueError(f"a bitmap of more than {_LARGEST:,} bytes")
    with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
        if image.height > size[0] or image.width > size[1]:
            raise ValueError(f"a bitmap of {image.height} x {image.width} in an image of {size}")
        if image.mode in ("LA", "RGBA") or "transparency" in image.info:
            return np.array(image.convert("RGBA"))[..., 3] > 0
        pixels = np.array(image) > 0
    if pixels.ndim > 2:
        raise ValueError("a bitmap of colors")
    return pixels


def files_below(where: Where, ending: str) -> Iterator[tuple[str, str]]:
    """The path of each annotation file below the folder of a split, sorted, and its whole path."""
    for name in sorted(where.store.walk(where.annotations)):
        if name.endswith(ending):
            yield name, os.path.join(where.annotations, name)


def by_id(items: Sequence[dict[str, Any]], name: str) -> dict[Any, dict[str, Any]]:
    """The items by their ids. name: the key of their names. Raises ValueError if two have the same
    id, and for a name that is not a string.
    """
    items_of: dict[Any, dict[str, Any]] = {}
    for item in items:
        written = text(item[name], f"a {name}")
        other = items_of.setdefault(item["id"], item)
        if other is not item:
            raise ValueError(f"the id {item['id']!r} is that of {other[name]} and of {written}")
    return items_of


def text(value: Any, what: str) -> str:
    """A text that is not empty. Raises ValueError for anything else."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{what} is {value!r} instead of text")
    return value


def run_lengths(counts: bytes) -> list[int]:
    """The run lengths in COCO's compressed form (rleFrString in maskApi.c)."""
    lengths, length, shift = list[int](), 0, 0
    for value in (char - 48 for char in counts):
        length |= (value & 31) << shift
        shift += 5
        if value & 32 == 0:  # the last character of a number
            length -= (value & 16) << (shift - 4)
            # From the fourth number on, the difference to the last but one.
            lengths.append(length + (lengths[-2] if len(lengths) > 2 else 0))
            length = shift = 0
    return lengths


def label_key(attributes: Sequence[dict[str, Any]], where: Where) -> str:
    """The attribute of shapes that names the class; "" if they have none."""
    values: dict[str, list[str]] = defaultdict(list)
    for of_shape in attributes:
        for key, value in of_shape.items():
            if value:
                values[key].append(str(value))
    used = sorted(values)
    same = len({tuple(values[key]) for key in used}) == 1  # such as the class in two languages
    key = where.label_key or (used[0] if same else "")
    if key not in used and (used or (key and attributes)):
        texts = [f"{name} ({some_of(sorted(set(values[name])), 3)})" for name in used]
        message = (
            f"data.label_key is {key!r}, and the shapes have the attributes {', '.join(texts)}: "
            "set it to the one that names the class"
        )
        raise file_error(
            where.annotations,
            message,
            code="label-key-unclear",
            found=used,
            choices=[{"data.label_key": name} for name in used],
            what=f"{where.annotations}: {message}",
        )
    return key
