"""Scores of single images, each from its own counts of pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segtrain.observe.image_table import ImageRow

# int64 values per image: hits, pixels, bits of the mIoU, worst class, bits of its IoU.
FIELDS = 5


@dataclass(frozen=True)
class ImageScores:
    """One value per image, in the order of the split; the same to the bit on any number of ranks.

    ``miou`` is the mean IoU over the classes in the truth or the prediction of the image: what ``Scores`` gives for the
    confusion of this image alone. Their mean is not the mIoU of the split, which adds up all images first.
    ``worst`` is the class with the lowest IoU in the image, of equal ones the one with the most pixels. NaN and -1 if
    all of the image is void.
    """

    miou: np.ndarray  # float64 (N,)
    accuracy: np.ndarray  # float64 (N,), of pixels
    pixels: np.ndarray  # int64 (N,), valid ones
    worst: np.ndarray  # int64 (N,)
    worst_iou: np.ndarray  # float64 (N,)

    def ranked(self) -> list[int]:
        """Images from the worst to the best, without those that are all void."""
        order = np.argsort(self.miou, kind="stable")  # NaN comes last
        return [int(index) for index in order[: int(np.isfinite(self.miou).sum())]]

    def extremes(self, count: int) -> tuple[list[int], list[int]]:
        """The ``count`` worst images, the worst first, and the ``count`` best, the best first; none is in both."""
        order = self.ranked()
        worst = order[: min(count, (len(order) + 1) // 2)]
        best = order[::-1][: min(count, len(order) // 2)]
        return worst, best

    def rows(self, dataset: Any) -> list[ImageRow]:
        """Rows of a table, the worst first; images that are all void come last."""
        ranked = self.ranked()
        void = np.flatnonzero(~np.isfinite(self.miou)).tolist()
        return [self._row(index, dataset) for index in [*ranked, *void]]

    def _row(self, index: int, dataset: Any) -> ImageRow:
        image, worst = str(dataset.entries[index].image), int(self.worst[index])
        if worst < 0:
            return ImageRow(image, None, None, 0)
        return ImageRow(
            image, float(self.miou[index]), float(self.accuracy[index]), int(self.pixels[index]),
            dataset.labels.names[worst], float(self.worst_iou[index]),
        )  # fmt: skip


def counts(confusions: Tensor) -> Tensor:
    """Confusions int64 (n, C, C) to (n, 3, C): pixels of each class that are right, in the truth, in the prediction."""
    return torch.stack([confusions.diagonal(dim1=1, dim2=2), confusions.sum(2), confusions.sum(1)], 1)


def packed(found: np.ndarray) -> np.ndarray:
    """int64 (n, 3, C) of ``counts`` to int64 (n, FIELDS). Floats are their bits, which zeros do not change."""
    hits, truth, guess = found[:, 0], found[:, 1], found[:, 2]
    union = truth + guess - hits
    with np.errstate(invalid="ignore"):
        iou = hits / union  # NaN where the class is in neither
    floats = np.full((len(found), 2), math.nan)
    worst = np.full(len(found), -1, np.int64)
    for image, (values, sizes) in enumerate(zip(iou, union)):
        present = np.flatnonzero(sizes)
        if len(present):
            low = min(present, key=lambda c: (values[c], -sizes[c], c))
            # The exact sum, rounded once: no order of classes, no device and no batch can change it.
            floats[image] = math.fsum(values[present]) / len(present), values[low]
            worst[image] = low
    bits = floats.view(np.int64)
    return np.stack([hits.sum(1), truth.sum(1), bits[:, 0], worst, bits[:, 1]], 1)


def unpacked(rows: np.ndarray) -> ImageScores:
    """The inverse of ``packed``, after the sum over ranks."""
    hits, pixels, miou, worst, worst_iou = (np.ascontiguousarray(column) for column in rows.T)
    with np.errstate(invalid="ignore"):
        accuracy = hits / pixels
    return ImageScores(miou.view(np.float64), accuracy, pixels, worst, worst_iou.view(np.float64))
