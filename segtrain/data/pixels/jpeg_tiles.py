"""Cache of where the tiles of plain JPEG files begin, so that later only the tiles of a crop are decoded.

Without an index, a JPEG can only be decoded from its beginning. ``native.jpeg_index`` makes one (24 kB for an image of
2048x1024), and the cache folder keeps it. Each process appends its records, one per sample, to
a file of its own, and reads the files of others that existed when it began.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import sys
import threading
import zlib
from typing import Any

import numpy as np

from segtrain.data.cache import SampleSource
from segtrain.data.pixels import native
from segtrain.files import cache_folder

_HEAD = struct.Struct("<4sIIII")  # magic, sample, checksum of its file name, bytes that follow, their checksum
_MAGIC = b"STt2"  # changes with the form of the index, too: see kIndexMagic in native/jpeg.h
_LEAST = 512 * 512  # pixels: a smaller picture is decoded faster than its record is found


class Tiles:
    """The indexes of a data set of ``count`` samples with the first image ``name``. It pickles, and is thread-safe."""

    @classmethod
    def of(cls, source: SampleSource) -> Tiles:
        return cls(str(source.entries[0].image) if len(source) else "", len(source))

    def __init__(self, name: str, count: int) -> None:
        key = f"{name}:{count}".encode(errors="surrogateescape")  # names need not be UTF-8
        self.folder = cache_folder() / f"tiles-{hashlib.sha256(key).hexdigest()[:16]}"
        self.name, self.count, self._off = name, count, False
        self._lock = threading.Lock()
        self._files: list[int] | None = None  # opened at the first use
        self._own, self._end = -1, 0  # number and size of the file that this process appends to

    def __reduce__(self) -> tuple[Any, ...]:
        return Tiles, (self.name, self.count)

    def get(self, sample: int, name: str, content: Any, size: tuple[int, int]) -> bytes:
        """The index of this JPEG, from the cache or made (and kept) now; b"" if it is of no use."""
        if self._off or size[0] * size[1] < _LEAST or not native.available() or native.kind_of(content) != native.JPEG:
            return b""
        with self._lock:
            files = self._opened()
            head, offset = self._head[sample].tolist(), int(self._offset[sample])
            file = files[offset >> 40] if offset >= 0 else -1
        if offset >= 0 and head[0] == _checksum(name):
            kept = os.pread(file, head[1], offset & (1 << 40) - 1)
            if zlib.crc32(kept) == head[2]:
                return kept
        made = native.jpeg_index(content, name) or b""
        self.keep(sample, name, made, size)
        return made

    def keep(self, sample: int, name: str, made: bytes, size: tuple[int, int]) -> None:
        """Keep an index that was made elsewhere, for example by the check for damage before training."""
        if self._off or size[0] * size[1] < _LEAST:
            return
        with self._lock:
            self._append(self._opened(), sample, _checksum(name), made)

    def _opened(self) -> list[int]:
        if self._files is not None:
            return self._files
        self._files = []
        self._head = np.zeros((self.count, 3), np.uint32)  # checksum of the name, bytes, their checksum
        self._offset = np.full(self.count, -1, np.int64)  # number of the file << 40 | offset; -1: no record
        for path in sorted(self.folder.glob("*.tiles")) if self.folder.is_dir() else []:
            try:
                self._files.append(os.open(path, os.O_RDONLY))
                self._walk(self._files[-1], len(self._files) - 1)
            except OSError:
                continue  # another process may have cleared the cache
        return self._files

    def _walk(self, file: int, number: int) -> None:
        """Read the records of a file, up to one that a crash cut off."""
        offset, end = 0, os.fstat(file).st_size
        while offset + _HEAD.size <= end:
            magic, sample, *head = _HEAD.unpack(os.pread(file, _HEAD.size, offset))
            offset += _HEAD.size
            if magic != _MAGIC or offset + head[1] > end or sample >= self.count:
                break
            self._head[sample], self._offset[sample] = head, number << 40 | offset
            offset += head[1]

    def _append(self, files: list[int], sample: int, checksum: int, made: bytes) -> None:
        """Append a record, in one write, to this process's own file."""
        try:
            if self._own < 0:
                self.folder.mkdir(parents=True, exist_ok=True)
                path = self.folder / f"{os.getpid()}-{os.urandom(4).hex()}.tiles"
                files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644))
                self._own = len(files) - 1
            head = checksum, len(made), zlib.crc32(made)
            record = _HEAD.pack(_MAGIC, sample, *head) + made
            if os.pwrite(files[self._own], record, self._end) != len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._off = True
            says = f"{self.folder}: the positions of JPEG tiles cannot be kept ({error.strerror}), so crops take more "
            says += "CPU time: set SEGTRAIN_CACHE to a folder with free space"
            print(says, file=sys.stderr, flush=True)
            return
        self._head[sample], self._offset[sample] = head, self._own << 40 | self._end + _HEAD.size
        self._end += len(record)


def _checksum(name: str) -> int:
    return zlib.crc32(name.encode(errors="surrogateescape"))
