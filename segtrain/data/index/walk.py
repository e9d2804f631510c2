"""Lists of the images in a folder and its subfolders."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from segtrain.data.bucket.tree import rows_below
from segtrain.data.index.entries import Column, pack_keys
from segtrain.data.index.listing import Watch
from segtrain.data.index.names import SUFFIXES, is_folder
from segtrain.data.storage import LOCAL, Store, system_folder
from segtrain.errors import DataError, closest

_NOT_READ = {".txt": " (YOLO labels are boxes or polygons: draw them into masks of class ids)"}


def no_folder(folder: str, what: str) -> DataError:
    """The error for a missing folder, with the most similar existing name. ``what``: what the folder should hold."""
    path = Path(folder)
    parent = next((p for p in path.parents if p.is_dir()), Path("."))
    missing = path.relative_to(parent).parts[0] if parent in path.parents else path.name
    there = sorted(p.name for p in parent.iterdir() if p.is_dir() and not p.name.startswith("."))
    near = closest(missing, there, 0.4)
    holds = f"{str(parent)!r} holds {', '.join(there[:8]) or 'no folder'}"
    says = f"{folder}: {what}: no such folder: {f'did you mean {str(parent / near)!r}?' if near else holds}"
    return DataError(says, code="folder-missing", folder=folder, near=near)


def files_under(folder: str, what: str, watch: Watch, ending: str = "") -> Column:
    """Images in a folder and its subfolders, sorted by key, which is the relative path without ``ending`` and suffix.

    Raises DataError for a folder that is missing or cannot be read, and for two files with the same key.
    """
    rows, tails = _listed(folder, what, watch, ending)
    rows.sort()
    files = pack_keys(rows, os.path.join(folder, ""), ("", *tails))
    for index, (key, after) in enumerate(itertools.pairwise(files.keys)):
        if key == after:
            first, second = sorted((files[index] or "", files[index + 1] or ""))
            says = f"{second}: {first} has the same name: keep one of them, or choose the ending with data.pair"
            raise DataError(says, code="name-repeated", file=second, other=first)
    return files


def _listed(folder: str, what: str, watch: Watch, ending: str = "") -> tuple[list[str], list[str]]:
    """One row ``key + "\\0" + chr(number)`` per file, and the list of file endings.

    A file has the ending number ``number`` of that list, counted from 1. The rows sort like the keys.
    """
    if watch.store is not LOCAL:
        return rows_below(watch.store, folder, what, ending, watch.left_out)
    if not os.path.isdir(folder):
        raise no_folder(folder, what)
    rows, tails = list[str](), dict[str, int]()
    pending, path = [(folder, "")], folder
    try:
        walked = {_identity(str(above)): str(above) for above in Path(os.path.realpath(folder)).parents}
        for path, below in pending:
            other = walked.setdefault(_identity(path), path)
            if other != path:
                says = f"{path}: is the same folder as {other}, so its files would count twice: remove the link"
                raise DataError(says, code="folder-linked-twice", folder=path, other=other)
            with os.scandir(watch.look(path)) as listing:
                for item in listing:
                    stem, _, suffix = item.name.rpartition(".")
                    if is_folder(item) and system_folder(item.name):
                        watch.left_out[item.name] += sum(1 for _ in images_below(item.path, LOCAL))
                    elif is_folder(item):
                        pending.append((os.path.join(path, item.name), f"{below}{item.name}/"))
                    elif stem and item.name[0] != "." and stem.endswith(ending) and f".{suffix}".lower() in SUFFIXES:
                        number = tails.setdefault(f"{ending}.{suffix}", len(tails) + 1)
                        rows.append(f"{below}{stem[: len(stem) - len(ending)]}\0{chr(number)}")
    except OSError as error:
        says = f"{path}: cannot be listed ({error.strerror or error}): check its permissions"
        raise DataError(says, code="folder-unreadable", folder=path) from None
    return rows, list(tails)


def images_below(folder: str, store: Store) -> Iterator[str]:
    """Relative paths of the images in a folder and below it; none for a missing folder."""
    return (path for path in store.walk(folder) if os.path.splitext(path)[1].lower() in SUFFIXES)


def _identity(folder: str) -> tuple[int, int]:
    """Device and inode number: the same for every path that leads to a folder."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def unread(folder: str) -> list[str]:
    """Sentences about files in a folder that are not read: ``masks/ holds 3 .npy files, which are not read``."""
    names = (path for path in LOCAL.walk(folder) if os.path.basename(path)[0] != ".")
    endings = Counter(os.path.splitext(name)[1].lower() for name in names)
    others = [(ending, count) for ending, count in endings.most_common() if ending and ending not in SUFFIXES][:3]
    return [
        f"{folder} holds {count:,} {ending} {'files, which are' if count > 1 else 'file, which is'} not read"
        + _NOT_READ.get(ending, "")
        for ending, count in others
    ]


def pictures(folder: str, what: str, watch: Watch) -> list[str]:
    """Relative paths of the images in a folder and below it. Raises DataError if it cannot be listed."""
    rows, tails = _listed(folder, what, watch)
    return [row[:-2] + tails[ord(row[-1]) - 1] for row in rows]
