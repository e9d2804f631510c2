"""A compact table of the sizes and etags of listed objects, shared by the processes of a host."""

from __future__ import annotations

import hashlib
import threading
import warnings
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

from segtrain.base.files import cache_folder, writing

# Cached files with this prefix are removed after a long time without use.
_PREFIX = "listing-bucket-"


class KnownObjects:
    """A table key -> (size, etag). A million objects take about 64 MB, since a key is stored as a
    64-bit digest.

    ``file``: a saved table, which is mapped into memory. Thread-safe.
    """

    def __init__(self, file: str = "") -> None:
        self._lock = threading.Lock()
        self._table = np.load(file, mmap_mode="r") if file else rows_of(())
        self._single: dict[str, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._table) + len(self._single)

    def find(self, key: str) -> tuple[int, str] | None:
        """Size and etag of an object; None if the table does not have it."""
        single = self._single.get(key)
        if single is not None:
            return single
        table, digest = self._table, digest_of(key)
        # numpy's own search would copy the column.
        place = bisect_left(table["key"], digest)
        if place == len(table) or table["key"][place] != digest:
            return None
        return int(table["size"][place]), table["etag"][place].decode()

    def add(self, key: str, size: int, etag: str) -> None:
        """Add one object that was read without a listing."""
        with self._lock:
            self._single[key] = size, etag

    def extend(self, pages: Sequence[np.ndarray]) -> None:
        """Add the objects of a listing. ``pages``: an array from ``rows_of`` for each page."""
        with self._lock:
            merged = np.concatenate([*pages, self._table])
            # Of equal keys, unique keeps the first, which is the newest.
            self._table = merged[np.unique(merged["key"], return_index=True)[1]]

    def marks(self) -> np.ndarray:
        """The result of ``cache_entry.mark_of`` for each object, uint64 [n]."""
        table = self.table()
        checks = np.array([zlib.crc32(etag) for etag in table["etag"].tolist()], np.uint64)
        return table["key"] ^ (checks << np.uint64(32))

    def table(self) -> np.ndarray:
        """All objects, as ``rows_of`` describes them, sorted."""
        with self._lock:
            single = rows_of((key, *value) for key, value in self._single.items())
            table = np.concatenate([single, self._table])
        return table[np.unique(table["key"], return_index=True)[1]]

    def save(self) -> str:
        """Write the table into the cache and return its path; "" if it is empty.

        If the cache cannot be written, it warns and returns "".
        """
        table = self.table()
        if not len(table):
            return ""
        digest = hashlib.blake2b(np.ascontiguousarray(table).data, digest_size=12).hexdigest()
        path = cache_folder() / f"{_PREFIX}{digest}.npy"
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with writing(path, sync=True) as stream:
                    np.save(stream, table)
        except OSError as error:
            lost = (
                "worker processes ask for the sizes and etags again, and accept an object "
                "that has changed since"
            )
            fix = "set SEGTRAIN_CACHE to a writable folder"
            warnings.warn(
                f"{path}: cannot be written ({error.strerror or error}): {lost}: {fix}",
                stacklevel=2,
            )
            return ""
        return str(path)


def rows_of(objects: Iterable[tuple[str, int, str]]) -> np.ndarray:
    """Objects as rows of the table, in the given order."""
    rows = [(digest_of(key), size, etag.encode()) for key, size, etag in objects]
    width = max((len(etag) for _, _, etag in rows), default=1)
    return np.array(rows, [("key", "<u8"), ("size", "<i8"), ("etag", f"S{max(1, width)}")])


def digest_of(text: str) -> int:
    """A 64-bit digest of a key or an etag."""
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little"
    )


def etag_number(etag: str) -> int:
    """A number below 2**63 that differs for different etags."""
    return digest_of(etag) >> 1
