"""Views of a data set with some of its samples, which are renumbered; nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from segtrain.bucket.faults import RequestError
from segtrain.data.datasets import Dataset
from segtrain.data.index.entries import Entry, LazyEntries
from segtrain.data.index.stamps import stamps
from segtrain.errors import DataError


def _of_base(method: str) -> Any:
    """A method that calls the same method of ``base``, with the index that the sample has there."""

    def read(self: Subset, index: int, *more: Any) -> Any:
        return getattr(self.base, method)(int(self.keep[index]), *more)

    return read


@dataclass(frozen=True, eq=False)
class Subset(Dataset):
    """A view of the samples of ``base`` at the indices ``keep`` (int64, ascending). ``base`` reads the files.

    ``without`` and ``select`` make such views.
    """

    base: Dataset = field(kw_only=True)
    keep: np.ndarray = field(kw_only=True)

    read = _of_base("read")
    record = _of_base("record")
    ranges = _of_base("ranges")
    stored_image = _of_base("stored_image")
    stored_mask = _of_base("stored_mask")
    read_mask = _of_base("read_mask")
    image_bytes = _of_base("image_bytes")
    size = _of_base("size")
    header = _of_base("header")

    def stamps(self) -> np.ndarray:
        try:
            return self.base.stamps()[self.keep]
        except RequestError:
            raise
        except DataError:  # a file is missing, maybe one that is left out
            return stamps(self.entries, self.store)


def _entry_of(entries: Sequence[Entry], keep: np.ndarray, index: int) -> Entry:
    return entries[int(keep[index])]


def select(dataset: Dataset, keep: np.ndarray, split: str, notes: tuple[str, ...]) -> Dataset:
    """A view of the samples at the indices ``keep`` (int64, ascending), as a split named ``split`` with ``notes``."""
    entries = LazyEntries(len(keep), partial(_entry_of, dataset.entries, keep))
    return Subset(
        dataset.name, split, dataset.labels, entries, dataset.root,
        drawn_size=dataset.drawn_size, notes=notes, reading=dataset.reading, store=dataset.store, base=dataset,
        keep=keep,
    )  # fmt: skip


def whole(dataset: Dataset) -> Dataset:
    """The data set below any number of views."""
    while isinstance(dataset, Subset):
        dataset = dataset.base
    return dataset


def without(dataset: Dataset, skipped: Iterable[int]) -> Dataset:
    """``dataset`` without the samples at ``skipped``; ``dataset`` itself if there are none.

    Sample ``i`` is the i-th remaining sample, so order and augmentation depend only on the remaining samples. The
    fingerprint equals that of a folder without the skipped files. Raises DataError if nothing remains.
    """
    keep = np.setdiff1d(np.arange(len(dataset), dtype=np.int64), np.fromiter(skipped, np.int64))
    if len(keep) == len(dataset):
        return dataset
    if not len(keep):
        says = f"{dataset.name} {dataset.split}: all {len(dataset):,} samples are faulty: check data.root"
        raise DataError(says, code="all-samples-faulty", split=dataset.split, count=len(dataset))
    return select(dataset, keep, dataset.split, dataset.notes)
