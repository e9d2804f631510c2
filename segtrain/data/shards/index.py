"""Index of a split in shards: one memory-mapped file, so that a million samples cost each process
little memory.

    magic (24 bytes), length and CRC-32 of the header (2 x uint32), header (JSON),
    rows (ROW, one per sample), names

The header holds the split, the label space, the options of `segtrain data pack`, and the name,
size, and SHA-256 of each shard. It may also hold checksums of each sample, in base64. They are
checked when shards are read from a bucket; earlier versions of segtrain ignore them.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from segtrain.data import checksum
from segtrain.data.index.entries import Entry
from segtrain.data.labels.space import LabelSpace
from segtrain.data.storage import LOCAL, Store, writing
from segtrain.errors import DataError, file_error

ENDING = ".index"
VERSION = 1
_MAGIC = b"segtrain shards\n".ljust(24, b"\0")
_HEAD = struct.Struct("<24sII")
_ALIGN = 64
NONE = 255  # ``mask_kind`` of a sample without a mask


# One sample. ``image_at`` and ``mask_at`` are byte offsets in the shard. ``name_at`` is a byte
# offset in the names at the end of the index. ``*_size`` is in bytes, height and width are in
# pixels. ``shard`` and ``*_kind`` are indices into the lists of the header.
ROW = np.dtype(
    [(name, "<u8") for name in ("image_at", "mask_at", "name_at")]
    + [(name, "<u4") for name in ("image_size", "mask_size", "shard", "height", "width")]
    + [("name_size", "<u2"), ("image_kind", "u1"), ("mask_kind", "u1")]
)


class Shard(NamedTuple):
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
    # None: shards of another tool; the config describes the classes
    labels: LabelSpace | None = None
    ids: str = "raw"  # the masks hold "raw" or "train" ids
    options: dict[str, Any] = field(default_factory=dict)  # with which the split was packed
    source: str = ""  # fingerprint of the packed data set
    skipped: int = 0  # faulty samples that were left out

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "labels": self.labels and self.labels.to_dict()}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Description:
        """Read what ``to_dict`` wrote. Raises KeyError, TypeError, ValueError, or DataError for any
        other dict.
        """
        values: dict[str, Any] = {
            key: str(content[key]) for key in ("split", "folder", "ids", "source")
        }
        values["shards"] = tuple(
            Shard(str(name), int(size), str(sha)) for name, size, sha in content["shards"]
        )
        values["kinds"] = tuple(map(str, content["kinds"]))
        values["labels"] = LabelSpace.from_dict(content["labels"]) if content["labels"] else None
        return cls(options=dict(content["options"]), skipped=int(content["skipped"]), **values)


@dataclass(frozen=True)
class ShardSpan:
    """Location of one sample: the number of its shard, and the ending, offset, and size in bytes of
    its two files.

    ``checks``: the checksums of image and mask; None if they are not known.
    """

    name: str
    shard: int
    image: tuple[str, int, int]
    mask: tuple[str, int, int] | None
    size: tuple[int, int]  # height, width
    checks: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """A memory-mapped index. ``rows`` is an array of ROW [n]. A pickle holds only the path and the
    store.

    ``checks``: uint32 (n, 2), checksums of images and masks in a bucket; None on a local disk, or
    if there are none.
    """

    path: str
    description: Description
    rows: np.ndarray
    names: memoryview
    crc32: int  # of rows and names when they were written
    store: Store
    checks: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.path, self.store)

    def span(self, index: int) -> ShardSpan:
        """The location of a sample. Raises DataError for a row that names an unknown shard or
        kind.
        """
        (
            image_at,
            mask_at,
            name_at,
            image_size,
            mask_size,
            shard,
            height,
            width,
            length,
            image_kind,
            mask_kind,
        ) = self.rows[index].item()
        shards, kinds = self.description.shards, self.description.kinds
        if shard >= len(shards) or image_kind >= len(kinds) or len(kinds) <= mask_kind < NONE:
            raise _bad(
                self.path,
                f"row {index}: shard {shard} of {len(shards)}, kinds {image_kind} and "
                f"{mask_kind} of {len(kinds)}",
                "index-row-wrong",
            )
        name = bytes(self.names[name_at : name_at + length]).decode("utf-8", "surrogateescape")
        mask = None if mask_kind == NONE else (kinds[mask_kind], mask_at, mask_size)
        image, checks = (kinds[image_kind], image_at, image_size), None
        if self.checks is not None:
            checks = int(self.checks[index, 0]), int(self.checks[index, 1])
        return ShardSpan(name, shard, image, mask, (height, width), checks)


def write(path: str, description: Description, spans: Iterable[ShardSpan]) -> None:
    """Write an index atomically, with the kinds of ``description`` and those found in ``spans``.
    Raises DataError.
    """
    rows, names, kinds = (
        [],
        bytearray(),
        {kind: number for number, kind in enumerate(description.kinds)},
    )
    checks: list[tuple[int, int]] = []
    for span in spans:
        name = span.name.encode("utf-8", "surrogateescape")
        codes = [
            kinds.setdefault(part[0], len(kinds)) if part else NONE
            for part in (span.image, span.mask)
        ]
        (_, image_at, image_size), (_, mask_at, mask_size) = span.image, span.mask or ("", 0, 0)
        if max(image_size, mask_size) >= 1 << 32 or len(name) >= 1 << 16 or len(kinds) >= NONE:
            reason = f"{span.name[:99]}: a file over 4 GiB, or a name over 64 KiB: split it"
            shard = description.shards[span.shard].name
            raise file_error(shard, reason, code="sample-too-large", sample=span.name)
        rows.append(
            (
                image_at,
                mask_at,
                len(names),
                image_size,
                mask_size,
                span.shard,
                *span.size,
                len(name),
                *codes,
            )
        )
        names += name
        checks += [span.checks] if span.checks else []
    checksums = np.array(checks, "<u4") if len(checks) == len(rows) else None
    write_arrays(
        path, replace(description, kinds=tuple(kinds)), np.array(rows, ROW), bytes(names), checksums
    )


def write_arrays(
    path: str,
    description: Description,
    rows: np.ndarray,
    names: bytes,
    checks: np.ndarray | None = None,
) -> None:
    """Write an index from ready rows. ``checks``: see ShardIndex. Raises DataError."""
    check = zlib.crc32(names, zlib.crc32(rows.tobytes()))
    content = {
        "version": VERSION,
        "samples": len(rows),
        "names": len(names),
        "crc32": check,
        **description.to_dict(),
    }
    if checks is not None:
        content["checks"] = {
            "kind": checksum.NAME,
            "base64": base64.b64encode(checks.tobytes()).decode(),
        }
    head = json.dumps(content).encode()
    head += b" " * (-(len(head) + _HEAD.size) % _ALIGN)
    with writing(path) as stream:
        stream.write(_HEAD.pack(_MAGIC, len(head), zlib.crc32(head)) + head)
        stream.write(rows.tobytes())
        stream.write(names)


def load(path: str, store: Store = LOCAL) -> ShardIndex:
    """Open an index as a memory map. Raises DataError if it is missing, cut off, damaged, or of
    another version.
    """
    content = store.mapped(path)
    magic, length, crc = _HEAD.unpack(bytes(content[: _HEAD.size]).ljust(_HEAD.size))
    if magic != _MAGIC:
        raise _bad(path, "is not an index of shards", "index-unknown-format")
    head = bytes(content[_HEAD.size : _HEAD.size + length])
    if len(head) != length or zlib.crc32(head) != crc:
        raise _bad(path, "the header of the index is damaged", "index-damaged")
    try:
        fields = json.loads(head)
        if fields["version"] != VERSION:
            raise _bad(
                path, f"the index has version {fields['version']}, not {VERSION}", "index-version"
            )
        samples, names = int(fields["samples"]), int(fields["names"])
        description = Description.from_dict(fields)
        checks = _checks(fields, samples) if not store.local else None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = f"the header of the index is wrong ({type(error).__name__}: {error})"
        raise _bad(path, reason, "index-damaged") from None
    start = _HEAD.size + length
    end = start + samples * ROW.itemsize
    if min(samples, names) < 0 or end + names != len(content):
        reason = f"the index is cut off: it has {len(content):,} bytes instead of {end + names:,}"
        raise _bad(path, reason, "index-cut-off")
    rows = np.frombuffer(content[start:end], ROW)
    return ShardIndex(path, description, rows, content[end:], fields.get("crc32"), store, checks)


def _checks(fields: dict[str, Any], samples: int) -> np.ndarray | None:
    """The checksums in a header: uint32 (n, 2); None if it has none, or has a kind that this
    version cannot compute.
    """
    stored = fields.get("checks") or {}
    if stored.get("kind") != checksum.NAME:
        return None
    return np.frombuffer(base64.b64decode(stored["base64"]), "<u4").reshape(samples, 2)


def damage(index: ShardIndex) -> DataError | None:
    """The error if rows or names have changed since they were written, else None. 60 ms for a
    million samples.
    """
    if zlib.crc32(index.names, zlib.crc32(index.rows.data)) == index.crc32:
        return None
    return _bad(index.path, "the rows of the index are damaged", "index-damaged")


def _bad(path: str, reason: str, code: str) -> DataError:
    fix = f"delete {path} and pack again (shards of other tools are indexed again automatically)"
    return file_error(path, f"{reason}: {fix}", code=code)


class ShardEntries(Sequence[Entry]):
    """Entries of a split, made on demand for ``length`` evenly spaced rows of the index."""

    def __init__(self, table: ShardIndex, folder: str, length: int) -> None:
        self.table, self.folder, self.length = table, folder, length

    def __len__(self) -> int:
        return self.length

    def span(self, index: int) -> ShardSpan:
        """The location of an entry."""
        return self.table.span(range(self.length)[index] * len(self.table) // self.length)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(self.length)[index]]
        return self.entry(self.span(index))

    def entry(self, span: ShardSpan) -> Entry:
        """The entry of a sample. Its file names are for messages: "FOLDER/train-000000.tar:
        KEY.jpg".
        """
        begin = f"{self.folder}/{self.table.description.shards[span.shard].name}: {span.name}."
        return Entry(
            begin + span.image[0], begin + span.mask[0] if span.mask else None, {"name": span.name}
        )
