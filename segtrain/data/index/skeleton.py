"""Folders of a bucket and the first names in each, read with few list requests to detect the
layout.
"""

from __future__ import annotations

import os
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
        self._files: dict[str, list[str]] = {"": []}  # folder -> names, in order
        self._folders: dict[str, list[str]] = {"": []}
        client, after = client_of(base), ""
        for _ in range(_REQUESTS):
            objects = page(client, key, after, outage_s)
            for item in objects:
                self._add(item["path"][len(self._start) :])
            if len(objects) < PAGE:
                break
            after = self._next(objects[-1]["path"])

    def _add(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        if folder not in self._files:
            parts = folder.split("/")
            for depth in range(len(parts)):
                above, below = "/".join(parts[:depth]), "/".join(parts[: depth + 1])
                if below not in self._files:
                    self._files[below], self._folders[below] = [], []
                    self._folders[above].append(parts[depth])
        self._files[folder].append(name)

    def _next(self, last: str) -> str:
        """The key after which the next page begins.

        This is ``last``, or a key past the end of its folder if enough names in that folder are
        known.
        """
        folder = last[len(self._start) :].rpartition("/")[0]
        if not folder or len(self._files[folder]) < NAMES:
            return last
        above = folder.rpartition("/")[0]
        while above and len(self._folders[above]) > _FOLDERS:
            folder, above = above, above.rpartition("/")[0]
        return self._start + folder + _END

    def _relative(self, folder: str) -> str:
        return folder[len(self._root) :].strip("/")

    def list(self, folder: str, ending: str) -> list[str]:
        names, below = (
            self._files.get(self._relative(folder), []),
            self._folders.get(self._relative(folder), []),
        )
        if ending == "/":
            return sorted(
                f"{name}/"
                for name in below
                if not system_folder(name) and not self.leaves_out(f"{folder}/{name}")
            )
        # An object with the name of a folder only marks that folder.
        return sorted(
            name
            for name in {*names}.difference(below)
            if name.endswith(ending)
            and name[:1] not in ("", ".")
            and not self.leaves_out(f"{folder}/{name}")
        )

    def walk(self, folder: str) -> Iterator[str]:
        start = self._relative(folder)
        for above, names in self._files.items():
            below = above[len(start) :].strip("/")
            if above == start or (
                above.startswith(f"{start}/" if start else "") and not system_folder(below)
            ):
                paths = (f"{below}/{name}" if below else name for name in names)
                yield from (path for path in paths if not self.leaves_out(f"{folder}/{path}"))


def tree_of(root: str, leave_out: Sequence[str] = ()) -> Store:
    """The store in which ``detect`` looks for the layout of a folder."""
    return without(Skeleton(root) if is_bucket(root) else LOCAL, root, leave_out)


def is_dir(folder: str, store: Store) -> bool:
    """Whether a folder exists in the store."""
    if store.local:
        return os.path.isdir(folder)
    above, _, name = folder.rstrip("/").rpartition("/")
    return f"{name}/" in store.list(above, "/")
