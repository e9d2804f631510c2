"""Where in which shard is sample i? One file a split that is mapped, not read, so that a million samples cost every process little.

    magic (24 bytes), length and CRC-32 of the header (2 x uint32), header (JSON), rows (ROW, one a sample), names end to end

The header says which split, which label space, how it was packed, and for each shard its name, bytes and SHA-256.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from segtrain.data import storage
from segtrain.data.index.entries import Entry
from segtrain.data.labels.space import LabelSpace
from segtrain.errors import DataError

ENDING = ".index"
VERSION = 1
_MAGIC = b"segtrain shards\n".ljust(24, b"\0")
_HEAD = struct.Struct("<24sII")
_ALIGN = 64
NONE = 255  # kind of a mask that is not there

ROW = np.dtype(
    [
        ("image_at", "<u8"), ("mask_at", "<u8"), ("name_at", "<u8"),  # bytes into the shard, and into the names
        ("image_size", "<u4"), ("mask_size", "<u4"), ("shard", "<u4"), ("height", "<u4"), ("width", "<u4"),
        ("name_size", "<u2"), ("image_kind", "u1"), ("mask_kind", "u1"),  # places in Description.kinds
    ]
)  # fmt: skip


class IndexRow(NamedTuple):
    """A ROW as Python numbers."""

    image_at: int
    mask_at: int
    name_at: int
    image_size: int
    mask_size: int
    shard: int
    height: int
    width: int
    name_size: int
    image_kind: int
    mask_kind: int


@dataclass(frozen=True)
class Shard:
    """A tar file beside the index. ``sha256`` is empty where segtrain has not written it."""

    name: str
    size: int
    sha256: str = ""


@dataclass(frozen=True)
class Description:
    """All of an index but its rows."""

    split: str
    folder: str  # of the shards; "": that of the index
    shards: tuple[Shard, ...]
    kinds: tuple[str, ...]  # endings of members: "jpg", "mask.png", ...
    labels: LabelSpace | None = None  # None: a foreign set, the config says
    ids: str = "raw"  # what numbers the masks hold: "raw" or "train"
    options: dict[str, Any] = field(default_factory=dict)  # of the pack
    source: str = ""  # fingerprint of what was packed
    skipped: int = 0  # faulty samples that were left out

    def to_dict(self) -> dict[str, Any]:
        shards = [[s.name, s.size, s.sha256] for s in self.shards]
        return {**vars(self), "shards": shards, "labels": self.labels and self.labels.to_dict()}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Description:
        """Raises KeyError, TypeError, ValueError or DataError for what ``to_dict`` did not write."""
        shards = tuple(Shard(str(name), int(size), str(sha)) for name, size, sha in content["shards"])
        labels = LabelSpace.from_dict(content["labels"]) if content["labels"] else None
        plain = {key: str(content[key]) for key in ("split", "folder", "ids", "source")}
        return cls(
            shards=shards,
            kinds=tuple(map(str, content["kinds"])),
            labels=labels,
            options=dict(content["options"]),
            skipped=int(content["skipped"]),
            **plain,
        )


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """A mapped index. ``rows`` is ROW [n]; pickling it is pickling its path."""

    path: str
    what: Description
    rows: np.ndarray
    names: memoryview

    def __len__(self) -> int:
        return len(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.path,)

    def row(self, index: int) -> IndexRow:
        return IndexRow(*self.rows[index].item())

    def name(self, row: IndexRow) -> str:
        return bytes(self.names[row.name_at : row.name_at + row.name_size]).decode("utf-8", "surrogateescape")

    def shard(self, number: int) -> Shard:
        """Raises DataError for a number that no shard has."""
        if number >= len(self.what.shards):
            raise DataError(f"{self.path}: names shard {number} of {len(self.what.shards)}: {_cure(self.path)}")
        return self.what.shards[number]

    def kind(self, number: int) -> str:
        if number >= len(self.what.kinds):
            raise DataError(f"{self.path}: names kind {number} of {len(self.what.kinds)}: {_cure(self.path)}")
        return self.what.kinds[number]


@dataclass(frozen=True)
class ShardSpan:
    """One sample of a shard, as it is written into the index."""

    name: str
    shard: int
    image: tuple[str, int, int]  # ending, offset, size
    mask: tuple[str, int, int] | None
    size: tuple[int, int]  # height, width


def write(path: str, what: Description, places: Iterable[ShardSpan]) -> None:
    """Write an index whole or not at all; ``what.kinds`` is made of the places. Raises DataError."""
    rows, names, kinds = [], bytearray(), {kind: number for number, kind in enumerate(what.kinds)}
    for place in places:
        name = place.name.encode("utf-8", "surrogateescape")
        codes = [kinds.setdefault(part[0], len(kinds)) if part else NONE for part in (place.image, place.mask)]
        (_, image_at, image_size), (_, mask_at, mask_size) = place.image, place.mask or ("", 0, 0)
        if max(image_size, mask_size) >= 1 << 32 or len(name) >= 1 << 16 or len(kinds) >= NONE:
            raise DataError(
                f"{what.shards[place.shard].name}: {place.name[:99]}: over 4 GiB, or a name over 64 KiB: split it"
            )
        rows.append((image_at, mask_at, len(names), image_size, mask_size, place.shard, *place.size, len(name), *codes))
        names += name
    write_arrays(path, Description(**{**vars(what), "kinds": tuple(kinds)}), np.array(rows, ROW), bytes(names))


def write_arrays(path: str, what: Description, rows: np.ndarray, names: bytes) -> None:
    """The same from rows that are there already."""
    check = zlib.crc32(names, zlib.crc32(rows.tobytes()))
    content = {"version": VERSION, "samples": len(rows), "names": len(names), "crc32": check, **what.to_dict()}
    head = json.dumps(content).encode()
    head += b" " * (-(len(head) + _HEAD.size) % _ALIGN)
    with storage.writing(path) as stream:
        stream.write(_HEAD.pack(_MAGIC, len(head), zlib.crc32(head)) + head)
        stream.write(rows.tobytes())
        stream.write(names)


def load(path: str) -> ShardIndex:
    """Map an index. Raises DataError for one that is missing, of another version, cut off or damaged in its header."""
    content = storage.map(path)
    magic, length, crc = _HEAD.unpack(bytes(content[: _HEAD.size]).ljust(_HEAD.size))
    if magic != _MAGIC:
        raise DataError(f"{path}: no index of shards: {_cure(path)}")
    head = bytes(content[_HEAD.size : _HEAD.size + length])
    if len(head) != length or zlib.crc32(head) != crc:
        raise DataError(f"{path}: the index's header is damaged: {_cure(path)}")
    try:
        found = json.loads(head)
        if found["version"] != VERSION:
            raise DataError(f"{path}: an index of version {found['version']}, {VERSION} is read: {_cure(path)}")
        samples, names = int(found["samples"]), int(found["names"])
        what = Description.from_dict(found)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: the index's header is wrong ({type(error).__name__}: {error}): {_cure(path)}"
        ) from None
    start = _HEAD.size + length
    end = start + samples * ROW.itemsize
    if min(samples, names) < 0 or end + names != len(content):
        raise DataError(
            f"{path}: {len(content):,} bytes instead of {end + names:,}, the index is cut off: {_cure(path)}"
        )
    return ShardIndex(path, what, np.frombuffer(content[start:end], ROW), content[end:])


def intact(index: ShardIndex) -> bool:
    """Whether rows and names are those that were written; reads all of them (about 60 ms for a million samples)."""
    content = storage.map(index.path)
    length = _HEAD.unpack(bytes(content[: _HEAD.size]))[1]
    found = json.loads(bytes(content[_HEAD.size : _HEAD.size + length]))
    return zlib.crc32(index.names, zlib.crc32(index.rows.data)) == found.get("crc32")


def damage(index: ShardIndex) -> str:
    """The message for an index whose rows or names are not those that were written; "" where they are."""
    return "" if intact(index) else f"{index.path}: the rows of the index are damaged: {_cure(index.path)}"


def _cure(path: str) -> str:
    return f"delete {path} and pack again (a set of other tools' shards is indexed anew by itself)"


class ShardEntries(Sequence[Entry]):
    """The entries of a split, made when they are asked for; ``length`` of the index's rows, evenly spread."""

    def __init__(self, table: ShardIndex, folder: str, length: int) -> None:
        self.table, self.folder, self.length = table, folder, length

    def __len__(self) -> int:
        return self.length

    def row(self, index: int) -> IndexRow:
        """What the index says of an entry."""
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
