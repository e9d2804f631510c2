"""Index of a split in shards: one mapped file, so that a million samples cost each process little memory.

    magic (24 bytes), length and CRC-32 of the header (2 x uint32), header (JSON), rows (ROW, one per sample), names

The header holds the split, the label space, the options of the pack, and the name, size, and SHA-256 of each shard.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from segtrain.data.index.entries import Entry
from segtrain.data.labels.space import LabelSpace
from segtrain.data.storage import LOCAL, Store, writing
from segtrain.errors import DataError, file_error

ENDING = ".index"
VERSION = 1
_MAGIC = b"segtrain shards\n".ljust(24, b"\0")
_HEAD = struct.Struct("<24sII")
_ALIGN = 64
NONE = 255  # the kind of a missing mask


class IndexRow(NamedTuple):
    """One row as Python numbers."""

    image_at: int  # bytes into the shard
    mask_at: int
    name_at: int  # bytes into the names
    image_size: int
    mask_size: int
    shard: int
    height: int
    width: int
    name_size: int
    image_kind: int  # place in Description.kinds
    mask_kind: int


ROW = np.dtype(list(zip(IndexRow._fields, ["<u8", "<u8", "<u8", "<u4", "<u4", "<u4", "<u4", "<u4", "<u2", "u1", "u1"])))


@dataclass(frozen=True)
class Shard:
    """A tar file beside the index. ``sha256`` is empty for a shard that another tool wrote."""

    name: str
    size: int
    sha256: str = ""


@dataclass(frozen=True)
class Description:
    """Header of an index."""

    split: str
    folder: str  # of the shards; "": the index's own folder
    shards: tuple[Shard, ...]
    kinds: tuple[str, ...]  # endings of members: "jpg", "mask.png", ...
    labels: LabelSpace | None = None  # None: shards of another tool; the config describes the classes
    ids: str = "raw"  # the masks hold "raw" or "train" ids
    options: dict[str, Any] = field(default_factory=dict)  # of the pack
    source: str = ""  # fingerprint of the packed data set
    skipped: int = 0  # faulty samples that were left out

    def to_dict(self) -> dict[str, Any]:
        shards = [[s.name, s.size, s.sha256] for s in self.shards]
        return {**vars(self), "shards": shards, "labels": self.labels and self.labels.to_dict()}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Description:
        """Raises KeyError, TypeError, ValueError, or DataError for a dict that ``to_dict`` did not write."""
        found: dict[str, Any] = {key: str(content[key]) for key in ("split", "folder", "ids", "source")}
        found["shards"] = tuple(Shard(str(name), int(size), str(sha)) for name, size, sha in content["shards"])
        found["kinds"] = tuple(map(str, content["kinds"]))
        found["labels"] = LabelSpace.from_dict(content["labels"]) if content["labels"] else None
        return cls(options=dict(content["options"]), skipped=int(content["skipped"]), **found)


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """A mapped index. ``rows`` is ROW [n]; pickling it is pickling its path."""

    path: str
    what: Description
    rows: np.ndarray
    names: memoryview
    crc32: int  # of rows and names when they were written
    store: Store

    def __len__(self) -> int:
        return len(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.path, self.store)

    def row(self, index: int) -> IndexRow:
        return IndexRow(*self.rows[index].item())

    def name(self, row: IndexRow) -> str:
        return bytes(self.names[row.name_at : row.name_at + row.name_size]).decode("utf-8", "surrogateescape")

    def shard(self, number: int) -> Shard:
        """Raises DataError for an unknown number, as ``kind`` does."""
        return self._part("shard", self.what.shards, number)

    def kind(self, number: int) -> str:
        return self._part("kind", self.what.kinds, number)

    def _part(self, name: str, parts: tuple[Any, ...], number: int) -> Any:
        if number >= len(parts):
            raise _bad(self.path, f"a row names {name} {number} of {len(parts)}", "index-row-wrong", found=number)
        return parts[number]


@dataclass(frozen=True)
class ShardSpan:
    """Location of one sample."""

    name: str
    shard: int
    image: tuple[str, int, int]  # ending, offset, size
    mask: tuple[str, int, int] | None
    size: tuple[int, int]  # height, width


def write(path: str, what: Description, places: Iterable[ShardSpan]) -> None:
    """Write an index atomically; ``what.kinds`` is extended by the kinds found in ``places``. Raises DataError."""
    rows, names, kinds = [], bytearray(), {kind: number for number, kind in enumerate(what.kinds)}
    for place in places:
        name = place.name.encode("utf-8", "surrogateescape")
        codes = [kinds.setdefault(part[0], len(kinds)) if part else NONE for part in (place.image, place.mask)]
        (_, image_at, image_size), (_, mask_at, mask_size) = place.image, place.mask or ("", 0, 0)
        if max(image_size, mask_size) >= 1 << 32 or len(name) >= 1 << 16 or len(kinds) >= NONE:
            reason = f"{place.name[:99]}: a file over 4 GiB, or a name over 64 KiB: split it"
            shard = what.shards[place.shard].name
            raise file_error(shard, reason, code="sample-too-large", sample=place.name)
        rows.append((image_at, mask_at, len(names), image_size, mask_size, place.shard, *place.size, len(name), *codes))
        names += name
    write_arrays(path, replace(what, kinds=tuple(kinds)), np.array(rows, ROW), bytes(names))


def write_arrays(path: str, what: Description, rows: np.ndarray, names: bytes) -> None:
    """Write an index from ready rows. Raises DataError."""
    check = zlib.crc32(names, zlib.crc32(rows.tobytes()))
    content = {"version": VERSION, "samples": len(rows), "names": len(names), "crc32": check, **what.to_dict()}
    head = json.dumps(content).encode()
    head += b" " * (-(len(head) + _HEAD.size) % _ALIGN)
    with writing(path) as stream:
        stream.write(_HEAD.pack(_MAGIC, len(head), zlib.crc32(head)) + head)
        stream.write(rows.tobytes())
        stream.write(names)


def load(path: str, store: Store = LOCAL) -> ShardIndex:
    """Map an index. Raises DataError if it is missing, cut off, of another version, or has a damaged header."""
    content = store.view(path, 0, store.stat(path).size)
    magic, length, crc = _HEAD.unpack(bytes(content[: _HEAD.size]).ljust(_HEAD.size))
    if magic != _MAGIC:
        raise _bad(path, "is not an index of shards", "index-unknown-format")
    head = bytes(content[_HEAD.size : _HEAD.size + length])
    if len(head) != length or zlib.crc32(head) != crc:
        raise _bad(path, "the header of the index is damaged", "index-damaged")
    try:
        found = json.loads(head)
        if found["version"] != VERSION:
            reason = f"the index has version {found['version']}, but {VERSION} is supported"
            raise _bad(path, reason, "index-version", found=found["version"])
        samples, names = int(found["samples"]), int(found["names"])
        what = Description.from_dict(found)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise _bad(path, f"the header of the index is wrong ({reason})", "index-damaged", found=reason) from None
    start = _HEAD.size + length
    end = start + samples * ROW.itemsize
    if min(samples, names) < 0 or end + names != len(content):
        size, expected = len(content), end + names
        reason = f"the index is cut off: it has {size:,} bytes instead of {expected:,}"
        raise _bad(path, reason, "index-cut-off", found=size, expected=expected)
    return ShardIndex(path, what, np.frombuffer(content[start:end], ROW), content[end:], found.get("crc32"), store)


def damage(index: ShardIndex) -> DataError | None:
    """An error if rows or names have changed since they were written. Reads all (60 ms for a million samples)."""
    if zlib.crc32(index.names, zlib.crc32(index.rows.data)) == index.crc32:
        return None
    return _bad(index.path, "the rows of the index are damaged", "index-damaged")


def _bad(path: str, reason: str, code: str, **values: Any) -> DataError:
    fix = f"delete {path} and pack again (shards of other tools are indexed again automatically)"
    return file_error(path, f"{reason}: {fix}", code=code, **values)


class ShardEntries(Sequence[Entry]):
    """Entries of a split, made on demand: ``length`` of the index's rows, evenly spread."""

    def __init__(self, table: ShardIndex, folder: str, length: int) -> None:
        self.table, self.folder, self.length = table, folder, length

    def __len__(self) -> int:
        return self.length

    def row(self, index: int) -> IndexRow:
        """The index row of an entry."""
        return self.table.row(range(self.length)[index] * len(self.table) // self.length)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(self.length)[index]]
        return self.entry(self.row(index))

    def entry(self, row: IndexRow) -> Entry:
        name = self.table.name(row)
        begin = f"{self.folder}/{self.table.shard(row.shard).name}: {name}."
        mask = None if row.mask_kind == NONE else begin + self.table.kind(row.mask_kind)
        return Entry(begin + self.table.kind(row.image_kind), mask, {"name": name})
