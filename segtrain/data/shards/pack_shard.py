"""Writing of one shard: a tar that is read back from the disk and compared with the samples."""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, BinaryIO

from segtrain.data.datasets import Dataset
from segtrain.data.shards import tar
from segtrain.data.shards.pack_sample import Ids, Packed, Packing, pack_sample
from segtrain.errors import DataError

_RECORD = 20 * tar.BLOCK  # a tar's length is a multiple of this


def write_shard(
    stream: BinaryIO, dataset: Dataset, indices: Sequence[int], choice: Packing, ids: Ids, name: str
) -> dict[str, Any]:
    """Write samples as a tar, read it back, and compare. Returns its size, SHA-256, sample locations, and notes."""
    digest, at, places, notes = hashlib.sha256(), 0, [], Counter[str]()
    meant: list[tuple[str, Packed]] = []

    def put(content: bytes) -> None:
        nonlocal at
        stream.write(content)
        digest.update(content)
        at += len(content)

    for index in indices:
        packed, sample = pack_sample(dataset, index, choice, ids), str(dataset.entries[index].meta["name"])
        found = []
        for ending, content in (packed.image, packed.mask):
            put(tar.header(f"{key_of(sample)}.{ending}", len(content)))
            found.append((ending, at, len(content)))
            put(content)
            put(tar.padding(len(content)))
        places.append((sample, *found, packed.size))
        notes.update([packed.note] if packed.note else [])
        meant.append((sample, Packed((found[0][0], b""), (found[1][0], b""), packed.size, packed.pixels, packed.ids)))
    put(tar.END + bytes(-(at + len(tar.END)) % _RECORD))
    stream.flush()
    os.fsync(stream.fileno())
    if hasattr(os, "posix_fadvise"):  # read what is on the disk, not what memory still holds of it
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    written = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    _compare(written, digest.hexdigest(), places, meant, name)
    return {"size": at, "sha256": digest.hexdigest(), "places": places, "notes": dict(notes)}


def _compare(written: memoryview, sha256: str, places: list[Any], meant: list[tuple[str, Packed]], name: str) -> None:
    """Raise DataError if the disk returns other bytes than were written, or a sample has other pixels."""
    if hashlib.sha256(written).hexdigest() != sha256:
        raise DataError(
            f"{name}: the disk returns other bytes than were written: check it, and pack again",
            code="disk-changes-bytes", file=name,
        )  # fmt: skip
    wanted = [(f"{key_of(place[0])}.{part[0]}", part[1], part[2]) for place in places for part in place[1:3]]
    found = [
        (member.name, member.offset, member.size)
        for member in tar.members(lambda at, size: written[at : at + size], len(written), name)
    ]
    if found != wanted:
        odd = next((pair for pair in itertools.zip_longest(found, wanted) if pair[0] != pair[1]), None)
        raise DataError(
            f"{name}: the tar has other members than were written ({odd}): report this",
            code="packed-members-differ", file=name, found=odd,
        )  # fmt: skip
    for (_, image, mask, _), (sample, packed) in zip(places, meant):
        parts = [written[offset : offset + size] for _, offset, size in (image, mask)]
        packed.refuse_change(parts[0], parts[1], f"{name}: {sample}")


def member_bytes(packed: Packed) -> int:
    """Bytes of a sample in a tar."""
    return sum(tar.BLOCK + len(content) + -len(content) % tar.BLOCK for _, content in (packed.image, packed.mask))


def key_of(name: str) -> str:
    """Name of a sample in a tar: relative and without dots, since the ending begins at the first dot."""
    parts = [part.replace("%", "%25").replace(".", "%2E") for part in name.split("/") if part not in ("", ".", "..")]
    return "/".join(parts)
