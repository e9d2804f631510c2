"""Folders of a bucket and the first names in each, read with few list requests to detect the
layout.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from segtrain.bucket import is_bucket, split_url
from segtrain.bucket.client import PAGE, client_of
from segtrain.bucket.listing import page
from segtrain.data.bucket import OUTAGE_S
from segtrain.data.leave_out import without
from segtrain.data.storage import LOCAL, Store, system_folder

# Most list requests in all. After this many names or this many subfolders of a folder, the rest of
# it is skipped.
_REQUESTS, NAMES, _FOLDERS = 200, 200, 20
# A folder's name with this ending sorts after all keys in the folder.
_END = "/\U0010ffff"


class Skeleton(Store):
    """A store that knows the names below a folder of a bucket, but only the first names in large
    folders.

    A page of a listing has 1,000 objects. If it ends in a folder of which enough names are known,
    the next page begins after that folder, so that a folder of a million images takes one request.
    """

    def __init__(self, root: str, outage_s: float = OUTAGE_S) -> None:
        base, key = split_url(root)
        self._root, self._start = root.rstrip("/"), f"{key}/" if key else ""
        self._paths: list[str] = []  # below the root, each with a slash before it
        client, after = client_of(base), ""
        for _ in range(_REQUESTS):
            objects = page(client, key, after, outage_s)
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
