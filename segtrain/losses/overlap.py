"""Losses based on the overlap of regions: Dice, Jaccard, and Tversky over the whole batch; Lovász
per image.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from segtrain.losses.term import AT_ONCE, Logits, Term, add_up, class_sums, true_and_sum_of_p


@dataclass(frozen=True)
class TverskyLoss(Term):
    """Mean over the classes present of 1 - I / (I + alpha * (P - I) + beta * (T - I)) (Salehi et
    al. 2017).

    alpha: weight of false positives. beta: weight of false negatives.

    I, P, T: soft intersection, sum of probabilities, and number of pixels of a class, over the
    valid pixels of the whole batch. A class is present if the batch has a pixel of it. Every class
    present has the same weight.

    For a part of the batch, the loss is linearized at the totals of the whole batch, which gives
    the exact gradient. To the value for a part, each class adds its loss times this part's share of
    the pixels of the class.

    >>> loss = TverskyLoss(num_classes=2, alpha=0.3, beta=0.7)
    >>> loss(torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long))
    tensor(0.4118)
    """

    alpha: float = 0.5
    beta: float = 0.5

    needs_logits: ClassVar[bool] = True
    fused: ClassVar[bool] = True

    @property
    def size(self) -> int:
        return 3 * self.num_classes

    def totals(self, logits: Logits | None, target: Tensor) -> Tensor:
        """I, P, and T of each class."""
        assert logits is not None
        valid, index = self.labels(target)
        return class_sums(logits, index, valid).flatten()

    def numerator(self, logits: Logits, target: Tensor, totals: Tensor) -> Tensor:
        inner, mass, pixels = totals.view(3, self.num_classes)
        present = pixels > 0
        whole = inner + self.alpha * (mass - inner) + self.beta * (pixels - inner)
        whole = whole.clamp_min(torch.finfo(torch.float64).tiny)
        slope_inner = torch.where(
            present, -(whole - inner * (1 - self.alpha - self.beta)) / whole**2, 0.0
        )
        slope_mass = torch.where(present, self.alpha * inner / whole**2, 0.0)
        loss_per_pixel = torch.where(present, (1 - inner / whole) / pixels.clamp_min(1), 0.0)

        valid, index = self.labels(target)
        true, false = true_and_sum_of_p(logits, index, slope_mass)
        tangent = false + true * slope_inner.to(true.dtype)[index]
        tangent = torch.where(valid, tangent, 0.0).sum().double()
        share = (add_up(self.num_classes, index, valid) * loss_per_pixel).sum()
        return share + (tangent - tangent.detach())

    def denominator(self, totals: Tensor) -> Tensor:
        return (totals[2 * self.num_classes :] > 0).sum(dtype=torch.float64)


@dataclass(frozen=True)
class DiceLoss(TverskyLoss):
    """Soft Dice loss, the mean over the classes present: Tversky with alpha = beta = 1/2 (Milletari
    et al. 2016).
    """

    alpha: float = field(default=0.5, init=False)
    beta: float = field(default=0.5, init=False)


@dataclass(frozen=True)
class JaccardLoss(TverskyLoss):
    """Soft Jaccard (IoU) loss, the mean over the classes present: Tversky with alpha = beta = 1."""

    alpha: float = field(default=1.0, init=False)
    beta: float = field(default=1.0, init=False)


@dataclass(frozen=True)
class LovaszSoftmax(Term):
    """Lovász-softmax (Berman et al. 2018): the mean over the classes of each image, then the mean
    over images.

    The Lovász extension of the Jaccard loss sorts the errors |truth - p| of a class from large to
    small, multiplies each by the increase of the Jaccard loss when its pixel also becomes wrong,
    and adds them up. Images that are all void, and classes that are absent from an image, do not
    count.
    """

    def totals(self, logits: Logits | None, target: Tensor) -> Tensor:
        """Number of images with a valid pixel."""
        return (target != self.ignore_index).flatten(1).any(1).sum(dtype=torch.float64)[None]

    def numerator(self, logits: Tensor, target: Tensor, totals: Tensor) -> Tensor:
        valid, index = self.labels(target)
        share = logits.sum() * 0.0 if not len(logits) else logits.new_zeros(())
        for image in range(len(logits)):
            share = share + self._image(
                logits[image].flatten(1), index[image].flatten(), valid[image].flatten()
            )
        return share

    def _image(self, logits: Tensor, index: Tensor, valid: Tensor) -> Tensor:
        """The loss of one image with P pixels: logits (C, P), index int64 (P,), valid bool (P,) ->
        scalar.
        """
        probs = logits.softmax(0)
        total, present = probs.sum() * 0.0, probs.new_zeros(())
        for first, end in self._blocks(index, valid):
            truth = (index == torch.arange(first, end, device=index.device)[:, None]) & valid
            there = truth.any(1)
            total = (
                total + torch.where(there, self._classes(probs[first:end], truth, valid), 0.0).sum()
            )
            present = present + there.sum()
        return total / present.clamp_min(1)

    def _blocks(self, index: Tensor, valid: Tensor) -> list[tuple[int, int]]:
        """Ranges of classes that are sorted together: on a CPU each one that is present; on a GPU
        all, a few at a time.

        To leave out the absent ones, the host would have to wait for the GPU.
        """
        if not index.is_cuda:
            pixels = add_up(self.num_classes, index, valid).tolist()
            return [(c, c + 1) for c, count in enumerate(pixels) if count]
        # sorting takes about 64 bytes per pixel and class
        step = max(1, AT_ONCE // (64 * len(index)))
        return [(c, min(c + step, self.num_classes)) for c in range(0, self.num_classes, step)]

    @staticmethod
    def _classes(probs: Tensor, truth: Tensor, valid: Tensor) -> Tensor:
        """The loss of each of k classes: probs, truth bool (k, P), valid bool (P,) -> (k,).

        Void pixels come last, with slope 0.
        """
        errors = torch.where(truth, 1 - probs, probs)
        order = (
            torch.where(valid, errors.detach(), -1.0)
            .sort(dim=1, descending=True, stable=True)
            .indices
        )
        sorted_truth = truth.gather(1, order)
        rank = torch.arange(1, order.shape[1] + 1, device=order.device)
        hits = sorted_truth.cumsum(1)
        inner = (hits[:, -1:] - hits).double()
        union = (hits[:, -1:] + rank - hits).double()
        # Growth of 1 - inner / union in closed form: the difference of two neighbors would lose
        # precision in float32.
        growth = torch.where(sorted_truth, 1 / union, inner / (union * (union - 1).clamp_min(1)))
        slopes = torch.empty_like(probs).scatter_(1, order, growth.to(probs.dtype))
        return (torch.where(valid, errors, 0.0) * slopes).sum(1)
