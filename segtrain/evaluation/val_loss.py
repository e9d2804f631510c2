"""The loss of a split: the mean that the training loss is, over all images instead of a batch."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from segtrain.losses import Criterion


class LossReader:
    """Collects, for the images of a batch, the sum and the count of each term of the loss.

    Each image is read alone (in sliding windows, each row of windows), so the numbers do not depend
    on what else is in its batch.
    """

    def __init__(self, criterion: Criterion, truth: Tensor) -> None:
        """``truth``: the labels of the batch, (n, H, W)."""
        self._criterion = criterion
        self._truth = truth
        shape = len(truth), len(criterion.terms), 2
        self._sums = torch.zeros(shape, dtype=torch.float64, device=truth.device)

    def __call__(self, logits: Tensor, top: int) -> None:
        """Add the pixels of logits (n, C, h, W), whose first row is ``top``."""
        truth = self._truth[:, top : top + logits.shape[2]]
        for image in range(len(logits)):
            part = slice(image, image + 1)
            for k, term in enumerate(self._criterion.terms):
                self._sums[image, k] += torch.stack(term.sum_and_count(logits[part], truth[part]))

    @property
    def numbers(self) -> Tensor:
        """float64 (n, 2 * terms)."""
        return self._sums.flatten(1)


def mean_loss(criterion: Criterion, numbers: np.ndarray) -> float:
    """The loss of all images from their ``numbers``, float64 (N, 2 * terms); NaN if all is void.

    Each sum is rounded once, so the loss has the same bits in any order of the images.
    """
    sums = [math.fsum(column) for column in numbers.T]
    terms = zip(criterion.weights, sums[::2], sums[1::2])
    return math.fsum(
        weight * total / count if count else math.nan for weight, total, count in terms
    )
