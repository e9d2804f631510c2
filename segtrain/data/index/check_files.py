"""Checks of listed files: each file exists, and no image is listed twice."""

from __future__ import annotations

import os
from array import array
from collections import Counter

import numpy as np

from segtrain.data.index.entries import Column, Entries, texts_of
from segtrain.data.index.listing import Watch
from segtrain.data.index.unpaired import in_other_form
from segtrain.errors import DataError, some_of

# From so many listed files in one folder, reading the folder is faster than a stat of each file.
_MANY = 1000


def checked(entries: Entries, source: str, watch: Watch) -> Entries:
    """The same entries. Raises DataError for none, for a missing file, and for an image that is listed twice."""
    if not len(entries):
        says = f"{source}: the split has no rows: check the list and data.split"
        raise DataError(says, code="split-empty", file=source)
    odd, what, code = _double(_spelled_out(entries.image)), "are listed twice", "list-file-repeated"
    if not odd:
        odd, what, code = (
            _absent(entries.image, watch) + _absent(entries.mask, watch),
            "do not exist",
            "list-file-missing",
        )
    if odd:
        other = in_other_form(odd[0]) if code == "list-file-missing" else ""
        cause = f"; {other!a} is there, the same text in another Unicode normalization (NFC/NFD)" if other else ""
        says = f"{source}: {len(odd)} files {what}: {some_of(odd)}{cause}: correct the list"
        raise DataError(says, code=code, file=source, found=odd[:5], count=len(odd))
    return entries


def _spelled_out(paths: Column) -> Column:
    """The same files in one spelling: absolute, without ``./``, ``//``, and ``x/../``; often the column itself."""
    absolute, odd = 0, False
    for text in paths.texts:
        absolute += (text or "").startswith("/")
        odd |= text is not None and ("./" in text or "//" in text)
    if not odd and absolute in (0, len(paths)):
        return paths
    root = os.path.abspath(paths.prefix)
    spelled = (os.path.normpath(os.path.join(root, text or "")) for text in paths.texts)
    return Column(texts_of(spelled), "", paths.tails, paths.codes)


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
