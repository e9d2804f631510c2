"""Where do stored bytes come from, and how is a file written whole or not at all? The seam to a store: today the local disk.

Shards and indices are read through mappings: nothing is copied, and the processes of a host share the pages.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from segtrain import files
from segtrain.errors import DataError

_MAPS = 128  # files mapped at once in a process; each holds a file descriptor
_RESIDENT = 32 << 20  # bytes handed out until a process gives its pages of shards back, so that its memory stays flat
_CURE = "check the path and its rights"


def size(path: str) -> int:
    """Bytes of a file. Raises DataError."""
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise _unreadable(path, error) from None


def read(path: str) -> bytes:
    """All of a file. Raises DataError."""
    return read_range(path, 0, size(path))


def read_range(path: str, offset: int, length: int) -> bytes:
    """``length`` bytes from ``offset`` on. Raises DataError, also where the file ends before."""
    try:
        with open(path, "rb") as stream:
            stream.seek(offset)
            content = stream.read(length)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(content) != length:
        raise DataError(
            f"{path}: ends at byte {offset + len(content):,}, {offset + length:,} were expected: {_again()}"
        )
    return content


def listing(folder: str, ending: str) -> list[str]:
    """Names of the files of a folder that end so, sorted; hidden ones left out. Empty where there is no such folder."""
    try:
        with os.scandir(folder) as found:
            return sorted(e.name for e in found if e.name.endswith(ending) and e.name[0] != "." and e.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(folder, error) from None


@contextmanager
def writing(path: str, beside: str = "") -> Iterator[BinaryIO]:
    """A file to write and read that takes ``path``'s place when the block ends, on the disk and whole; until then it is hidden
    in the same folder, or in ``beside`` on the same disk.

    Raises DataError where it cannot be written; after any error nothing of it stays.
    """
    folder = Path(beside or os.path.dirname(path))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with files.writing(Path(path), sync=True, beside=folder) as stream:
            yield stream
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}): check the space and the rights"
        ) from None


def map(path: str) -> memoryview:
    """A file's bytes, mapped; one mapping for all threads of a process, which outlives the cache as long as it is used.

    Raises DataError for a file that is missing or empty.
    """
    return _maps.get(path)


def view(path: str, offset: int, length: int) -> memoryview:
    """A part of a mapped file. Pages used so are given back now and then; they stay in the system's cache.

    Raises DataError for a part that is not inside the file.
    """
    whole = _maps.get(path)
    if offset < 0 or length < 0 or offset + length > len(whole):
        raise DataError(
            f"{path}: has {len(whole):,} bytes, its index wants bytes {offset:,} to {offset + length:,}: {_again()}"
        )
    _maps.used(length)
    return whole[offset : offset + length]


class _Maps:
    """Mappings of this process, the longest unused dropped first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[tuple[int, int, int], mmap.mmap, memoryview]] = OrderedDict()
        self._used = 0

    def get(self, path: str) -> memoryview:
        try:
            status = os.stat(path)  # another file under the same name is another mapping
            mark = status.st_ino, status.st_size, status.st_mtime_ns
            with self._lock:
                found = self._kept.get(path)
                if found is None or found[0] != mark:
                    if not status.st_size:
                        raise DataError(f"{path}: the file has 0 bytes: {_again()}")
                    with open(path, "rb") as stream:
                        mapped = mmap.mmap(stream.fileno(), status.st_size, access=mmap.ACCESS_READ)
                    found = self._kept[path] = mark, mapped, memoryview(mapped)
                self._kept.move_to_end(path)
                while len(self._kept) > _MAPS:
                    self._kept.popitem(last=False)
                return found[2]
        except (OSError, ValueError) as error:  # ValueError: it has shrunk since
            raise _unreadable(path, error) from None

    def used(self, length: int) -> None:
        with self._lock:
            self._used += length
            if self._used < _RESIDENT:
                return
            self._used = 0
            if hasattr(mmap, "MADV_DONTNEED"):  # of a file that is only read: whoever looks again gets the same bytes
                for _, mapped, _ in self._kept.values():
                    mapped.madvise(mmap.MADV_DONTNEED)


_maps = _Maps()


def _fresh() -> None:
    global _maps
    _maps = _Maps()


if hasattr(os, "register_at_fork"):  # another thread may have held the lock
    os.register_at_fork(after_in_child=_fresh)


def _unreadable(path: str, error: Exception) -> DataError:
    return DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}): {_CURE}")


def _again() -> str:
    return "fetch it or write it again"
