"""Finds the file behind ``data.transforms``, and its content or checksum."""

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
from segtrain.errors import one_line


def transform_source(text: str) -> tuple[Path, str, str]:
    """File, attribute, and digest ("" if none) of ``file.py:attribute@digest`` or
    ``package.module:attribute@digest``.

    Raises ValueError for any other text and for a missing file.
    """
    text, _, digest = text.partition("@")
    module, colon, attribute = text.rpartition(":")
    if not colon or not attribute.isidentifier():
        kinds = (
            "a .yaml or .json file of albumentations.save, file.py:attribute, "
            "package.module:attribute"
        )
        raise ValueError(f"must be {kinds}, or a list of transforms")
    path = Path(module)
    if path.suffix != ".py":
        try:
            with importable():
                spec = importlib.util.find_spec(module)
        except (ImportError, ValueError) as error:
            raise ValueError(
                f"module {module!r} was not found ({error}): check its name and PYTHONPATH"
            ) from None
        path = Path((spec and spec.origin) or module)
    if not path.is_file():
        raise ValueError(
            f"the file {str(path)!r} was not found: check the path, the module name, and PYTHONPATH"
        )
    return path, attribute, digest


@contextmanager
def importable() -> Iterator[None]:
    """Allow imports from the working directory, as ``python -m`` does and the ``segtrain`` command
    does not.
    """
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def file_digest(path: Path) -> str:
    """Eight hex digits of the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def pinned(text: str) -> Any:
    """The value that a config stores for ``data.transforms=text``, so that the run's hash changes
    with the transforms.

    For a saved pipeline, this is its content. For Python code, it is ``text`` and the digest of the
    code's file.
    """
    if text.endswith((".yaml", ".yml", ".json")):
        try:
            content = load_yaml(Path(text).read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"cannot be read ({error.strerror}): check the path") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"is not valid YAML or JSON: {one_line(error)}") from None
        if not isinstance(content, (dict, list)):
            raise ValueError("does not contain a pipeline: write it with albumentations.save")
        return content
    # has a digest, from a run folder; checked when training starts
    if not text or re.search(r"@[0-9a-f]{8}$", text):
        return text
    path, _, _ = transform_source(text)
    return f"{text}@{file_digest(path)}"
