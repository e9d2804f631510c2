"""Leaves files and folders of a data set out of every listing (``data.leave_out``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial

from segtrain.base.terminal import counted
from segtrain.data.storage import LocalDisk, Store
from segtrain.errors import DataError, closest


def without(store: Store, root: str, patterns: Sequence[str]) -> Store:
    """The store, whose listings have no file that matches one of the patterns."""
    if patterns:
        store = LocalDisk() if store.local else store
        store.leaves_out = partial(_matches, root, tuple(patterns))  # type: ignore[method-assign]
    return store


def note(root: str, patterns: Sequence[str], store: Store) -> str:
    """How many files are left out. Raises DataError for a pattern that matches none."""
    paths = [*store.walk(root)]
    for pattern in patterns:
        if not any(_matches(root, (pattern,), os.path.join(root, path)) for path in paths):
            parts = sorted({part for path in paths for part in path.split("/")})
            near = closest(pattern, parts)
            message = f"{root}: no file or folder matches {pattern!r} of data.leave_out: " + (
                f"did you mean {near!r}?" if near else "correct or remove it"
            )
            raise DataError(message, code="leave-out-matches-nothing", found=pattern, near=near)
    left = sum(_matches(root, patterns, os.path.join(root, path)) for path in paths)
    return f"{counted(left, 'file')} left out by data.leave_out"


def _matches(root: str, patterns: Sequence[str], path: str) -> bool:
    """Whether a pattern matches a file or a folder above it: its path below the root if the pattern
    has a slash, else its name.
    """
    parts = os.path.relpath(path, root).split("/")
    folders = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    return any(
        fnmatchcase(name, pattern.rstrip("/"))
        for pattern in patterns
        for name in (folders if "/" in pattern.rstrip("/") else parts)
    )
