"""Checks of listed files: each file exists, and no image is listed twice."""

from __future__ import annotations

import os
from array import array
from collections import Counter

import numpy as np

from segtrain.data.index.entries import Column, Entries, TextsBuilder
from segtrain.data.index.listing import Watch
from segtrain.data.index.unpaired import in_other_form
from segtrain.errors import DataError

# From so many listed files in one folder, reading the folder is faster than a stat of each file.
_MANY = 1000


def checked(entries: Entries, source: str, watch: Watch) -> Entries:
    """The same entries of a list.

    Raises DataError for none, for a missing file, and for an image that is listed twice.
    """
    if not len(entries):
        raise DataError(
            f"{source}: the split has no rows: check the list and data.split", code="split-empty", file=source
        )
    double = _double(_spelled_out(entries.image))
    absent = [] if double else [*_absent(entries.image, watch), *_absent(entries.mask, watch)]
    for odd, what, code in (
        (double, "are listed twice", "list-file-repeated"),
        (absent, "do not exist", "list-file-missing"),
    ):
        if odd:
            shown = ", ".join(odd[:5]) + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
            other = in_other_form(odd[0]) if what == "do not exist" else ""
            cause = f"; {other!a} is there, the same text in another Unicode normalization (NFC/NFD)" if other else ""
            raise DataError(
                f"{source}: {len(odd)} files {what}: {shown}{cause}: correct the list",
                code=code,
                file=source,
                found=odd[:5],
                count=len(odd),
            )
    return entries


def _spelled_out(paths: Column) -> Column:
    """The same files in one spelling: absolute, without ``./``, ``//``, and ``x/../``.

    The column itself if nothing changes.
    """
    absolute, odd = 0, False
    for text in paths.texts:
        absolute += (text or "").startswith("/")
        odd |= text is not None and ("./" in text or "//" in text)
    if not odd and absolute in (0, len(paths)):
        return paths
    texts, root = TextsBuilder(), os.path.abspath(paths.prefix)
    for text in paths.texts:
        texts.append(os.path.normpath(os.path.join(root, text or "")))
    return Column(texts.done(), "", paths.tails, paths.codes)


def _double(paths: Column) -> list[str]:
    """Paths that occur more than once. Hashes are compared first, since a table of a million strings would be large."""
    hashes = np.fromiter(map(hash, paths), np.int64, len(paths))
    order = np.argsort(hashes)
    equal = np.flatnonzero(np.diff(hashes[order]) == 0)
    places = np.unique(order[np.concatenate([equal, equal + 1])]).tolist()
    return [str(path) for path, count in Counter(paths[place] for place in places).items() if count > 1]


def _absent(paths: Column, watch: Watch) -> list[str]:
    """Paths that are not files, in order. A folder with many listed files is read once."""
    numbers: dict[str, int] = {}
    folders, names = array("L"), array("q")
    for path in paths:
        folder, name = os.path.split(str(path))
        folders.append(numbers.setdefault(folder, len(numbers)))
        names.append(hash(name))
    of, hashes = np.array(folders), np.array(names)
    order = np.argsort(of, kind="stable")
    absent: list[int] = []
    for folder, rows in zip(numbers, np.split(order, np.flatnonzero(np.diff(of[order])) + 1)):
        watch.look(folder)
        if len(rows) < _MANY or not os.path.isdir(folder):
            absent += [row for row in rows.tolist() if not os.path.isfile(str(paths[row]))]
            continue
        with os.scandir(folder) as listing:
            there = np.fromiter((hash(item.name) for item in listing if item.is_file()), np.int64)
        absent += rows[~np.isin(hashes[rows], there)].tolist()
    return [str(paths[row]) for row in sorted(absent)]
