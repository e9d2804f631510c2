"""Sizes and etags of the files in a split (local files: their times), read in parallel on slow
storage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from segtrain.data.index.entries import Entries, Entry
from segtrain.data.storage import LOCAL, Store

# Entries in one part. The time of the first part decides whether threads are used.
_PART = 256
# Threads pay off from this many seconds per file, as on a network file system. A local disk takes
# microseconds.
_SLOW = 1e-4
_THREADS = 32


def stamps(entries: Sequence[Entry], store: Store = LOCAL) -> np.ndarray:
    """int64 (n, 2, 2): size in bytes and etag (local: mtime + ctime in ns) of image and mask; 0 for
    no mask.
    """
    stamped = np.zeros((len(entries), 2, 2), np.int64)

    def fill(begin: int) -> None:
        some = files(entries, begin, begin + _PART)
        stamped[begin : begin + _PART] = [
            [store.stat(path) if path else (0, 0) for path in both] for both in some
        ]

    begins = range(0, len(entries), _PART)
    start = time.perf_counter()
    for begin in begins[:1]:
        fill(begin)
    slow = time.perf_counter() - start >= _SLOW * 2 * _PART
    with ThreadPoolExecutor(_THREADS if slow else 1) as pool:
        list(pool.map(fill, begins[1:]))
    return stamped


def files(entries: Sequence[Entry], first: int, after: int) -> list[tuple[str | None, str | None]]:
    """Paths of image and mask of the entries ``first`` to ``after - 1``."""
    if isinstance(entries, Entries):
        return list(zip(entries.image.part(first, after), entries.mask.part(first, after)))
    some = (entries[index] for index in range(len(entries))[first:after])
    return [(entry.image, entry.mask) for entry in some]


def listing_text(
    entries: Sequence[Entry], root: str, sizes: np.ndarray, begin: int, end: int
) -> bytes:
    """``PATH\\0BYTES\\n`` for each image and mask of some entries. Paths are relative to ``root``
    if it is not empty.

    sizes: [n, 2], of images and masks.
    """
    parts = []
    for (image, mask), (image_bytes, mask_bytes) in zip(
        files(entries, begin, end), sizes[begin:end].tolist()
    ):
        parts.append(
            f"{relative(image, root)}\0{image_bytes}\n{relative(mask, root)}\0{mask_bytes}\n"
        )
    return "".join(parts).encode(errors="surrogateescape")


def relative(path: str | None, root: str) -> str:
    """The path of a file relative to ``root``, with slashes."""
    if not path or not root:
        return path or ""
    folder, _, name = path.rpartition("/")
    if not folder or not name or os.sep != "/":
        return os.path.relpath(path, root).replace(os.sep, "/")
    below = _relative_folder(folder, root)
    return name if below == "." else f"{below}/{name}"


_relative_folder = lru_cache(maxsize=1024)(os.path.relpath)
