"""Copies small files of a data set in a bucket to the local disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segtrain.data.bucket import OUTAGE_S, store_of


def first_in_bucket(root: str, names: Sequence[str]) -> Path | None:
    """A local copy of the first of the files ``names`` that exists below a folder of a bucket; None
    if none exists.
    """
    store, paths = store_of(root, OUTAGE_S), [f"{root.rstrip('/')}/{name}" for name in names]
    folders = dict.fromkeys(path.rpartition("/")[0] for path in paths)
    there = {f"{folder}/{name}" for folder in folders for name in store.list(folder, "")}
    return next((Path(local_copy(path)) for path in paths if path in there), None)


def local_copy(path: str) -> str:
    """The path of a local file with the content of ``path``: a local file itself, or the cached
    copy of an object.
    """
    return store_of(path, OUTAGE_S).copied(path)
