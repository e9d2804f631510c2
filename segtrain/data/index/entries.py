"""Memory-mapped index of file names: a million samples in little memory, shared by all workers and ranks of a host.

Strings stand end to end in one block. Image, mask, and name of a sample share their common part, and an ``Entry`` is
made on access. The blocks are in one memory-mapped file: all processes share its pages, and pickling an index pickles
the path of the file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Union

import numpy as np

from segtrain.errors import DataError
from segtrain.files import writing

ENDING = ".entries"
# The file: these 24 bytes, the length of the header (8 bytes), the header (JSON), the blocks.
_MAGIC = b"segtrain entries 1\n\0\0\0\0\0"
_ALIGN = 64
# Strings that an iteration makes at once.
_PART = 4096
# In place of None: this byte never occurs in UTF-8.
_ABSENT = b"\xff"


@dataclass(frozen=True)
class Entry:
    """One sample of a split: paths of its image and mask, and metadata (``name``, columns of a list)."""

    image: str
    mask: str | None
    meta: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, eq=False)
class Texts:
    """Strings in one block: text ``i`` is ``blob[bounds[i]:bounds[i + 1]]``, UTF-8; bounds: uint32 or 64 [n + 1]."""

    blob: Union[bytes, memoryview]
    bounds: np.ndarray

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> str | None:
        return self.part(index, index + 1)[0]

    def __iter__(self) -> Iterator[str | None]:
        for first in range(0, len(self), _PART):
            yield from self.part(first, first + _PART)

    def part(self, first: int, after: int) -> list[str | None]:
        """The texts from ``first`` to before ``after``, faster than one by one."""
        parts = (self.blob[begin:end] for begin, end in itertools.pairwise(self.bounds[first : after + 1].tolist()))
        return [None if part == _ABSENT else str(part, "utf-8", "surrogatepass") for part in parts]

    def same(self, other: Texts) -> bool:
        return bool(np.array_equal(self.bounds, other.bounds)) and self.blob == other.blob

    def select(self, rows: np.ndarray) -> Texts:
        begin, end = self.bounds[:-1][rows], self.bounds[1:][rows]
        blob = b"".join(bytes(self.blob[a:b]) for a, b in zip(begin.tolist(), end.tolist()))
        return Texts(blob, _bounds(end - begin))

    def __reduce__(self) -> tuple[Any, ...]:
        return Texts, (bytes(self.blob), np.array(self.bounds))


def _bounds(lengths: np.ndarray) -> np.ndarray:
    bounds = np.zeros(len(lengths) + 1, np.uint64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds.astype(np.uint32) if bounds[-1] < 2**32 else bounds


class TextsBuilder:
    """Collects strings (or None) one by one. ``done`` empties it."""

    def __init__(self) -> None:
        self.blob, self.ends = bytearray(), array("Q", [0])

    def __len__(self) -> int:
        return len(self.ends) - 1

    def append(self, text: str | None) -> None:
        self.blob += _ABSENT if text is None else text.encode("utf-8", "surrogatepass")
        self.ends.append(len(self.blob))

    def done(self) -> Texts:
        texts = Texts(bytes(self.blob), _bounds(np.diff(np.array(self.ends))))
        self.blob, self.ends = bytearray(), array("Q", [0])
        return texts


def texts_of(strings: Iterable[str | None]) -> Texts:
    """All strings of an iterable in one block."""
    texts = TextsBuilder()
    for text in strings:
        texts.append(text)
    return texts.done()


def pack_keys(rows: list[str]) -> tuple[Texts, np.ndarray]:
    """Keys and their codes, uint8 [n], of sorted ``key + "\\0" + chr(code)``. Codes are 1 to 127. Empties ``rows``."""
    content = "".join(rows).encode("utf-8", "surrogatepass")
    # A million strings take more memory than everything below.
    rows.clear()
    whole = np.frombuffer(content, np.uint8)
    zeros = np.flatnonzero(whole == 0)
    keep = np.ones(len(whole), bool)
    keep[zeros] = keep[zeros + 1] = False
    return Texts(whole[keep].tobytes(), _bounds(np.diff(zeros, prepend=-2) - 2)), whole[zeros + 1]


@dataclass(frozen=True, eq=False)
class Column:
    """Strings ``prefix + texts[i] + tails[codes[i]]``. An absolute path in ``texts`` gets no prefix.

    Without ``codes`` all have the first of the ``tails``.
    """

    texts: Texts
    prefix: str = ""
    tails: tuple[str, ...] = ("",)
    codes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> str | None:
        return self.part(index, index + 1)[0]

    def __iter__(self) -> Iterator[str | None]:
        for first in range(0, len(self), _PART):
            yield from self.part(first, first + _PART)

    def part(self, first: int, after: int) -> list[str | None]:
        """The strings from ``first`` to before ``after``, faster than one by one."""
        codes = itertools.repeat(0) if self.codes is None else self.codes[first:after].tolist()
        rows = zip(self.texts.part(first, after), codes)
        return [
            None if text is None else ("" if text.startswith("/") else self.prefix) + text + self.tails[code]
            for text, code in rows
        ]


@dataclass(frozen=True)
class LazyEntries(Sequence[Entry]):
    """``length`` entries that ``entry`` makes from their index."""

    length: int
    entry: Callable[[int], Entry]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        places = range(self.length)[index]
        return [self.entry(place) for place in places] if isinstance(index, slice) else self.entry(places)


class Entries(Sequence[Entry]):
    """The entries of a split, made on access. ``file`` holds them ("": no file, so pickling copies them)."""

    def __init__(self, image: Column, mask: Column, meta: dict[str, Column], file: str = "") -> None:
        self.image, self.mask, self.meta, self.file = image, mask, meta, file

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.select(range(len(self))[index])
        place = range(len(self))[index]  # IndexError, and counts from the end
        meta = {name: value for name, column in self.meta.items() if (value := column[place]) is not None}
        return Entry(self.image[place] or "", self.mask[place], meta)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return (_again, (self.file,)) if self.file else (Entries, (self.image, self.mask, self.meta))

    def select(self, rows: Iterable[int]) -> Entries:
        """Only these rows, in this order, without a file."""
        chosen, columns = np.fromiter(rows, np.int64), (self.image, self.mask, *self.meta.values())
        # Columns share texts.
        texts = {id(column.texts): column.texts for column in columns}
        texts = {key: these.select(chosen) for key, these in texts.items()}
        image, mask, *meta = (
            replace(c, texts=texts[id(c.texts)], codes=None if c.codes is None else c.codes[chosen]) for c in columns
        )
        return Entries(image, mask, dict(zip(self.meta, meta)))


def save(entries: Entries, folder: Path) -> Entries:
    """Write into ``folder`` atomically, and return the entries mapped from there. Raises OSError.

    The name of the file is a digest of its content, so a name always leads to the same entries.
    """
    # Columns share blocks.
    places: dict[int, int] = {}
    blocks: list[bytes] = []

    def place(owner: Any) -> int:
        if id(owner) not in places:
            blocks.append(owner.tobytes() if isinstance(owner, np.ndarray) else bytes(owner))
        return places.setdefault(id(owner), len(blocks) - 1)

    columns = []
    meta = {f"meta {name}": column for name, column in entries.meta.items()}
    for name, column in {"image": entries.image, "mask": entries.mask, **meta}.items():
        texts, codes = column.texts, column.codes
        kinds = [texts.bounds.dtype.str, "" if codes is None else codes.dtype.str]
        numbers = [place(texts.blob), place(texts.bounds), -1 if codes is None else place(codes)]
        columns.append([name, column.prefix, list(column.tails), numbers, kinds])
    what = {"entries": len(entries), "columns": columns, "bytes": [len(block) for block in blocks]}
    header = json.dumps(what).encode()
    path = folder / (_digest(header, blocks) + ENDING)
    try:
        return load(str(path), whole=True)
    except (OSError, ValueError):  # not there, or damaged
        folder.mkdir(parents=True, exist_ok=True)
        with writing(path) as stream:
            for number, part in enumerate([_MAGIC, struct.pack("<Q", len(header)), header, *blocks]):
                stream.write(b"\0" * (-stream.tell() % _ALIGN if number > 2 else 0) + part)
    return load(str(path))


def _digest(header: bytes | memoryview, blocks: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.blake2b(header, digest_size=12)
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def load(file: str, whole: bool = False) -> Entries:
    """Memory-map entries. Raises OSError, or ValueError for a file that ``save`` did not write.

    ``whole``: check every byte. Otherwise a changed byte inside a block goes unnoticed.
    """
    with open(file, "rb") as stream:
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
    texts: dict[tuple[int, int], Texts] = {}

    def column(prefix: str, tails: list[str], numbers: list[int], kinds: list[str]) -> Column:
        key = (numbers[0], numbers[1])
        if key not in texts:
            texts[key] = Texts(blocks[key[0]], np.frombuffer(blocks[key[1]], np.dtype(kinds[0])))
        codes = None if numbers[2] < 0 else np.frombuffer(blocks[numbers[2]], np.dtype(kinds[1]))
        if len(texts[key]) != header["entries"] or (codes is not None and len(codes) != header["entries"]):
            raise ValueError("columns of unequal length")
        return Column(texts[key], prefix, tuple(tails), codes)

    columns = {name: column(*rest) for name, *rest in header["columns"]}
    image, mask = columns.pop("image"), columns.pop("mask")
    return Entries(image, mask, {name.removeprefix("meta "): column for name, column in columns.items()}, file)


def _again(file: str) -> Entries:
    """The entries of a pickled index, in a worker."""
    try:
        return load(file)
    except (OSError, ValueError) as error:
        says = f"{file}: the cached list of files cannot be read ({error}): start again, and it is rebuilt"
        raise DataError(says, code="entries-unreadable", file=file) from None
