"""One entry of the disk cache: a file with a header and a byte range of an object, for one etag of
that object.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import mmap
import os
import struct
import uuid
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from segtrain.base.files import NO_WAIT
from segtrain.data.bucket.object_table import digest_of
from segtrain.data.checksum import checksum

# The header of a file: magic, digest of the fields of ``CachedRange``, length and checksum of the
# content.
_HEAD = struct.Struct("<8s20sQI")
_MAGIC = b"segrange"
# Files with fewer bytes are read at once, which costs less than a memory mapping.
_MAPPED = 1 << 18
_BINARY = getattr(os, "O_BINARY", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
# Unfinished files have names that are unique among the threads, processes, and hosts that share a
# folder.
_WRITER, _numbers = uuid.uuid4().hex[:8], itertools.count()


class DamagedEntry(Exception):
    """The file of an entry is damaged or cannot be read."""


class CachedRange(NamedTuple):
    """A range of an object: ``base`` is the bucket's URL, ``length`` is -1 for the whole object."""

    base: str
    key: str
    etag: str
    offset: int
    length: int

    def path(self, folder: Path) -> str:
        """The path ``FOLDER/BUCKET/XX/MARK-OFFSET-LENGTH``, or ``FOLDER/BUCKET/XX/MARK`` for a
        whole object.

        MARK is the result of ``mark_of`` in hex digits, and XX are the first two of them.
        """
        mark = f"{mark_of(digest_of(self.key), self.etag.encode()):016x}"
        name = f"{mark}-{self.offset:x}-{self.length:x}" if self.length >= 0 else mark
        return f"{folder}/{bucket_folder(self.base)}/{mark[:2]}/{name}"

    def _head(self, length: int, check: int) -> bytes:
        return _HEAD.pack(
            _MAGIC,
            hashlib.blake2b(repr(tuple(self)).encode(), digest_size=20).digest(),
            length,
            check,
        )

    def size(self, length: int) -> int:
        """Bytes of the file with ``length`` bytes of content."""
        return _HEAD.size + length

    def read(self, folder: Path, touch_before: float) -> memoryview | None:
        """The content; None if there is no file. Raises DamagedEntry, after it has removed a
        damaged file.

        A file that was last used before ``touch_before`` (Unix time) gets the current time as its
        modification time.
        """
        path = self.path(folder)
        try:
            handle = os.open(path, os.O_RDONLY | _BINARY | NO_WAIT)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            raise DamagedEntry from None
        try:
            status = os.fstat(handle)
            content = _content(handle, status.st_size)
            stored = memoryview(content)[_HEAD.size :]
            if content[: _HEAD.size] == self._head(len(stored), checksum(stored)):
                if status.st_mtime < touch_before:
                    # The file may belong to another user or be on a read-only disk; Windows accepts
                    # no descriptor here.
                    with contextlib.suppress(OSError, TypeError):
                        os.utime(handle)
                return stored
        except (OSError, ValueError):  # a damaged disk
            pass
        finally:
            os.close(handle)
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise DamagedEntry

    def write(self, folder: Path, content: Any) -> None:
        """Write the file atomically, without a sync: the checksum detects damage by a power loss.
        Raises OSError.
        """
        # Written with plain system calls: Python's buffered files and path objects would double the
        # CPU time.
        path = self.path(folder)
        above, _, name = path.rpartition("/")
        partial = f"{above}/.{name}.{_WRITER}-{os.getpid()}-{next(_numbers)}.part"
        try:
            handle = os.open(partial, _NEW, 0o666)
        except FileNotFoundError:
            os.makedirs(above, exist_ok=True)
            handle = os.open(partial, _NEW, 0o666)
        try:
            try:
                for part in (self._head(len(content), checksum(content)), content):
                    left = memoryview(part)
                    while left:
                        left = left[os.write(handle, left) :]
            finally:
                os.close(handle)
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise


def _content(handle: int, size: int) -> bytes | mmap.mmap:
    return (
        os.read(handle, size)
        if size < _MAPPED
        else mmap.mmap(handle, size, access=mmap.ACCESS_READ)
    )


@lru_cache
def bucket_folder(base: str) -> str:
    """The folder of a bucket's entries in the cache."""
    return hashlib.blake2b(base.encode(), digest_size=6).hexdigest()


def mark_of(key: int, etag: bytes) -> int:
    """A 64-bit hash of an object and its etag. ``key``: the result of ``digest_of`` for the
    object's key.
    """
    return key ^ (zlib.crc32(etag) << 32)


class CacheFile(NamedTuple):
    """An entry on the disk. ``used``: Unix time of the last use, in seconds."""

    used: float
    size: int
    bucket: str
    path: str

    @property
    def mark(self) -> int:
        with contextlib.suppress(ValueError):
            return int(os.path.basename(self.path).partition("-")[0], 16)
        return 0


def folders_in(path: Path | str) -> list[os.DirEntry[str]]:
    """The folders directly in a folder; none if it cannot be read."""
    with contextlib.suppress(OSError), os.scandir(path) as items:
        return [item for item in items if item.is_dir()]
    return []
