"""Which file stands behind ``data.transforms``, and what is its content or digest?"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from segtrain.config.yaml_text import load_yaml


def transform_source(text: str) -> tuple[Path, str, str]:
    """The Python file of ``file.py:attribute`` or ``package.module:attribute``, the attribute, and the digest
    behind an ``@`` ("" where there is none). Raises ValueError for another text and for a file that is not there."""
    text, _, digest = text.partition("@")
    place, colon, attribute = text.rpartition(":")
    if not colon or not attribute.isidentifier():
        raise ValueError(
            "must be a file of albumentations.save (.yaml, .json), file.py:attribute, package.module:attribute, or a list"
        )
    if place.endswith(".py"):
        path = Path(place)
    else:
        with importable():
            try:
                found = importlib.util.find_spec(place)
            except (ImportError, ValueError) as error:
                raise ValueError(f"there is no module {place!r} ({error}): check its name and PYTHONPATH") from None
        path = Path((found and found.origin) or place)
    if not path.is_file():
        raise ValueError(f"there is no Python file {str(path)!r}: check the path, the module's name and PYTHONPATH")
    return path, attribute, digest


@contextmanager
def importable() -> Iterator[None]:
    """The working directory can be imported from, as with ``python -m``; the ``segtrain`` command leaves it out."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def file_digest(path: Path) -> str:
    """Eight hex digits of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def pinned(text: str) -> Any:
    """The content of a saved pipeline; or the name of Python code with the digest of its file: a run is known by what it
    trains with, not by where that lay."""
    if text.endswith((".yaml", ".yml", ".json")):
        try:
            content = load_yaml(Path(text).read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"cannot be read ({error.strerror}): check the path") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"is no YAML or JSON: {' '.join(str(error).split())}") from None
        if not isinstance(content, (dict, list)):
            raise ValueError("holds no pipeline: write it with albumentations.save")
        return content
    if not text or re.search(r"@[0-9a-f]{8}$", text):  # a run folder's config: looked at when it trains
        return text
    path, _, _ = transform_source(text)
    return f"{text}@{file_digest(path)}"
