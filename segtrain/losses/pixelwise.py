"""Losses that are means over pixels: cross-entropy (weighted, smoothed), focal loss, and OHEM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from segtrain.losses.term import (
    Logits,
    WeightedTerm,
    add_up,
    negative_log_likelihood,
    sum_of_nll,
    vector,
)

# Bins of the histogram of OHEM.
BINS = 1 << 15


@dataclass(frozen=True)
class CrossEntropy(WeightedTerm):
    """The sum of class_weight * -log p, divided by the sum of class weights as in torch, with label
    smoothing.

    label_smoothing: share of the target that is spread evenly over all classes (Szegedy et al.
    2016).

    >>> loss = CrossEntropy(num_classes=3)
    >>> loss(torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long))
    tensor(1.0986)
    """

    label_smoothing: float = 0.0

    fused: ClassVar[bool] = True

    def numerator(self, logits: Logits, target: Tensor, totals: Tensor) -> Tensor:
        # F.cross_entropy for images has no deterministic kernel on CUDA.
        if not isinstance(logits, Tensor) or torch.are_deterministic_algorithms_enabled():
            return self._sum(logits, target)
        weights = (
            vector(self.class_weights, logits.device, logits.dtype) if self.class_weights else None
        )
        return F.cross_entropy(
            logits,
            target.long(),
            weights,
            ignore_index=self.ignore_index,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )

    def _sum(self, logits: Logits, target: Tensor) -> Tensor:
        """The same sum by its definition."""
        valid, index = self.labels(target)
        each = negative_log_likelihood(logits, index)
        weights = vector(self.class_weights or (1.0,) * self.num_classes, each.device, each.dtype)
        if self.class_weights:
            each = each * weights[index]
        if self.label_smoothing:
            share = self.label_smoothing / self.num_classes
            each = (1 - self.label_smoothing) * each + share * sum_of_nll(logits, weights)
        return torch.where(valid, each, 0.0).sum()


@dataclass(frozen=True)
class FocalLoss(WeightedTerm):
    """Cross-entropy with the loss of each pixel multiplied by (1 - p) ** gamma (Lin et al. 2017).

    The denominator is that of cross-entropy.

    gamma: larger values give pixels that are already predicted well less weight; 0 is
    cross-entropy.

    >>> loss = FocalLoss(num_classes=3, gamma=1.0)
    >>> loss(torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long))
    tensor(0.7324)
    """

    gamma: float = 2.0

    fused: ClassVar[bool] = True

    def numerator(self, logits: Logits, target: Tensor, totals: Tensor) -> Tensor:
        valid, index = self.labels(target)
        nll = negative_log_likelihood(logits, index)
        # 1 - p without cancellation. The smallest positive number keeps the slope of x ** gamma
        # finite for gamma < 1.
        miss = (-torch.expm1(-nll)).clamp_min(torch.finfo(nll.dtype).tiny)
        weights = self.pixel_weights(index, nll.dtype)
        each = miss**self.gamma * nll
        return torch.where(valid, each if weights is None else each * weights, 0.0).sum()


@dataclass(frozen=True)
class OHEMCrossEntropy(WeightedTerm):
    """Online hard example mining: the mean cross-entropy of the hard pixels (Shrivastava et al.
    2016).

    min_kept: at least this fraction of the valid pixels of the batch is kept, hardest first.
    threshold: pixels whose true class has a probability below it are always kept.

    The totals are a histogram of the pixel losses, binned by the upper half of their float32 bits,
    so that all ranks find the same cutoff for ``min_kept`` without sending pixels. Losses in a bin
    differ by less than 1 %. The bin at the cutoff is kept as a whole, so ``min_kept`` is exceeded
    by less than one bin.

    >>> loss = OHEMCrossEntropy(num_classes=3, min_kept=0.25)
    >>> loss(torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long))
    tensor(1.0986)
    """

    min_kept: float = 0.25
    threshold: float = 0.7

    needs_logits: ClassVar[bool] = True
    fused: ClassVar[bool] = True

    @property
    def size(self) -> int:
        return (BINS + 1) * (2 if self.class_weights else 1)

    def totals(self, logits: Logits | None, target: Tensor) -> Tensor:
        """The histogram of the valid pixels, and how many have a probability below the threshold.

        With class weights, both follow a second time, weighted.
        """
        assert logits is not None
        valid, index = self.labels(target)
        bins, hard = self._bins(negative_log_likelihood(logits, index).detach())
        weights = self.pixel_weights(index, torch.float32)
        parts = []
        for mass in (valid,) if weights is None else (valid, weights * valid):
            parts += [add_up(BINS, bins, mass), (hard * mass).sum(dtype=torch.float64)[None]]
        return torch.cat(parts)

    def numerator(self, logits: Logits, target: Tensor, totals: Tensor) -> Tensor:
        valid, index = self.labels(target)
        nll = negative_log_likelihood(logits, index)
        bins, hard = self._bins(nll.detach())
        kept = valid & (hard | (bins >= self._border(totals)))
        weights = self.pixel_weights(index, nll.dtype)
        return torch.where(kept, nll if weights is None else nll * weights, 0.0).sum()

    def denominator(self, totals: Tensor) -> Tensor:
        """Number of the kept pixels, or the sum of their class weights.

        A pixel is kept if its probability is below the threshold, or if it is in the top bins. One
        of these two sets contains the other, so the larger sum is the result.
        """
        histogram, hard = totals[-BINS - 1 : -1], totals[-1]
        reaches = torch.arange(BINS, device=totals.device) >= self._border(totals)
        return torch.maximum(torch.where(reaches, histogram, 0.0).sum(), hard)

    def _bins(self, nll: Tensor) -> tuple[Tensor, Tensor]:
        """Bin (int64) of each pixel, and whether p is below the threshold. NaN gets a high bin, and
        the loss is NaN.
        """
        nll = nll.float()
        # Mask out the sign bit, which -0.0 and NaN may have.
        bins = (nll.view(torch.int32) >> 16) & (BINS - 1)
        return bins.long(), nll > -math.log(self.threshold)

    def _border(self, totals: Tensor) -> Tensor:
        """The cutoff (1,): the highest bin that, with all bins above, holds the fraction
        ``min_kept`` of the pixels.

        It is the same on every device.
        """
        above = totals[:BINS].long().flip(0).cumsum(0).flip(0)
        return (above >= torch.ceil(above[:1] * self.min_kept)).sum(0, keepdim=True) - 1
