"""Lists in a run folder of the samples that it trains on and scores: name, sizes in bytes, checksum of the mask."""

from __future__ import annotations

import gzip
import io
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from segtrain.data.datasets import Dataset
from segtrain.data.index.entries import Entries
from segtrain.data.index.stamps import relative
from segtrain.errors import CheckpointError
from segtrain.files import write_atomically

FOLDER = "data"  # in the run folder
BLOCK = 4096  # samples that are looked at together
DAMAGED = (OSError, EOFError, ValueError, zlib.error)  # of a list that is missing or no list
SURE = 3  # times as many samples as chance makes
_ONE_LINE = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})

SampleRow = tuple[str, int, int, int]


def place_of(run_dir: Path, role: str) -> Path:
    return run_dir / FOLDER / f"{role}.tsv.gz"


def names_of(dataset: Dataset, begin: int) -> list[str]:
    """Names of up to BLOCK samples from ``begin`` on; an index of shards keeps them."""
    after = min(begin + BLOCK, len(dataset))
    entries = dataset.entries
    if isinstance(entries, Entries) and "name" in entries.meta:
        names = [name or "" for name in entries.meta["name"].part(begin, after)]
    else:
        some = (entries[place] for place in range(begin, after))
        names = [
            entry.meta.get("name", entry.image) if dataset.root else entry.image for entry in some
        ]  # drawn: no root
    return [relative(name, dataset.root) if name.startswith("/") else name for name in names]


def rows_of(dataset: Dataset, sizes: np.ndarray, mask_crc: np.ndarray) -> Iterator[list[SampleRow]]:
    """Name, bytes of image and mask, checksum of the labels (0: unknown) of some samples after the others.

    ``sizes``: int64 (n, 2), -1 unknown; ``mask_crc``: uint32 (n,) or none.
    """
    crc = mask_crc if len(mask_crc) else np.zeros(len(dataset), np.uint32)
    for begin in range(0, len(dataset), BLOCK):
        part = slice(begin, begin + BLOCK)
        names = (name.translate(_ONE_LINE) for name in names_of(dataset, begin))
        yield list(zip(names, *sizes[part].T.tolist(), crc[part].tolist()))


def write_list(place: Path, blocks: Iterable[list[SampleRow]]) -> None:
    """Raises CheckpointError."""
    try:
        place.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot make the folder {place.parent}: {error.strerror}: choose another out=FOLDER",
            code="folder-not-made", file=str(place.parent),
        ) from None  # fmt: skip
    text = io.BytesIO()
    with gzip.GzipFile(fileobj=text, mode="wb", compresslevel=1, mtime=0) as stream:
        stream.write(b"name\timage_bytes\tmask_bytes\tmask_crc\n")
        for rows in blocks:
            lines = "".join([f"{name}\t{image}\t{mask}\t{crc}\n" for name, image, mask, crc in rows])
            stream.write(lines.encode(errors="surrogateescape"))
    write_atomically(place, text.getvalue())


def read_list(place: Path) -> Iterator[SampleRow]:
    """What ``write_list`` wrote. Raises one of DAMAGED."""
    with gzip.open(place, "rt", encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        if not stream.readline():
            raise EOFError
        for line in stream:
            name, *numbers = line.rstrip("\n").rsplit("\t", 3)
            image, mask, crc = map(int, numbers)
            yield name, image, mask, crc


def trained_on(run_dir: Path, dataset: Dataset, same_split: bool) -> int:
    """Count the samples of ``dataset`` that the run was trained on, by names and file sizes; 0 where unknown.

    ``same_split``: ``dataset`` has the name of the split that was trained on; then it is enough that all samples of one
    name have the same sizes. In another split names may be those of other images: there must be more such samples than
    chance makes. Samples whose sizes the run has not looked at do not count. Raises DataError for a file that is gone.
    """
    mine = {row[0]: row[1:3] for rows in rows_of(dataset, dataset.stamps()[:, :, 0], np.zeros(0)) for row in rows}
    sizes: Counter[int] = Counter()
    named = found = 0
    try:
        for name, image, mask, _ in read_list(place_of(run_dir, "train")):
            sizes[image] += 1
            named += name in mine
            found += mine.get(name) == (image, mask)
    except DAMAGED:
        return 0
    if not dataset.root or (same_split and found == named):  # what is drawn has no files, and names that say all
        return found
    by_chance = named * sum(count * count for count in sizes.values()) / max(1, sizes.total()) ** 2
    return found if found > SURE * (1 + by_chance) else 0
