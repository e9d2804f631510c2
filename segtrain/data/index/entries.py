"""Memory-mapped index of file names: a million samples in little memory, shared by all workers and
ranks of a host.

Strings are stored in a few large blocks of bytes, and an ``Entry`` is made on access. All blocks
are in one memory-mapped file: all processes share its pages, and pickling an index only pickles the
path of the file. Sizes and etags of the files are read in parallel on slow storage.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import mmap
import os
import struct
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Union

import numpy as np

from segtrain.base.files import open_file, writing
from segtrain.bucket import SCHEMES
from segtrain.data.storage import LOCAL, Store
from segtrain.errors import file_error

ENDING = ".entries"
# A file has these 24 bytes, the length of the header (8 bytes), the header (JSON), and the blocks.
_MAGIC = b"segtrain entries 2\n\0\0\0\0\0"
_ALIGN = 64
# Number of strings that an iteration decodes at once.
_PART = 4096
# Stands for None: this byte never occurs in UTF-8.
_ABSENT = b"\xff"
# Entries in one part. The time of the first part decides whether threads are used.
_STAMPED = 256
# Threads pay off from this many seconds per file, as on a network file system. A local disk takes
# microseconds.
_SLOW = 1e-4
_THREADS = 32


@dataclass(frozen=True)
class Entry:
    """One sample of a split.

    image, mask: names for messages; paths in the store if ``Dataset.separate_files``. No two
    entries have the same image. A mask of None: the sample has none. meta: every entry has a
    "name", the same on every machine, and the same for files and for shards packed from them:
    ``data.split_by``, the packing, and the comparison of a resumed run's data depend on it. The
    other values are columns of a list.
    """

    image: str
    mask: str | None
    meta: dict[str, str] = field(default_factory=dict, hash=False)


_ABSOLUTE = ("/", *(f"{scheme}://" for scheme in SCHEMES))  # beginnings of absolute paths


@dataclass(frozen=True, eq=False)
class Column:
    """Strings ``prefix + text``, where text ``i`` is ``blob[bounds[i]:bounds[i + 1]]`` in UTF-8.

    bounds: uint64 [n + 1]. A text that is empty, an absolute path, or a URL gets no prefix.
    """

    blob: Union[bytes, memoryview]
    bounds: np.ndarray
    prefix: str = ""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> str | None:
        begin, end = self.bounds[index : index + 2].tolist()
        return self._string(self.blob[begin:end])

    def __iter__(self) -> Iterator[str | None]:
        for first in range(0, len(self), _PART):
            yield from self.part(first, first + _PART)

    def part(self, first: int, after: int) -> list[str | None]:
        """The strings ``first`` to ``after - 1``, faster than one by one."""
        places = itertools.pairwise(self.bounds[first : after + 1].tolist())
        return [self._string(self.blob[begin:end]) for begin, end in places]

    def _string(self, part: bytes | memoryview) -> str | None:
        if part == _ABSENT:
            return None
        text = str(part, "utf-8", "surrogatepass")
        return ("" if not text or text.startswith(_ABSOLUTE) else self.prefix) + text


class ColumnBuilder:
    """Builds a Column from strings (or None) that are appended one by one. ``done`` returns it and
    starts a new one.
    """

    def __init__(self) -> None:
        self.blob, self.ends = bytearray(), array("Q", [0])

    def __len__(self) -> int:
        return len(self.ends) - 1

    def append(self, text: str | None) -> None:
        self.blob += _ABSENT if text is None else text.encode("utf-8", "surrogatepass")
        self.ends.append(len(self.blob))

    def done(self, prefix: str = "") -> Column:
        column = Column(bytes(self.blob), np.array(self.ends), prefix)
        self.blob, self.ends = bytearray(), array("Q", [0])
        return column


def column_of(strings: Iterable[str | None], prefix: str = "") -> Column:
    """A Column of all strings of an iterable."""
    builder = ColumnBuilder()
    for text in strings:
        builder.append(text)
    return builder.done(prefix)


@dataclass(frozen=True)
class LazyEntries(Sequence[Entry]):
    """A sequence of ``length`` entries, which ``entry(index)`` makes on access."""

    length: int
    entry: Callable[[int], Entry]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        found = range(self.length)[index]
        return (
            [self.entry(position) for position in found]
            if isinstance(index, slice)
            else self.entry(found)
        )


class Entries(Sequence[Entry]):
    """The entries of a split, made on access. ``file``: where they are saved ("": nowhere, so
    pickling copies them). A column of ``meta`` with a dot before its name is not in ``Entry.meta``.
    """

    def __init__(
        self, image: Column, mask: Column, meta: dict[str, Column], file: str = ""
    ) -> None:
        self.image, self.mask, self.meta, self.file = image, mask, meta, file
        self._entry = lru_cache(256)(self._made)  # a sample asks for its entry several times

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.select(range(len(self))[index])
        return self._entry(range(len(self))[index])  # IndexError; negative indices

    def _made(self, row: int) -> Entry:
        meta = {
            name: value
            for name, column in self.meta.items()
            if name[0] != "." and (value := column[row]) is not None
        }
        return Entry(self.image[row] or "", self.mask[row], meta)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            (_again, (self.file,)) if self.file else (Entries, (self.image, self.mask, self.meta))
        )

    def select(self, rows: Iterable[int]) -> Entries:
        """Only these rows, in this order, without a file."""
        chosen = [*rows]

        def of(column: Column) -> Column:
            texts = replace(column, prefix="")
            return column_of((texts[row] for row in chosen), column.prefix)

        meta = {name: of(column) for name, column in self.meta.items()}
        return Entries(of(self.image), of(self.mask), meta)


def save(entries: Entries, folder: Path) -> Entries:
    """Write into ``folder`` atomically, and return the entries mapped from there. Raises OSError.

    The name of the file is a digest of its content, so a name always leads to the same entries.
    """
    meta = {f"meta {name}": column for name, column in entries.meta.items()}
    columns = {"image": entries.image, "mask": entries.mask, **meta}
    blocks = [bytes(block) for column in columns.values() for block in (column.blob, column.bounds)]
    content = {
        "entries": len(entries),
        "columns": [[name, column.prefix] for name, column in columns.items()],
        "bytes": [len(block) for block in blocks],
    }
    header = json.dumps(content).encode()
    path = folder / (_digest(header, blocks) + ENDING)
    try:
        return load(str(path), whole=True)
    except (OSError, ValueError):  # not there, or damaged
        folder.mkdir(parents=True, exist_ok=True)
        with writing(path) as stream:
            stream.write(_MAGIC + struct.pack("<Q", len(header)) + header)
            for block in blocks:
                stream.write(b"\0" * (-stream.tell() % _ALIGN) + block)
    return load(str(path))


def _digest(header: bytes | memoryview, blocks: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.blake2b(header, digest_size=12)
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def load(file: str, whole: bool = False) -> Entries:
    """Memory-map the entries in a file. Raises OSError, or ValueError for a file that ``save`` did
    not write.

    ``whole``: check every byte. Otherwise a changed byte inside a block goes unnoticed.
    """
    with open_file(file, math.inf) as stream:
        view = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    start = len(_MAGIC) + 8
    if view[: len(_MAGIC)] != _MAGIC:
        raise ValueError("not written by this version")
    try:
        begin = body = start + struct.unpack("<Q", view[len(_MAGIC) : start])[0]
        header = json.loads(bytes(view[start:body]))
        blocks = []
        for size in header["bytes"]:
            begin += -begin % _ALIGN
            blocks.append(view[begin : begin + size])
            begin += size
        if begin != len(view):
            raise ValueError(f"{len(view)} bytes instead of {begin}")
        if whole and _digest(view[start:body], blocks) != Path(file).stem:
            raise ValueError("its content has changed")
        return _entries(header, blocks, file)
    except (KeyError, TypeError, IndexError, struct.error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _entries(header: dict[str, Any], blocks: list[memoryview], file: str) -> Entries:
    columns = dict[str, Column]()
    for (name, prefix), blob, bounds in zip(header["columns"], blocks[::2], blocks[1::2]):
        columns[name] = Column(blob, np.frombuffer(bounds, np.uint64), prefix)
        if len(columns[name]) != header["entries"]:
            raise ValueError("columns of unequal length")
    image, mask = columns.pop("image"), columns.pop("mask")
    return Entries(
        image, mask, {name.removeprefix("meta "): column for name, column in columns.items()}, file
    )


def _again(file: str) -> Entries:
    """Map the entries of an index again, when a worker process unpickles it."""
    try:
        return load(file)
    except (OSError, ValueError) as error:
        message = (
            f"the cached list of files cannot be read ({error}): start again, and it is rebuilt"
        )
        raise file_error(file, message, code="entries-unreadable") from None


def stamps(entries: Sequence[Entry], store: Store = LOCAL) -> np.ndarray:
    """int64 (n, 2, 2): size in bytes and etag (local: mtime + ctime in ns) of image and mask; 0 for
    no mask.
    """
    stamped = np.zeros((len(entries), 2, 2), np.int64)

    def fill(begin: int) -> None:
        some = files(entries, begin, begin + _STAMPED)
        stamped[begin : begin + _STAMPED] = [
            [store.stat(path) if path else (0, 0) for path in both] for both in some
        ]

    begins = range(0, len(entries), _STAMPED)
    start = time.perf_counter()
    for begin in begins[:1]:
        fill(begin)
    slow = time.perf_counter() - start >= _SLOW * 2 * _STAMPED
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
