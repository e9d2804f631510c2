"""Cache of positions in JPEG files, from which parts of an image (tiles) can be decoded alone.

So only the tiles of a crop are decoded. Without an index, a JPEG can only be decoded from its
beginning. ``native.jpeg_index`` makes an index (24 kB for an image of 2048x1024), which is stored
in the cache folder. Each process appends its records, one per sample, to its own file. At its first
use of the cache, a process reads the records of other processes. No file stays open, as there may
be many.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import struct
import sys
import threading
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from segtrain.base.files import cache_folder, open_file
from segtrain.data.dataset import SampleSource
from segtrain.data.pixels import native

# magic, sample, fingerprint of its image, bytes that follow, their checksum
_HEAD = struct.Struct("<4sIIII")
# change it with the form of a record or of the index, see kIndexMagic in native/jpeg.h
_MAGIC = b"STt2"
_MIN_PIXELS = 512 * 512  # decoding a smaller image takes less time than finding its record


class Tiles:
    """The indexes of a data set, identified by its number of samples and its first image. Picklable
    and thread-safe.
    """

    @classmethod
    def from_source(cls, source: SampleSource) -> Tiles:
        return cls(str(source.entries[0].image) if len(source) else "", len(source))

    def __init__(self, name: str, count: int) -> None:
        key = f"{name}:{count}".encode(errors="surrogateescape")  # names need not be UTF-8
        self.folder = cache_folder() / f"tiles-{hashlib.sha256(key).hexdigest()[:16]}"
        self.name, self.count, self._off = name, count, False
        self._lock = threading.Lock()
        self._files: list[Path] | None = None  # listed at the first use
        self._own = -1  # number of the file that this process appends to

    def __reduce__(self) -> tuple[Any, ...]:
        return Tiles, (self.name, self.count)

    def get(self, sample: int, name: str, content: Any, size: tuple[int, int]) -> bytes:
        """The index of a JPEG, from the cache or newly made and cached; b"" if an index would be of
        no use.
        """
        if not native.available() or not self._pays(content, size):
            return b""
        with self._lock:
            files = self._listed()
            head, offset = self._head[sample].tolist(), int(self._offset[sample])
        if offset >= 0 and head[0] == _fingerprint(name, content):
            # None: another process has cleared the cache
            path = str(files[offset >> 40])
            record = bytes(native.read(path, offset & (1 << 40) - 1, head[1]) or b"")
            if zlib.crc32(record) == head[2]:
                return record
        made = native.jpeg_index(content, name) or b""
        self.keep(sample, name, content, size, made)
        return made

    def keep(
        self, sample: int, name: str, content: Any, size: tuple[int, int], made: bytes
    ) -> None:
        """Keep an index that was made elsewhere, for example by the check for damage before
        training.
        """
        if self._pays(content, size):
            with self._lock:
                self._append(self._listed(), sample, _fingerprint(name, content), made)

    def _pays(self, content: Any, size: tuple[int, int]) -> bool:
        return (
            not self._off
            and size[0] * size[1] >= _MIN_PIXELS
            and native.kind_of(content) == native.JPEG
        )

    def _listed(self) -> list[Path]:
        if self._files is not None:
            return self._files
        self._files = []
        # fingerprint of the image, bytes, their checksum
        self._head = np.zeros((self.count, 3), np.uint32)
        # number of the file << 40 | offset; -1: no record
        self._offset = np.full(self.count, -1, np.int64)
        try:
            # The records of newer files replace those of older files.
            paths = sorted(self.folder.glob("*.tiles"), key=lambda path: path.stat().st_mtime_ns)
        except OSError:
            paths = []  # another process is clearing the cache
        for path in paths:
            with contextlib.suppress(OSError), open_file(path, math.inf) as file:
                self._read_records(file, len(self._files))
            self._files.append(path)
        return self._files

    def _read_records(self, file: BinaryIO, number: int) -> None:
        """Read the records of a file, up to one that a crash cut off."""
        offset, end = 0, os.fstat(file.fileno()).st_size
        while offset + _HEAD.size <= end:
            magic, sample, *head = _HEAD.unpack(os.pread(file.fileno(), _HEAD.size, offset))
            offset += _HEAD.size
            if magic != _MAGIC or offset + head[1] > end or sample >= self.count:
                break
            self._head[sample], self._offset[sample] = head, number << 40 | offset
            offset += head[1]

    def _append(self, files: list[Path], sample: int, fingerprint: int, made: bytes) -> None:
        """Append a record to this process's own file."""
        if self._own < 0:
            files.append(self.folder / f"{os.getpid()}-{os.urandom(4).hex()}.tiles")
            self._own = len(files) - 1
        head = fingerprint, len(made), zlib.crc32(made)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(files[self._own], "ab") as file:
                offset = file.tell() + _HEAD.size
                file.write(_HEAD.pack(_MAGIC, sample, *head) + made)
        except OSError as error:
            self._off = True
            text = (
                f"{self.folder}: the positions of JPEG tiles cannot be kept "
                f"({error.strerror}), so crops take more "
                "CPU time: set SEGTRAIN_CACHE to a folder with free space"
            )
            print(text, file=sys.stderr, flush=True)
            return
        self._head[sample], self._offset[sample] = head, self._own << 40 | offset


def _fingerprint(name: str, content: Any) -> int:
    """A checksum of name, size, and last bytes: it changes if another image is stored under the
    same name.
    """
    return zlib.crc32(
        content[-4096:], zlib.crc32(f"{name}:{len(content)}".encode(errors="surrogateescape"))
    )
