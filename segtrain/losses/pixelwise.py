"""Which losses are means over pixels? Cross-entropy (weighted, smoothed), focal, and OHEM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from segtrain.losses.term import Term, add_up, negative_log_likelihood, vector

BINS = 1 << 15  # of OHEM's histogram


@dataclass(frozen=True)
class CrossEntropy(Term):
    """Sum of class_weight * -log p over the sum of class weights (torch's definition), with label smoothing.

    Smoothing (Szegedy et al. 2016) gives ``label_smoothing`` of the target to all classes alike.
    """

    label_smoothing: float = 0.0

    @property
    def size(self) -> int:
        return 1

    def totals(self, logits: Tensor | None, target: Tensor) -> Tensor:
        valid, index = self.labels(target)
        weights = self.pixel_weights(index, torch.float32)
        return (valid if weights is None else weights * valid).sum(dtype=torch.float64)[None]

    def sum(self, logits: Tensor, target: Tensor, totals: Tensor) -> Tensor:
        if torch.are_deterministic_algorithms_enabled():
            return self._deterministic_sum(logits, target)
        weights = vector(self.class_weights, logits.device, logits.dtype) if self.class_weights else None
        return F.cross_entropy(
            logits,
            target.long(),
            weights,
            ignore_index=self.ignore_index,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )

    def _deterministic_sum(self, logits: Tensor, target: Tensor) -> Tensor:
        """The same number from other kernels: torch's own for images has no deterministic form on CUDA."""
        valid, index = self.labels(target)
        log_p = F.log_softmax(logits, 1)
        weights = vector(self.class_weights or (1.0,) * self.num_classes, logits.device, logits.dtype)
        true = log_p.gather(1, index[:, None])[:, 0] * weights[index]
        smooth = (log_p * weights[:, None, None]).mean(1) if self.label_smoothing else 0.0
        each = (1 - self.label_smoothing) * true + self.label_smoothing * smooth
        return -torch.where(valid, each, 0.0).sum()


@dataclass(frozen=True)
class Focal(CrossEntropy):
    """Cross-entropy with each pixel multiplied by (1 - p) ** gamma (Lin et al. 2017); the same denominator."""

    gamma: float = 2.0

    def sum(self, logits: Tensor, target: Tensor, totals: Tensor) -> Tensor:
        valid, index = self.labels(target)
        nll = negative_log_likelihood(logits, index)
        # 1 - p without cancellation; the least positive number keeps the slope of x ** gamma finite for gamma < 1.
        miss = (-torch.expm1(-nll)).clamp_min(torch.finfo(nll.dtype).tiny)
        weights = self.pixel_weights(index, nll.dtype)
        each = miss**self.gamma * nll
        return torch.where(valid, each if weights is None else each * weights, 0.0).sum()


@dataclass(frozen=True)
class OHEMCrossEntropy(Term):
    """Online hard example mining: the mean cross-entropy of the pixels that the net finds hard (Shrivastava et al. 2016).

    Kept are all valid pixels whose true class has less than probability ``threshold``, and at least the share ``min_kept``
    of the valid pixels of the whole batch, hardest first. Ranks find the same border without sending pixels: the
    totals are a histogram of the losses by the upper half of their float32 bits (non-negative floats sort as their
    bits do), so that bins are 1/128 of the loss wide, at any size of loss. The bin that holds the border is kept
    whole: then ``min_kept`` is exceeded by less than one bin, and the number of kept pixels is known exactly.
    """

    min_kept: float = 0.25
    threshold: float = 0.7

    needs_logits: ClassVar[bool] = True

    @property
    def size(self) -> int:
        return (BINS + 1) * (2 if self.class_weights else 1)

    def totals(self, logits: Tensor | None, target: Tensor) -> Tensor:
        """Histogram of the valid pixels, number below the threshold; with class weights both again as sums of weights."""
        assert logits is not None
        valid, index = self.labels(target)
        nll = negative_log_likelihood(logits.detach(), index)
        bins, hard = self._bins(nll)
        weights = self.pixel_weights(index, torch.float32)
        parts = []
        for mass in (valid,) if weights is None else (valid, weights * valid):
            parts += [add_up(BINS, bins, mass), (hard * mass).sum(dtype=torch.float64)[None]]
        return torch.cat(parts)

    def sum(self, logits: Tensor, target: Tensor, totals: Tensor) -> Tensor:
        valid, index = self.labels(target)
        nll = negative_log_likelihood(logits, index)
        bins, hard = self._bins(nll.detach())
        kept = valid & (hard | (bins >= self._border(totals)))
        weights = self.pixel_weights(index, nll.dtype)
        return torch.where(kept, nll if weights is None else nll * weights, 0.0).sum()

    def count(self, totals: Tensor) -> Tensor:
        """Kept pixels, or the sum of their weights: of two sets, one inside the other, the larger."""
        histogram, hard = totals[-BINS - 1 : -1], totals[-1]
        reaches = torch.arange(BINS, device=totals.device) >= self._border(totals)
        return torch.maximum(torch.where(reaches, histogram, 0.0).sum(), hard)

    def _bins(self, nll: Tensor) -> tuple[Tensor, Tensor]:
        """(bin int64, below the threshold bool), of each pixel. NaN falls into a last bin: it is kept, and seen."""
        nll = nll.float()
        bins = (nll.view(torch.int32) >> 16) & (BINS - 1)  # without the sign, which -0 and NaN may have
        return bins.long(), nll > -math.log(self.threshold)

    def _border(self, totals: Tensor) -> Tensor:
        """The highest bin such that it and all above hold the share ``min_kept``: (1,). Integers: the same on every device."""
        above = totals[:BINS].long().flip(0).cumsum(0).flip(0)
        return (above >= torch.ceil(above[:1] * self.min_kept)).sum(0, keepdim=True) - 1
