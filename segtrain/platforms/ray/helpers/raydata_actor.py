"""What Ray Data runs on a helping host: an actor that makes samples. It imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from segtrain.data.order import samples
from segtrain.data.sample import COLOR_BYTES, SampleMaker, Task
from segtrain.platforms.ray.helpers.helper import Helper, file_checksums, identity
from segtrain.platforms.ray.helpers.protocols import other_than

CHUNK = 8  # samples that a helper makes at a time


class Making:
    """The actor of Ray Data on a core of a helping host.

    ``ours``: the identity of the rank. ``crop``, ``scale``: of all samples, as in ``Task``.
    ``place``: the rank's working folder and import path.
    """

    def __init__(
        self, content: bytes, ours: dict[str, str], crop: Any, scale: Any, colors: bool, place: Any
    ) -> None:
        helper = Helper()
        helper.meet(b"", content, *place)
        self._maker: SampleMaker = helper.makers[b""]
        if differs := other_than(identity(self._maker.transforms is not None), ours):
            raise RuntimeError(
                f"a helping host would make other pixels: {differs}: install the same on all hosts"
            )
        self._crop, self._scale, self._colors = crop, scale, colors

    def __call__(self, parts: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        """Make the samples from position ``begin`` to ``end`` of the run's sequence (see order.py),
        for each part.
        """
        for begin, end in parts["data"].tolist():
            for first in range(begin, end, CHUNK):
                yield self._made(first, min(CHUNK, end - first))

    def _made(self, first: int, count: int) -> dict[str, np.ndarray]:
        epochs, indices = samples(self._maker.seed, len(self._maker.source), first, count)
        made = {
            "image": np.empty((count, *self._crop, 3), np.uint8),
            "mask": np.empty((count, *self._crop), self._maker.source.labels.mask_dtype),
            "colors": np.zeros((count, COLOR_BYTES), np.uint8),
            "files": np.zeros((count, 2), np.int64),
            "index": indices,
            "epoch": epochs,
        }
        for k, (index, epoch) in enumerate(zip(indices.tolist(), epochs.tolist())):
            task, parts = (
                Task(index, epoch, self._crop, self._scale),
                [made["image"][k], made["mask"][k]],
            )
            self._maker(task, *parts, *([made["colors"][k]] if self._colors else []))
            made["files"][k] = file_checksums(self._maker.source, index)
        return made
