"""Names and small files of a data set in a bucket, for the listers of layouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segtrain.data.bucket import store_of
from segtrain.data.index.names import SUFFIXES
from segtrain.data.storage import Store
from segtrain.errors import DataError, closest, some_of

# Seconds: lists and class files are read while a run starts, when nothing would be lost by an error.
_OUTAGE_S = 60.0


def rows_below(store: Store, folder: str, what: str, ending: str) -> tuple[list[str], list[str]]:
    """The images below a folder of a bucket, as ``walk.files_under`` collects them from the disk.

    Rows of ``key, "\\0", number``, and what follows key 1, 2, ... Raises DataError for a folder without objects.
    """
    rows, tails, numbers, empty = list[str](), dict[str, int](), dict[str, int | None](), True
    for path in store.walk(folder):
        empty = False
        below, slash, name = path.rpartition("/")
        stem, _, suffix = name.rpartition(".")
        if not stem or name[0] == "." or (ending and not stem.endswith(ending)):
            continue
        if suffix not in numbers:
            known = f".{suffix}".lower() in SUFFIXES
            numbers[suffix] = tails.setdefault(f"{ending}.{suffix}", len(tails) + 1) if known else None
        number = numbers[suffix]
        if number is not None:
            rows.append(f"{below}{slash}{stem[: len(stem) - len(ending)]}\0{chr(number)}")
    if empty:
        raise _no_folder(store, folder, what)
    return rows, list(tails)


def _no_folder(store: Store, folder: str, what: str) -> DataError:
    """The error for a folder without objects, with the nearest name beside it."""
    above, _, name = folder.rpartition("/")
    there = [found[:-1] for found in store.list(above, "/")]
    near = closest(name, there, 0.4)
    fix = f"did you mean {above}/{near}?" if near else f"{above} holds {some_of(there, 8) or 'no folder'}"
    says = f"{folder}: {what}: no such folder in the bucket: {fix}"
    return DataError(says, code="folder-missing", folder=folder, near=near)


def first_in_bucket(root: str, names: Sequence[str]) -> Path | None:
    """A local copy of the first of these files that a folder of a bucket has."""
    there = set(store_of(root, _OUTAGE_S).list(root.rstrip("/"), ""))
    return next((Path(local_copy(f"{root.rstrip('/')}/{name}")) for name in names if name in there), None)


def local_copy(path: str) -> str:
    """A local file with the content of a file: itself, or its copy in the cache."""
    return store_of(path, _OUTAGE_S).copied(path)
