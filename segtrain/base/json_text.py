"""Safe reading of JSON that may be truncated, of another format, or nested too deep, and atomic
writing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segtrain.base.files import read_text, writing

# Limit for numbers, larger than any real count or measurement. Infinity and NaN exceed it or fail
# the comparison.
MOST = 1e15


def parse(text: str | bytes) -> Any:
    """The value of ``text``. Raises ValueError, and no other error, if it is not valid JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no valid one."""
    try:
        content = parse(read_text(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object so that readers see the old file or the new one. Raises OSError."""
    with writing(path) as stream:
        stream.write(json.dumps(content).encode() + b"\n")


def cache_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object into the cache, whose folder may not exist yet. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)


def sound(item: Any, form: Mapping[str, Any]) -> dict[str, Any]:
    """The valid part of a JSON object: its numbers, and the strings and nested objects that
    ``form`` lists.

    ``form``: name -> str for a string, or name -> the form of a nested object.
    """
    kept: dict[str, Any] = {}
    for key, value in item.items() if isinstance(item, dict) else ():
        kind = form.get(key)
        if isinstance(kind, Mapping):
            if isinstance(value, dict):
                kept[key] = sound(value, kind)
        elif isinstance(value, str) if kind is str else _is_number(value):
            kept[key] = value
    return kept


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST
