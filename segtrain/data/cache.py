"""What does a loader read from, and how do small sets stay in memory?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from segtrain.data.record import Record
from segtrain.data.stages import DECODE
from segtrain.errors import ConfigError


class Source(Protocol):
    """What a loader needs of a data set; ``read`` and ``record`` are called from several threads at once.

    It pickles to little, since every worker process gets one: large tables live in memory-mapped files.
    """

    @property
    def labels(self) -> Any: ...  # LabelSpace: num_classes and ignore_index
    @property
    def entries(self) -> Sequence[Any]: ...  # Entry: image and mask are file names

    def __len__(self) -> int: ...
    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]: ...
    def size(self, index: int) -> tuple[int, int]: ...
    def record(self, index: int) -> Record: ...


class RamCache:
    """A data set whose decoded images and masks stay in memory after the first reading."""

    def __init__(self, source: Source) -> None:
        self.source, self.labels, self.entries = source, source.labels, source.entries
        self._kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        if len(source):
            height, width = source.size(0)
            need, limit = 4 * height * width * len(source), _memory_limit()
            if need > 0.8 * limit:
                raise ConfigError(
                    f"data.cache=ram: {len(source)} images of about {height}x{width} need {need / 2**30:.1f} GiB, this "
                    f"machine has {limit / 2**30:.1f} GiB: set data.cache=off"
                )

    def __len__(self) -> int:
        return len(self.source)

    def size(self, index: int) -> tuple[int, int]:
        kept = self._kept.get(index)
        return (kept[1].shape[0], kept[1].shape[1]) if kept else self.source.size(index)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        kept = self._kept.get(index)
        if kept is None:  # two threads may both read it: the same pixels, and one of the two stays
            with DECODE:
                kept = self._kept[index] = self.source.read(index)
        return kept

    def record(self, index: int) -> Record:
        """Decoded pixels and train ids."""
        image, mask = self.read(index)
        entry = self.entries[index]
        return Record(image, mask, entry.image, entry.mask or "", "train")


def _memory_limit() -> float:
    """Bytes that this process may use at all: the host's, or its container's if that is less."""
    limit = float("inf")
    if hasattr(os, "sysconf") and {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(os.sysconf_names):
        limit = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return min(limit, float(file.read()))  # a number, or "max"
    except (OSError, ValueError):
        return limit
