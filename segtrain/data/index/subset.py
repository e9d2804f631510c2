"""Views of a data set with some of its samples, which are renumbered; nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from segtrain.data.datasets import Dataset
from segtrain.data.index.entries import Entry
from segtrain.data.index.stamps import stamps
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import StoredSample
from segtrain.errors import DataError


@dataclass(frozen=True, eq=False)
class _SubsetView(Sequence[Entry]):
    """Entries at the indices ``keep``."""

    entries: Sequence[Entry]
    keep: np.ndarray

    def __len__(self) -> int:
        return len(self.keep)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _SubsetView(self.entries, self.keep[index])
        return self.entries[int(self.keep[index])]


@dataclass(frozen=True, eq=False)
class Subset(Dataset):
    """Samples ``keep`` (int64, ascending) of ``base``, made by ``without`` and ``select``. ``base`` reads the files."""

    base: Dataset = field(kw_only=True)
    keep: np.ndarray = field(kw_only=True)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.base.read(int(self.keep[index]))

    def record(self, index: int) -> StoredSample:
        return self.base.record(int(self.keep[index]))

    def stored_image(self, index: int) -> Any:
        return self.base.stored_image(int(self.keep[index]))

    def read_image(self, index: int) -> np.ndarray:
        return self.base.read_image(int(self.keep[index]))

    def read_mask(self, index: int) -> np.ndarray:
        return self.base.read_mask(int(self.keep[index]))

    def read_raw_mask(self, index: int) -> np.ndarray:
        return self.base.read_raw_mask(int(self.keep[index]))

    def palette(self, index: int) -> dict[int, int]:
        return self.base.palette(int(self.keep[index]))

    def image_bytes(self, index: int, begin: int, size: int) -> bytes:
        return self.base.image_bytes(int(self.keep[index]), begin, size)

    def size(self, index: int) -> tuple[int, int]:
        return self.base.size(int(self.keep[index]))

    def header(self, index: int) -> decode.Header:
        return self.base.header(int(self.keep[index]))

    def stamps(self) -> np.ndarray:
        try:
            return self.base.stamps()[self.keep]
        except DataError:  # a file is missing, maybe one that is left out
            return stamps(self.entries)


def select(dataset: Dataset, keep: np.ndarray, split: str, notes: tuple[str, ...]) -> Dataset:
    """Only the samples at ``keep`` (int64, ascending), as a split with another name."""
    return Subset(
        dataset.name, split, dataset.labels, _SubsetView(dataset.entries, keep), dataset.root,
        drawn_size=dataset.drawn_size, notes=notes, reading=dataset.reading, base=dataset, keep=keep,
    )  # fmt: skip


def whole(dataset: Dataset) -> Dataset:
    """The data set under all views."""
    while isinstance(dataset, Subset):
        dataset = dataset.base
    return dataset


def without(dataset: Dataset, skipped: Iterable[int]) -> Dataset:
    """``dataset`` without the samples at ``skipped``; ``dataset`` itself if there are none.

    Sample ``i`` is the i-th remaining one, so order and augmentation are functions of the remaining samples. The
    fingerprint is that of a folder without the skipped files. Raises DataError if nothing remains.
    """
    keep = np.setdiff1d(np.arange(len(dataset), dtype=np.int64), np.fromiter(skipped, np.int64))
    if len(keep) == len(dataset):
        return dataset
    if not len(keep):
        raise DataError(
            f"{dataset.name} {dataset.split}: all {len(dataset):,} samples are faulty: check data.root",
            code="all-samples-faulty",
            split=dataset.split,
            count=len(dataset),
        )
    return Subset(
        dataset.name, dataset.split, dataset.labels, _SubsetView(dataset.entries, keep), dataset.root,
        drawn_size=dataset.drawn_size, notes=dataset.notes, reading=dataset.reading, base=dataset, keep=keep,
    )  # fmt: skip
