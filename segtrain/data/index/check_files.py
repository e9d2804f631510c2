"""Checks of listed files: each file exists, and no image is listed twice."""

from __future__ import annotations

import os
from collections import Counter, defaultdict

from segtrain.base.terminal import counted
from segtrain.bucket import is_bucket, key_in, split_url
from segtrain.data.index.entries import Column, Entries
from segtrain.data.index.listing import Watch
from segtrain.data.storage import LOCAL
from segtrain.errors import file_error, some_of

# With this many or more listed files in one folder, reading the folder is faster than a stat of
# each file.
_MANY = 1000


def checked(entries: Entries, source: str, watch: Watch) -> Entries:
    """Return the entries. Raises DataError if there are none, a file is missing, or an image is
    listed twice.
    """
    if not len(entries):
        raise file_error(
            source, "the split has no rows: check the list and data.split", code="split-empty"
        )
    files, what, code = _repeated(entries.image), "listed twice", "list-file-repeated"
    if not files:
        files, what, code = (
            _absent(entries.image, watch) + _absent(entries.mask, watch),
            "missing",
            "list-file-missing",
        )
    if files:
        message = f"{counted(len(files), 'file')} {what}: {some_of(files)}: correct the list"
        raise file_error(source, message, code=code, found=files[:5], count=len(files))
    return entries


def _repeated(paths: Column) -> list[str]:
    """Absolute paths that occur more than once, also in other spellings (``./``, ``//``,
    ``x/../``).
    """
    here = os.getcwd()

    def absolute(path: str | None) -> str:
        if is_bucket(str(path)):
            base, _ = split_url(str(path))
            return f"{base}/{key_in(base, str(path))}"
        return os.path.normpath(os.path.join(here, str(path)))

    return [path for path, count in Counter(map(absolute, paths)).items() if count > 1]


def _absent(paths: Column, watch: Watch) -> list[str]:
    """Paths that are not existing files, in the order of the list. A folder with many listed files
    is read once.
    """
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(paths):
        rows_of[os.path.dirname(str(path))].append(row)
    absent: list[int] = []
    for folder, rows in rows_of.items():
        watch.look(folder)
        if watch.store is not LOCAL:
            there = set(watch.store.list(folder, ""))
        elif len(rows) < _MANY or not os.path.isdir(folder):
            absent += [row for row in rows if not os.path.isfile(str(paths[row]))]
            continue
        else:
            with os.scandir(folder) as listing:
                there = {item.name for item in listing if item.is_file()}
        absent += [row for row in rows if os.path.basename(str(paths[row])) not in there]
    return [str(paths[row]) for row in sorted(absent)]
