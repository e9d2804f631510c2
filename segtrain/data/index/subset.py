"""Views of a data set with some of its samples, which are renumbered; nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from segtrain.data.dataset import Dataset
from segtrain.data.index.entries import Entry, LazyEntries
from segtrain.errors import DataError


def _of_base(method: str) -> Any:
    """A method that calls the same method of ``base``, with the index that the sample has there."""

    def read(self: Subset, index: int, *more: Any) -> Any:
        return getattr(self.base, method)(int(self.keep[index]), *more)

    return read


def _fact_of_base(name: str) -> Any:
    """A property that has the value of the same property of ``base``."""
    return property(lambda self: getattr(self.base, name))


@dataclass(frozen=True, eq=False)
class Subset(Dataset):
    """A view of the samples of ``base`` at the indices ``keep`` (int64, ascending). ``base`` reads
    the files.

    ``without`` and ``select`` make such views.
    """

    base: Dataset = field(kw_only=True)
    keep: np.ndarray = field(kw_only=True)

    ids = _fact_of_base("ids")
    stored = _fact_of_base("stored")
    separate_files = _fact_of_base("separate_files")
    sizes_known = _fact_of_base("sizes_known")
    changes_show = _fact_of_base("changes_show")

    @property
    def packed_from(self) -> str | None:
        return None if self.base.packed_from is None else ""

    def folders(self) -> set[str]:
        return self.base.folders()

    def verify(self) -> tuple[tuple[str, str], ...]:
        return self.base.verify()

    read = _of_base("read")
    record = _of_base("record")
    ranges = _of_base("ranges")
    stored_image = _of_base("stored_image")
    stored_mask = _of_base("stored_mask")
    image_bytes = _of_base("image_bytes")
    size = _of_base("size")
    header = _of_base("header")

    def stamps(self, indices: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        return self.base.stamps(
            self.keep if indices is None else self.keep[np.asarray(indices, np.int64)]
        )


def _entry_of(entries: Sequence[Entry], keep: np.ndarray, index: int) -> Entry:
    return entries[int(keep[index])]


def select(dataset: Dataset, keep: np.ndarray, split: str, notes: tuple[str, ...]) -> Dataset:
    """A view of the samples at the indices ``keep`` (int64, ascending), as a split named ``split``
    with ``notes``.
    """
    entries = LazyEntries(len(keep), partial(_entry_of, dataset.entries, keep))
    facts = (
        dataset.labels,
        entries,
        dataset.root,
        notes,
        dataset.reading,
        dataset.store,
        dataset.mask_code,
    )
    return Subset(dataset.name, split, *facts, base=dataset, keep=keep)


def without(dataset: Dataset, skipped: Iterable[int]) -> Dataset:
    """``dataset`` without the samples at ``skipped``; ``dataset`` itself if there are none.

    Sample ``i`` is the i-th remaining sample, so order and augmentation depend only on the
    remaining samples. The fingerprint equals that of a folder without the skipped files. Raises
    DataError if nothing remains.
    """
    keep = np.setdiff1d(np.arange(len(dataset), dtype=np.int64), np.fromiter(skipped, np.int64))
    if len(keep) == len(dataset):
        return dataset
    if not len(keep):
        message = (
            f"{dataset.name} {dataset.split}: all {len(dataset):,} samples are faulty: "
            "check data.root"
        )
        raise DataError(message, code="all-samples-faulty", split=dataset.split, count=len(dataset))
    return select(dataset, keep, dataset.split, dataset.notes)
