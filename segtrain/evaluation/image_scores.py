"""Scores of single images, each computed from the pixel counts of that image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segtrain.metrics import mean_of_known
from segtrain.observe.image_table import ImageRow


@dataclass(frozen=True)
class ImageScores:
    """One value per image, in the order of the split; bitwise identical on any number of ranks.

    ``miou`` is the mean IoU over the classes in the truth or the prediction of the image, as
    ``Scores`` computes it from the confusion of this image. The mean of these values is not the
    mIoU of the split, which adds up all confusions first. ``worst`` is the class with the lowest
    IoU in the image; on a tie, the class with the largest union of truth and prediction. If all
    pixels are void, the scores are NaN and ``worst`` is -1.
    """

    miou: np.ndarray  # float64 (N,)
    accuracy: np.ndarray  # float64 (N,), share of the valid pixels that are correct
    pixels: np.ndarray  # int64 (N,), valid pixels
    worst: np.ndarray  # int64 (N,)
    worst_iou: np.ndarray  # float64 (N,)

    @classmethod
    def from_counts(cls, found: np.ndarray) -> ImageScores:
        """Scores of N images from their ``counts`` (N, 3, C)."""
        hits, truth, guess = found[:, 0], found[:, 1], found[:, 2]
        union = truth + guess - hits
        with np.errstate(invalid="ignore"):
            iou = hits / union  # NaN for a class in neither truth nor prediction
            accuracy = hits.sum(1) / truth.sum(1)
        miou, worst_iou = np.full(len(found), math.nan), np.full(len(found), math.nan)
        worst = np.full(len(found), -1, np.int64)
        for image, (values, sizes) in enumerate(zip(iou, union)):
            present = np.flatnonzero(sizes)
            if len(present):
                low = min(present, key=lambda c: (values[c], -sizes[c], c))
                # fsum rounds only once, so the result does not depend on the order of classes.
                miou[image] = math.fsum(values[present]) / len(present)
                worst[image], worst_iou[image] = low, values[low]
        return cls(miou, accuracy, truth.sum(1), worst, worst_iou)

    def ranked(self) -> list[int]:
        """Indices of the images from the worst to the best, without images that are all void."""
        order = np.argsort(self.miou, kind="stable")  # NaN comes last
        return [int(index) for index in order[: int(np.isfinite(self.miou).sum())]]

    def extremes(self, count: int) -> tuple[list[int], list[int]]:
        """The ``count`` worst images, the worst first, and the ``count`` best, the best first; none
        is in both.
        """
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
            image,
            float(self.miou[index]),
            float(self.accuracy[index]),
            int(self.pixels[index]),
            dataset.labels.names[worst],
            float(self.worst_iou[index]),
        )


def class_dice(found: np.ndarray) -> tuple[float, ...]:
    """Dice of each class, the mean over the images whose truth has the class, from the ``counts``
    (N, 3, C).
    """
    hits, truth, guess = found[:, 0], found[:, 1], found[:, 2]
    dice = np.where(truth, 2 * hits / np.maximum(1, truth + guess), math.nan)
    return tuple(map(mean_of_known, dice.T.tolist()))


def counts(confusions: Tensor) -> Tensor:
    """Correct, true, and predicted pixels of each class: confusions int64 (n, C, C) to counts (n,
    3, C).
    """
    return torch.stack(
        [confusions.diagonal(dim1=1, dim2=2), confusions.sum(2), confusions.sum(1)], 1
    )
