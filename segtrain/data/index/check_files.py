"""Checks of listed files: each file exists, and no image is listed twice."""

from __future__ import annotations

import os
from collections import Counter, defaultdict

from segtrain.base.terminal import counted
from segtrain.bucket import is_bucket, key_in, split_url
from segtrain.data.index.entries import Column, Entries
from segtrain.data.index.listing import WARNING, Watch
from segtrain.errors import file_error, some_of

# With this many or more listed files in one folder, reading the folder is faster than a stat of
# each file.
_MANY = 1000


def checked(entries: Entries, source: str, watch: Watch, of_images: bool = False) -> Entries:
    """Return the entries. Raises DataError if there are none, a file is missing, or an image is
    listed twice. With ``data.absent_mask=leave-out``, images without a mask are left out, with a
    warning. of_images: the list names no mask, so images without one may not be labeled.
    """
    if not len(entries):
        raise file_error(
            source, "the split has no rows: check the list and data.split", code="split-empty"
        )
    files, what, code = _repeated(entries.image), "listed twice", "list-file-repeated"
    fix, unpaired = "correct the list", dict[str, int]()
    if not files:
        images, masks = _absent(entries.image, watch), _absent(entries.mask, watch)
        files = [str(entries.image[row]) for row in images]
        if watch.absent == "leave-out" and 0 < len(masks) < len(entries):
            left_out = some_of([str(entries.image[row]) for row in masks])
            watch.notes.append(
                f"{WARNING}{counted(len(masks), 'image')} without a mask left out: {left_out}"
            )
            entries = entries.select(sorted({*range(len(entries))} - {*masks}))
        else:
            files += [str(entries.mask[row]) for row in masks]
            fix += ", or leave these images out: data.absent_mask=leave-out" * (not images)
        what, code = "missing", "list-file-missing"
        if of_images and not images:
            code, unpaired = "files-unpaired", {"images": len(masks), "masks": 0}
    if files:
        message = f"{counted(len(files), 'file')} {what}: {some_of(files)}: {fix}"
        raise file_error(source, message, code=code, found=files[:5], count=len(files), **unpaired)
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


def _absent(paths: Column, watch: Watch) -> list[int]:
    """The rows of paths that are not existing files. A folder with many listed files is read
    once.
    """
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(paths):
        rows_of[os.path.dirname(str(path))].append(row)
    absent: list[int] = []
    for folder, rows in rows_of.items():
        watch.look(folder)
        if watch.store.local and len(rows) < _MANY:
            absent += [row for row in rows if not os.path.isfile(str(paths[row]))]
            continue
        there = {*watch.store.list(folder, "")}
        absent += [row for row in rows if os.path.basename(str(paths[row])) not in there]
    return sorted(absent)
