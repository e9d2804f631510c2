"""Writing of one shard: a tar that is read back from the disk and compared with the samples."""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from segtrain.data.checksum import checksum
from segtrain.data.dataset import Dataset
from segtrain.data.shards import tar
from segtrain.data.shards.index import Shard, ShardSpan
from segtrain.data.shards.pack_sample import Ids, Packed, Packing, pack_sample
from segtrain.data.shards.pack_target import DiskTarget
from segtrain.errors import file_error

if TYPE_CHECKING:
    from segtrain.data.shards.pack_bucket import BucketTarget

_RECORD = 20 * tar.BLOCK  # a tar's length is a multiple of this


@dataclass(frozen=True)
class ShardTask:
    """One shard to write: the samples ``indices`` of ``dataset``."""

    dataset: Dataset
    target: DiskTarget | BucketTarget
    number: int
    indices: Sequence[int]
    choice: Packing
    ids: Ids

    @property
    def name(self) -> str:
        return f"{self.dataset.split}-{self.number:06d}.tar"

    def run(self) -> dict[str, Any]:
        """Write the shard unless it exists intact. Returns a dict that describes the shard.

        ``size``, ``sha256``: of the file. ``places``: where each sample lies. ``kept``: whether the
        shard existed.
        """
        record = self.target.intact(self.number, self.name)
        if record is not None:
            return {**record, "kept": True}
        return {**self.target.written(self.number, self.name, self._write), "kept": False}

    def shard(self, record: dict[str, Any]) -> Shard:
        return Shard(self.name, record["size"], record["sha256"])

    def spans(self, record: dict[str, Any]) -> Iterator[ShardSpan]:
        for name, image, mask, size, checks in record["places"]:
            yield ShardSpan(
                name, self.number, tuple(image), tuple(mask), tuple(size), tuple(checks)
            )

    def _packed(self) -> Iterator[tuple[int, Packed]]:
        with self.dataset.reading_ahead(self.indices, 1):
            for index in self.indices:
                yield index, pack_sample(self.dataset, index, self.choice, self.ids)

    def _write(self, stream: BinaryIO) -> dict[str, Any]:
        """Write the samples as a tar, read it back, and compare. Returns the values of ``run``,
        except ``kept``.
        """
        digest, size, places = hashlib.sha256(), 0, []
        written: list[Packed] = []
        for index, packed in self._packed():
            sample = self.dataset.entries[index].meta["name"]
            parts = []
            for ending, content in (packed.image, packed.mask):
                head = tar.header(f"{key_of(sample)}.{ending}", len(content))
                parts.append((ending, size + len(head), len(content)))
                for part in (head, content, tar.padding(len(content))):
                    stream.write(part)
                    digest.update(part)
                    size += len(part)
            places.append(
                (sample, *parts, packed.size, (checksum(packed.image[1]), checksum(packed.mask[1])))
            )
            # Kept without its content, to save memory: the content is read back from the disk.
            written.append(
                replace(packed, image=(packed.image[0], b""), mask=(packed.mask[0], b""))
            )
        end = tar.END + bytes(-(size + len(tar.END)) % _RECORD)
        stream.write(end)
        digest.update(end)
        stream.flush()
        os.fsync(stream.fileno())
        if hasattr(os, "posix_fadvise"):  # drop the page cache, so that the disk itself is read
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        stored = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        _compare(stored, digest.hexdigest(), places, written, self.name)
        return {"size": size + len(end), "sha256": digest.hexdigest(), "places": places}


def _compare(
    stored: memoryview, sha256: str, places: list[Any], written: list[Packed], name: str
) -> None:
    """Raise DataError if the disk returns other bytes than were written, or a sample has other
    pixels.
    """
    if hashlib.sha256(stored).hexdigest() != sha256:
        reason = "the disk returns other bytes than were written: check it, and pack again"
        raise file_error(name, reason, code="disk-changes-bytes")
    wanted = [
        (f"{key_of(place[0])}.{part[0]}", part[1], part[2])
        for place in places
        for part in place[1:3]
    ]
    members = list(tar.members(lambda at, size: stored[at : at + size], len(stored), name))
    if members != wanted:
        different = next(
            (pair for pair in itertools.zip_longest(members, wanted) if pair[0] != pair[1]), None
        )
        reason = f"the tar has other members than were written ({different}): report this"
        raise file_error(name, reason, code="packed-members-differ", found=different)
    for (sample, image, mask, *_), packed in zip(places, written):
        parts = [stored[offset : offset + size] for _, offset, size in (image, mask)]
        packed.refuse_change(parts[0], parts[1], f"{name}: {sample}")


def member_bytes(packed: Packed) -> int:
    """Bytes that a sample takes in a tar, including headers and padding."""
    return sum(
        tar.BLOCK + len(content) + -len(content) % tar.BLOCK
        for _, content in (packed.image, packed.mask)
    )


def key_of(name: str) -> str:
    """Name of a sample in a tar: relative and without dots, since the ending begins at the first
    dot.
    """
    parts = [
        part.replace("%", "%25").replace(".", "%2E")
        for part in name.split("/")
        if part not in ("", ".", "..")
    ]
    return "/".join(parts)
