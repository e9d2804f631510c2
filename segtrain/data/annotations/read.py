"""What the readers of all formats share: safe reading of files, and shapes without an area."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from segtrain.data.annotations.shapes import Shape, ring
from segtrain.data.bucket.tree import local_copy
from segtrain.errors import file_error


@contextlib.contextmanager
def reading(file: str, what: str = "") -> Iterator[None]:
    """Turn what a reader raises for unexpected content into a DataError about ``file``.

    what: the place in the file, such as "line 3".
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, LookupError, OSError) as error:
        missing = isinstance(error, KeyError)
        reason = f"the key {error} is missing" if missing else str(error) or type(error).__name__
        place = f"{what}: " if what else ""
        message = f"{place}cannot be read as annotations ({reason}): correct or export it again"
        raise file_error(file, message, code="annotation-invalid", place=what) from None


def json_of(path: str) -> Any:
    """The content of a JSON file. Raises DataError."""
    with reading(path):
        copy = local_copy(path)
        return _json(copy, os.stat(copy).st_mtime_ns)


@lru_cache(4)
def _json(path: str, changed: int) -> Any:
    with open(path, encoding="utf-8-sig") as stream:
        return json.load(stream)


def polygon(
    name: str,
    rings: Sequence[Any],
    left_out: Counter[str],
    holes: Sequence[Any] = (),
    rank: int = 0,
) -> Shape | None:
    """A shape of polygons, or None and a count in ``left_out`` if no ring has three points."""
    usable = [points for points in map(ring, rings) if len(points) >= 3]
    if not usable:
        left_out["polygon of fewer than 3 points"] += 1
        return None
    return Shape(name, tuple(usable), tuple(p for p in map(ring, holes) if len(p) >= 3), rank=rank)
