"""Copies small files of a data set in a bucket to the local disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segtrain.data.bucket import OUTAGE_S, store_of


def first_in_bucket(root: str, names: Sequence[str]) -> Path | None:
    """A local copy of the first of the files ``names`` that exists in a folder of a bucket; None if
    none exists.
    """
    there = set(store_of(root, OUTAGE_S).list(root.rstrip("/"), ""))
    return next(
        (Path(local_copy(f"{root.rstrip('/')}/{name}")) for name in names if name in there), None
    )


def local_copy(path: str) -> str:
    """The path of a local file with the content of ``path``: a local file itself, or the cached
    copy of an object.
    """
    return store_of(path, OUTAGE_S).copied(path)
