"""A cache of decoded images in memory."""

from __future__ import annotations

import math

import numpy as np

from segtrain.base.memory import memory_limit
from segtrain.bucket.faults import ignoring_file_faults
from segtrain.data.dataset import SampleSource
from segtrain.data.pixels.crop import StoredSample
from segtrain.data.stages import DECODE
from segtrain.data.storage import Range
from segtrain.errors import ConfigError

# The memory is computed from the sizes of about this many images, evenly drawn.
_SIZES = 128


def _pixels(source: SampleSource, index: int) -> int:
    """Pixels of an image, from its header or the index; 0 for a faulty file, which the check
    reports.
    """
    with ignoring_file_faults():
        height, width = source.size(index)
        return height * width
    return 0


def refuse_cache(source: SampleSource, ranks: int = 1) -> None:
    """Raise ConfigError if the decoded images, once for each of the ``ranks`` of this host, need
    too much memory.
    """
    if not len(source):
        return
    step = max(1, len(source) // _SIZES)
    some = range(step // 2, len(source), step)
    pixels = sum(_pixels(source, index) for index in some) / len(some)
    mask_bytes = np.dtype(source.labels.mask_dtype).itemsize
    per_pixel = mask_bytes + math.prod(source.reading.pixels.area(1, 1))
    each, (limit, _) = int(per_pixel * pixels * len(source)), memory_limit()
    if each * ranks <= 0.8 * limit:
        return
    copies = (
        f" in each of {ranks} ranks, {each * ranks / 2**30:.1f} GiB together" if ranks > 1 else ""
    )
    message = (
        f"data.cache=ram: {len(source)} images of {pixels / 1e6:.2g} MP need "
        f"{each / 2**30:.1f} GiB{copies}; "
    )
    message += (
        f"this machine has {limit / 2**30:.1f} GiB: set data.cache=off"
        + ", or use fewer ranks" * (ranks > 1)
    )
    raise ConfigError(
        message, code="cache-too-large", key="data.cache", found=each * ranks, expected=limit
    )


class RamCache:
    """A data set whose decoded images and masks stay in memory after they are read once."""

    def __init__(self, source: SampleSource) -> None:
        self.source, self.labels, self.entries = source, source.labels, source.entries
        self.store, self.stored, self.reading = source.store, source.stored, source.reading
        self._kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        refuse_cache(source)

    def __len__(self) -> int:
        return len(self.source)

    def size(self, index: int) -> tuple[int, int]:
        sample = self._kept.get(index)
        return (sample[1].shape[0], sample[1].shape[1]) if sample else self.source.size(index)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        sample = self._kept.get(index)
        # two threads may read it at once: they get the same pixels, and one result is kept
        if sample is None:
            with DECODE:
                sample = self._kept[index] = self.source.read(index)
        return sample

    def ranges(self, index: int) -> list[Range]:
        """The ranges that ``record`` reads from the store; none for a sample in memory."""
        return [] if index in self._kept else self.source.ranges(index)

    def record(self, index: int) -> StoredSample:
        """Decoded pixels and train ids."""
        image, mask = self.read(index)
        entry = self.entries[index]
        return StoredSample(image, mask, entry.image, entry.mask or "", "train")
