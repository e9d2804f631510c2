"""Lists of the images in a folder and its subfolders."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from segtrain.config.paste import Settings, command
from segtrain.data.index.listing import Watch
from segtrain.data.index.names import ARRAYS, SUFFIXES, is_folder, is_image, suffix
from segtrain.data.storage import LOCAL, Store, is_run, system_folder
from segtrain.errors import DataError, closest, some_of

_NOT_READ = {".txt": " (of YOLO's polygons: data.layout=yolo)"}


def no_folder(folder: str, what: str, store: Store) -> DataError:
    """The error for a missing folder, with the most similar existing name. ``what``: what the
    folder should hold.
    """
    above, missing = os.path.split(folder.rstrip("/"))
    while store.local and above and not os.path.isdir(above):
        above, missing = os.path.split(above)
    there = [name[:-1] for name in store.list(above or ".", "/") if name[:-1] != missing]
    near = closest(missing, there, 0.4)
    holds = f"{above or '.'!r} holds {some_of(there, 8) or 'no folder'}"
    message = (
        f"{folder}: {what}: no such folder: "
        f"{f'did you mean {os.path.join(above, near)!r}?' if near else holds}"
    )
    return DataError(message, code="folder-missing", folder=folder, near=near)


def question(what: str, choices: Iterable[Settings], after: str = "", **values: Any) -> DataError:
    """An error after which one of several settings can be pasted. after: text below them. values:
    those of the error, such as its code.
    """
    choices = [*choices]
    text = "\n  ".join([what, *map(command, choices)]) + after
    return DataError(text, choices=choices, what=what, after=after, **values)


def several(
    root: str, what: str, choices: Iterable[Settings], after: str = "", **values: Any
) -> DataError:
    """The error for several things of which one can be read, with the settings that read each.
    ``why`` in values: what in the files settles that the first choice is meant.
    """
    what = f"{root}: {what}: say which to read, with one of"
    return question(what, choices, after, folder=root, **values)


def pictures(folder: str, what: str, watch: Watch) -> list[str]:
    """Relative paths of the images in a folder and below it.

    Raises DataError for a folder that is missing, cannot be read, or is reached on two ways.
    """
    watch.folders.append(folder)
    if not watch.store.local:
        return _in_bucket(folder, what, watch)
    if not os.path.isdir(folder):
        raise no_folder(folder, what, LOCAL)
    images = list[str]()
    pending, path = [(folder, "")], folder
    try:
        walked = {
            _identity(str(above)): str(above) for above in Path(os.path.realpath(folder)).parents
        }
        for path, below in pending:
            other = walked.setdefault(_identity(path), path)
            if other != path:
                message = (
                    f"{path}: is the same folder as {other}, so its files would count "
                    "twice: remove the link"
                )
                raise DataError(message, code="folder-linked-twice", folder=path, other=other)
            with os.scandir(watch.look(path)) as listing:
                for item in listing:
                    if is_folder(item) and (system_folder(item.name) or is_run(item.path)):
                        watch.left_out[item.name] += sum(1 for _ in images_below(item.path, LOCAL))
                    elif watch.store.leaves_out(item.path):
                        pass
                    elif is_folder(item):
                        pending.append((os.path.join(path, item.name), f"{below}{item.name}/"))
                    elif is_image(item.name, watch.arrays):
                        images.append(below + item.name)
    except OSError as error:
        message = f"{path}: cannot be listed ({error.strerror or error}): check its permissions"
        raise DataError(message, code="folder-unreadable", folder=path) from None
    return images


def _in_bucket(folder: str, what: str, watch: Watch) -> list[str]:
    images, empty = list[str](), True
    for path in watch.store.walk(folder):
        empty = False
        below, _, name = path.rpartition("/")
        if is_image(name, watch.arrays) and (system := system_folder(below)):
            watch.left_out[system] += 1
        elif is_image(name, watch.arrays):
            images.append(path)
    if empty:
        raise no_folder(folder, what, watch.store)
    return images


def images_below(folder: str, store: Store) -> Iterator[str]:
    """Relative paths of the images in a folder and below it; none for a missing folder."""
    return (path for path in store.walk(folder) if is_image(os.path.basename(path)))


def masks_below(folder: str, store: Store, arrays: Container[str] = ARRAYS) -> Iterator[str]:
    """The same for masks: arrays with these endings, for folders without images."""
    images = images_below(folder, store)
    first = next(images, None)
    if first is None:
        paths = store.walk(folder)
        return (path for path in paths if suffix(path) in arrays)
    return itertools.chain((first,), images)


def apart(paths: Iterable[str], folder: str, other: str) -> Iterator[str]:
    """The paths below a folder without those in another folder that lies inside it."""
    inner = os.path.relpath(other, folder) + "/"
    return (path for path in paths if not path.startswith(inner))


def _identity(folder: str) -> tuple[int, int]:
    """Device and inode number: the same for every path that leads to a folder."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def unread(folder: str, read: Container[str] = ()) -> list[str]:
    """Sentences about files in a folder that are not read: ``masks/ holds 3 .npy files, which are
    not read``. read: endings of files that are read besides images.
    """
    names = (path for path in LOCAL.walk(folder) if os.path.basename(path)[0] != ".")
    endings = Counter(map(suffix, names))
    others = [
        (ending, count)
        for ending, count in endings.most_common()
        if ending and ending not in SUFFIXES and ending not in read
    ][:3]
    return [
        (
            f"{folder} holds {count:,} {ending} "
            f"{'files, which are' if count > 1 else 'file, which is'} not read"
        )
        + _NOT_READ.get(ending, "")
        for ending, count in others
    ]
