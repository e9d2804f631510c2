"""Losses based on the overlap of regions: Dice, Jaccard, and Tversky over the whole batch; Lovász
per image.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from segtrain.losses.term import AT_ONCE, Logits, Term, add_up, class_sums, true_and_sum_of_p

ROW_BYTES = 64  # that sorting takes for each pixel and class


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
        if not len(logits):
            return logits.sum() * 0.0
        valid, index = (part.flatten(1) for part in self.labels(target))
        images = len(index)
        # A row for each class of each image.
        number = torch.arange(images * self.num_classes, device=index.device)
        image, label = number // self.num_classes, number[:, None] % self.num_classes
        first = number[:: self.num_classes, None]
        present = add_up(len(number), first + index, valid) > 0
        step = self._rows_at_once(index)
        # On a GPU, the host would have to wait to leave out classes that are absent.
        left_out = [not index.is_cuda and not part.any() for part in present.split(step)]
        rows = logits.flatten(2).softmax(1).flatten(0, 1).split(step)
        losses = [
            probs[:, 0] * 0.0 if absent else self._classes(probs, index[own] == labels, valid[own])
            for probs, own, labels, absent in zip(
                rows, image.split(step), label.split(step), left_out
            )
        ]
        there = present.view(images, -1)
        loss = torch.where(there, torch.cat(losses).view(images, -1), 0.0)
        return (loss.sum(1) / there.sum(1).clamp_min(1)).sum()

    @staticmethod
    def _rows_at_once(index: Tensor) -> int:
        """Rows that are sorted together, of the pixels of ``index`` (N, P): on a CPU one, on a GPU
        as many as the memory allows.
        """
        return max(1, AT_ONCE // (ROW_BYTES * index.shape[1])) if index.is_cuda else 1

    @staticmethod
    def _classes(probs: Tensor, truth: Tensor, valid: Tensor) -> Tensor:
        """The loss of each of k rows of P pixels: probs, truth bool, valid bool (k, P) -> (k,).

        Void pixels come last, with slope 0.
        """
        truth = truth & valid
        errors = torch.where(truth, 1 - probs, probs)
        order = (
            torch.where(valid, errors.detach(), -1.0)
            .sort(dim=1, descending=True, stable=True)
            .indices
        )
        sorted_truth = truth.gather(1, order)
        rank = torch.arange(1, order.shape[1] + 1, device=order.device, dtype=torch.int32)
        # One scan over all rows: by rows, a GPU would run one block of threads for each.
        hits = sorted_truth.flatten().cumsum(0, dtype=torch.int32).view(truth.shape)
        hits -= hits[:, :1] - sorted_truth[:, :1].int()
        inner = (hits[:, -1:] - hits).to(probs.dtype)
        union = (hits[:, -1:] + rank - hits).to(probs.dtype)
        # Growth of 1 - inner / union in closed form: the difference of two neighbors would lose
        # precision in float32.
        growth = torch.where(sorted_truth, 1 / union, inner / (union * (union - 1).clamp_min(1)))
        slopes = torch.empty_like(probs).scatter_(1, order, growth)
        return (torch.where(valid, errors, 0.0) * slopes).sum(1)
