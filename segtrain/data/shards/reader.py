"""Data set in tar shards, with the same interface and the same pixels as a data set of single
files.

A shard holds ``KEY.jpg`` (or png, npy, ...) beside ``KEY.mask.png`` (or npy), as WebDataset
expects. An index locates each sample. On a local disk, the samples are views into memory-mapped
files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

import numpy as np

from segtrain.data.bucket.merging import GAP
from segtrain.data.dataset import Dataset
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import StoredSample
from segtrain.data.shards import index as shard_index
from segtrain.data.shards.index import ShardEntries, ShardIndex, ShardSpan
from segtrain.data.stages import took
from segtrain.data.storage import LOCAL, Check, Range, Store
from segtrain.errors import DataError, file_error

if TYPE_CHECKING:
    Stored = Union[memoryview, np.ndarray]

# Ways of packing an image that change none of its pixels.
_LOSSLESS = ("keep", "restart", "png", "raw")
# The header of a .npy file of integers in C order.
_ARRAY = re.compile(
    rb"\{'descr': *'([<>|=]?[uib]\d+)', *'fortran_order': *False, *'shape': *\(([\d, ]*)\),? *\}\s*"
)


@dataclass(frozen=True)
class ShardDataset(Dataset):
    """A split in shards. ``entries`` holds the index."""

    entries: ShardEntries

    @property
    def table(self) -> ShardIndex:
        return self.entries.table

    def _rows(self) -> np.ndarray:
        """The index rows of all entries: the index's own array, or a copy of some rows if
        data.limit is set.
        """
        rows = self.table.rows
        return (
            rows if len(rows) == len(self) else rows[np.arange(len(self)) * len(rows) // len(self)]
        )

    @property
    def sizes_known(self) -> bool:
        return True

    @property
    def packed_from(self) -> str | None:
        packed = self.table.description
        same_pixels = packed.options.get("image") in _LOSSLESS and not packed.options.get("cap")
        complete = not packed.skipped and len(self) == len(self.table)
        return packed.source.partition("-")[0] if same_pixels and complete else ""

    def folders(self) -> set[str]:
        return {
            self.root,
            *(
                os.path.dirname(f"{self.root}/{shard.name}")
                for shard in self.table.description.shards
            ),
        }

    def _stored(self, span: ShardSpan, part: tuple[str, int, int], name: str) -> Stored:
        """The bytes of a tar member, or the array of a .npy member; on a local disk, without a
        copy.
        """
        try:
            content = self.store.part(self._range(span, part))
        except DataError as error:
            if error.code != "sample-checksum":
                raise
            message = f"sample {span.name}: {error}"
            raise DataError(
                message, code="sample-checksum", **error.values, sample=span.name
            ) from None
        return array(content, name) if part[0].endswith("npy") else content

    def _range(self, span: ShardSpan, part: tuple[str, int, int]) -> Range:
        checks = (Check(0, part[2], span.checks[part is span.mask]),) if span.checks else ()
        return Range(
            self._shard(span), *part[1:], checks, self._sample(span) if self.store.keeps else None
        )

    def _sample(self, span: ShardSpan) -> Range | None:
        """Image and mask in one range, as a read-ahead would request them; None if they are far
        apart.
        """
        if span.mask is None:
            return None
        parts = span.image[1:], span.mask[1:]
        begin, end = min(at for at, _ in parts), max(at + size for at, size in parts)
        if end - begin - sum(size for _, size in parts) > GAP:
            return None
        checks = (
            Check(at - begin, size, check) for (at, size), check in zip(parts, span.checks or ())
        )
        return Range(self._shard(span), begin, end - begin, tuple(checks))

    def _shard(self, span: ShardSpan) -> str:
        return f"{self.root}/{self.table.description.shards[span.shard].name}"

    def ranges(self, index: int) -> list[Range]:
        span = self.entries.span(index)
        return [self._range(span, part) for part in (span.image, span.mask) if part]

    def _image(self, span: ShardSpan, name: str) -> Stored:
        stored = self._stored(span, span.image, name)
        if isinstance(stored, np.ndarray) and (
            stored.dtype != np.uint8 or stored.ndim != 3 or stored.shape[2] != 3
        ):
            reason = f"an array {stored.dtype} {stored.shape}: save images as uint8 (H, W, 3), RGB"
            raise file_error(
                name, reason, code="array-not-rgb", found=(str(stored.dtype), stored.shape)
            )
        return stored

    def record(self, index: int) -> StoredSample:
        """Views into the shard, not decoded. Only a mask array other than uint8 (H, W) is mapped to
        train ids.
        """
        span = self.entries.span(index)
        entry = self.entries.entry(span)
        image, name = self.ready(self._image(span, entry.image), entry.image), entry.mask or ""
        if span.mask is None:
            took(span.image[2])
            return StoredSample(image, None, entry.image, "", "raw")
        mask = self._stored(span, span.mask, name)
        # Image and mask lie side by side, so they count as one read.
        took(span.image[2] + span.mask[2])
        if isinstance(mask, np.ndarray) and (mask.dtype != np.uint8 or mask.ndim != 2):
            return StoredSample(image, self.labels.remap(mask, name), entry.image, name, "train")
        return StoredSample(image, mask, entry.image, name, "raw")

    def stored_image(self, index: int) -> Stored:
        """The bytes of an image file, or the stored array."""
        span = self.entries.span(index)
        image = self._image(span, self.entries[index].image)
        took(span.image[2])
        return image

    def stored_mask(self, index: int) -> Stored:
        """The bytes of a mask file, or the stored array."""
        span, name = self.entries.span(index), self.mask_path(index)
        assert span.mask is not None
        took(span.mask[2])
        return self._stored(span, span.mask, name)

    def image_bytes(self, index: int, begin: int, size: int) -> bytes:
        """Up to ``size`` stored bytes of an image, starting at ``begin``."""
        span = self.entries.span(index)
        _, offset, whole = span.image
        return bytes(
            self.store.view(self._shard(span), offset + begin, max(0, min(size, whole - begin)))
        )

    def size(self, index: int) -> tuple[int, int]:
        """Height and width of the image, from the index."""
        size = self.entries.span(index).size
        if all(size):
            return size
        # The size was unreadable when the shards were indexed: reading the header again raises the
        # error.
        header = self.header(index)
        return header.height, header.width

    def header(self, index: int) -> decode.Header:
        """The image's header, after a check that the file is complete. Raises DataError if it is
        cut off.
        """
        name = self.entries[index].image
        image = self._image(self.entries.span(index), name)
        return (
            decode.Header("npy", *image.shape)
            if isinstance(image, np.ndarray)
            else decode.check_whole(image, name)
        )

    def stamps(self, indices: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """As ``Dataset.stamps``; the etag of a sample is that of its shard."""
        rows, stamps = self._rows(), np.zeros((len(self), 2, 2), np.int64)
        etags = [
            self.store.stat(f"{self.root}/{shard.name}").etag
            for shard in self.table.description.shards
        ]
        stamps[:, 0, 0], stamps[:, 1, 0] = rows["image_size"], rows["mask_size"]
        stamps[:, :, 1] = np.array(etags, np.int64)[rows["shard"]][:, None]
        return stamps if indices is None else stamps[np.asarray(indices, np.int64)]

    def fingerprint(self, stamped: np.ndarray | None = None) -> str:
        """Hash of names, sizes in bytes, label space, and checksums of shards that segtrain wrote:
        12 hex digits.
        """
        digest = hashlib.sha256(self.labels.identity())
        digest.update(
            json.dumps(
                [[s.name, s.sha256] for s in self.table.description.shards if s.sha256]
            ).encode()
        )
        rows, whole = self._rows(), len(self) == len(self.table)
        part = "" if whole else "".join(entry.meta["name"] for entry in self.entries)
        digest.update(self.table.names if whole else part.encode(errors="surrogateescape"))
        for column in ("name_size", "image_size", "mask_size"):
            digest.update(np.ascontiguousarray(rows[column]).data)
        return digest.hexdigest()[:12]

    def verify(self) -> tuple[tuple[str, str], ...]:
        """(file, message) for the index and each shard that has changed since it was written. Reads
        all bytes.

        Samples in a bucket that have checksums were verified when they were read, so nothing is
        read again.
        """
        if self.table.checks is not None:
            return ()
        damage = shard_index.damage(self.table)
        faults = [(self.table.path, str(damage))] if damage else []
        with ThreadPoolExecutor(4) as pool:
            faults += [
                fault for fault in pool.map(self._damage, self.table.description.shards) if fault
            ]
        return tuple(faults)

    def _damage(self, shard: shard_index.Shard) -> tuple[str, str] | None:
        path = f"{self.root}/{shard.name}"
        if not shard.sha256 or sha256_of(path, self.store) == shard.sha256:
            return None
        return (
            path,
            (
                f"{path}: the checksum differs from that in the index: fetch the shard or pack "
                "it again"
            ),
        )


def sha256_of(path: str, store: Store = LOCAL) -> str:
    """SHA-256 of a file's bytes, as ``sha256sum`` prints it. Raises DataError."""
    digest, size = hashlib.sha256(), store.stat(path).size
    for at in range(0, size, 1 << 24):
        digest.update(store.read(path, at, min(1 << 24, size - at)))
    return digest.hexdigest()


@functools.lru_cache(256)
def _array_header(header: bytes) -> tuple[np.dtype, tuple[int, ...]] | None:
    """Type and shape from a .npy header; None if ``_ARRAY`` does not match it."""
    if match := _ARRAY.fullmatch(header):
        with contextlib.suppress(TypeError, ValueError):
            return np.dtype(match[1].decode()), tuple(
                int(part) for part in match[2].split(b",") if part.strip()
            )
    return None


def array(content: memoryview, name: str) -> np.ndarray:
    """The array in the bytes of a .npy file, as a view. Raises DataError if it is damaged or not of
    integers.
    """
    start = bytes(content[:12])
    # size in bytes of the field that holds the header's length
    wide = 4 if start[6:7] >= b"\2" else 2
    begin = 8 + wide + int.from_bytes(start[8 : 8 + wide], "little")
    header = (
        _array_header(bytes(content[8 + wide : begin]))
        if start[:6] == b"\x93NUMPY" and begin < 4096
        else None
    )
    if header is None:
        reason = "is not a .npy file of integers in C order: write it with numpy.save"
        raise file_error(name, reason, code="npy-unreadable")
    dtype, shape = header
    items = math.prod(shape)
    expected = begin + items * dtype.itemsize
    if expected != len(content) or not items or items > 4 * decode.MAX_PIXELS:
        reason = f"{dtype} {shape} does not fit {len(content):,} bytes: write the file again"
        raise file_error(
            name, reason, code="npy-size-differs", found=len(content), expected=expected
        )
    return np.frombuffer(content, dtype, items, begin).reshape(shape)
