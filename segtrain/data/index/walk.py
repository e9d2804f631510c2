"""Lists of the images in a folder and its subfolders. To detect the layout of a bucket, the first
names in each folder are read with few list requests.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from segtrain.bucket import is_bucket, split_url
from segtrain.bucket.client import PAGE, client_of
from segtrain.bucket.listing import page
from segtrain.config.paste import Settings, command
from segtrain.data.bucket import OUTAGE_S
from segtrain.data.index.listing import Watch
from segtrain.data.index.names import ARRAYS, SUFFIXES, is_folder, is_image, suffix
from segtrain.data.leave_out import without
from segtrain.data.storage import LOCAL, Store, is_run, system_folder
from segtrain.errors import DataError, closest, some_of

_NOT_READ = {".txt": " (of YOLO's polygons: data.layout=yolo)"}
# Most list requests in all. After this many names or this many subfolders of a folder, the rest of
# it is skipped.
_REQUESTS, NAMES, _FOLDERS = 200, 200, 20
# A folder's name with this ending sorts after all keys in the folder.
_END = "/\U0010ffff"


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


class Skeleton(Store):
    """A store that knows the names below a folder of a bucket, but only the first names in large
    folders.

    A page of a listing has 1,000 objects. If it ends in a folder of which enough names are known,
    the next page begins after that folder, so that a folder of a million images takes one request.
    """

    def __init__(self, root: str) -> None:
        base, key = split_url(root)
        self._root, self._start = root.rstrip("/"), f"{key}/" if key else ""
        self._paths: list[str] = []  # below the root, each with a slash before it
        client, after = client_of(base), ""
        for _ in range(_REQUESTS):
            objects = page(client, key, after, OUTAGE_S)
            self._paths += [f"/{item['path'][len(self._start) :]}" for item in objects]
            if len(objects) < PAGE:
                break
            after = self._start + self._next(self._paths[-1])[1:]
        self._paths.sort()

    def _next(self, last: str) -> str:
        """The path after which the next page begins.

        This is ``last``, or one past the end of its folder if enough names in that folder are
        known.
        """
        folder = last.rpartition("/")[0]
        if not folder or len(self._names(folder)[0]) < NAMES:
            return last
        above = folder.rpartition("/")[0]
        while above and len(self._names(above)[1]) > _FOLDERS:
            folder, above = above, above.rpartition("/")[0]
        return folder + _END

    def _below(self, folder: str) -> list[str]:
        """The known paths in a folder and below it, relative to it. The root is ""."""
        first, after = (bisect_left(self._paths, folder + end) for end in ("/", _END))
        return [path[len(folder) + 1 :] for path in self._paths[first:after]]

    def _names(self, folder: str) -> tuple[set[str], set[str]]:
        """Names of the files and of the folders in a folder. An object with the name of a folder
        only marks that folder.
        """
        parts = [path.partition("/") for path in self._below(folder)]
        folders = {name for name, slash, _ in parts if slash}
        return {name for name, *_ in parts}.difference(folders, [""]), folders

    def _relative(self, folder: str) -> str:
        return folder[len(self._root) :].rstrip("/")

    def list(self, folder: str, ending: str) -> list[str]:
        files, folders = self._names(self._relative(folder))
        names = folders if ending == "/" else {name for name in files if name.endswith(ending)}
        return sorted(
            name + "/" * (ending == "/")
            for name in names
            if not system_folder(name) and not self.leaves_out(f"{folder}/{name}")
        )

    def walk(self, folder: str) -> Iterator[str]:
        for path in self._below(self._relative(folder)):
            inside = path.rpartition("/")[0]
            if not system_folder(inside) and not self.leaves_out(f"{folder}/{path}"):
                yield path


def tree_of(root: str, leave_out: Sequence[str] = ()) -> Store:
    """The store in which ``detect`` looks for the layout of a folder."""
    return without(Skeleton(root) if is_bucket(root) else LOCAL, root, leave_out)


def is_dir(folder: str, store: Store) -> bool:
    """Whether a folder exists in the store."""
    if store.local:
        return os.path.isdir(folder)
    above, _, name = folder.rstrip("/").rpartition("/")
    return f"{name}/" in store.list(above, "/")
