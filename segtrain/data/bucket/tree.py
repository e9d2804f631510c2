"""Lists the file names of a data set in a bucket, and copies small files of it to the local disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from segtrain.data.bucket import OUTAGE_S, store_of
from segtrain.data.index.names import SUFFIXES
from segtrain.data.storage import Store, system_folder
from segtrain.errors import DataError, closest, some_of


def rows_below(
    store: Store, folder: str, what: str, ending: str, left_out: Counter[str]
) -> tuple[list[str], list[str]]:
    """The images below a folder of a bucket, as ``walk.files_under`` collects them from the disk.

    Returns a row ``key + "\\0" + chr(number)`` for each image, and a list of endings. The key is the path without its
    ending; number 1 is the first ending of the list. ``left_out`` counts the images in system folders, which are not
    listed. Raises DataError for a folder without objects.
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
        if number is not None and (system := system_folder(below)):
            left_out[system] += 1
        elif number is not None:
            rows.append(f"{below}{slash}{stem[: len(stem) - len(ending)]}\0{chr(number)}")
    if empty:
        raise no_bucket_folder(store, folder, what)
    # Pages of the listing come in any order: number the endings in sorted order instead.
    order = {chr(number): chr(place) for place, (_, number) in enumerate(sorted(tails.items()), 1)}
    if any(number != place for number, place in order.items()):
        rows = [row[:-1] + order[row[-1]] for row in rows]
    return rows, sorted(tails)


def no_bucket_folder(store: Store, folder: str, what: str) -> DataError:
    """The error for a folder without objects, with the most similar name in the folder above."""
    above, _, name = folder.rpartition("/")
    there = [found[:-1] for found in store.list(above, "/")]
    near = closest(name, [other for other in there if other != name], 0.4)
    fix = f"did you mean {above}/{near}?" if near else f"{above} holds {some_of(there, 8) or 'no folder'}"
    problem = "this folder of the bucket has no files" if name in there else "no such folder in the bucket"
    says = f"{folder}: {what}: {problem}: {fix}"
    return DataError(says, code="folder-missing", folder=folder, near=near)


def first_in_bucket(root: str, names: Sequence[str]) -> Path | None:
    """A local copy of the first of the files ``names`` that exists in a folder of a bucket; None if none exists."""
    there = set(store_of(root, OUTAGE_S).list(root.rstrip("/"), ""))
    return next((Path(local_copy(f"{root.rstrip('/')}/{name}")) for name in names if name in there), None)


def local_copy(path: str) -> str:
    """The path of a local file with the content of ``path``: a local file itself, or the cached copy of an object."""
    return store_of(path, OUTAGE_S).copied(path)
