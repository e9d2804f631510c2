"""How do terms make one loss? A weighted sum of fractions, each over the whole batch."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from segtrain.config import Loss, LossTerm
from segtrain.errors import ConfigError, DataError
from segtrain.losses.overlap import Lovasz, OverlapLoss
from segtrain.losses.pixelwise import CrossEntropy, Focal, OHEMCrossEntropy
from segtrain.losses.term import Term


@dataclass(frozen=True)
class Criterion:
    """sum over terms of weight * sum / count. Every method takes any part of the batch: see ``losses.term``.

    logits: (N, C, H, W); half precisions are computed in float32, float64 stays. target: integers (N, H, W).
    """

    terms: tuple[Term, ...]
    weights: tuple[float, ...]
    names: tuple[str, ...]
    num_classes: int
    ignore_index: int = 255

    @property
    def needs_logits(self) -> bool:
        """Do the totals depend on the logits (OHEM, Dice, ...) or on the labels alone?"""
        return any(term.needs_logits for term in self.terms)

    @property
    def size(self) -> int:
        """Length of the totals."""
        return sum(term.size for term in self.terms)

    @torch.no_grad()
    def totals(self, logits: Tensor | None, target: Tensor) -> Tensor:
        """float64 (size,) of this part, to be added up over parts. logits may be None unless ``needs_logits``.

        Image by image where logits are read, so that no copy of the whole batch's probabilities is made.
        """
        self._check(logits if self.needs_logits else None, target)
        if self.needs_logits and logits is None:
            raise ValueError(f"the totals of {' + '.join(self.names)} depend on the logits: pass them")
        parts = []
        for term in self.terms:
            if not term.needs_logits:
                parts.append(term.totals(None, target))
                continue
            part = torch.zeros(term.size, dtype=torch.float64, device=target.device)
            for one in range(len(target)):
                with _plain_precision(target):
                    part += term.totals(_float(logits[one : one + 1]), target[one : one + 1])  # type: ignore[index]
            parts.append(part)
        return torch.cat(parts)

    def shares(self, logits: Tensor, target: Tensor, totals: Tensor) -> Tensor:
        """float64 (terms,): this part's share of each term, before its weight; adds up to the term's value."""
        self._check(logits, target)
        values = []
        with _plain_precision(logits):
            logits = _float(logits)
            for term, part in zip(self.terms, totals.split([term.size for term in self.terms])):
                count = term.count(part)
                values.append(term.sum(logits, target, part).double() / torch.where(count > 0, count, 1.0))
        return torch.stack(values)

    def loss(self, logits: Tensor, target: Tensor, totals: Tensor) -> Tensor:
        """float64 scalar with gradient: this part's share of the loss of the whole batch, whose totals are given."""
        return sum(w * share for w, share in zip(self.weights, self.shares(logits, target, totals)))  # type: ignore[return-value]

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch that is all here: a float64 scalar with gradient, 0 if the batch is all void.

        >>> criterion = build_criterion(Loss(), num_classes=3)
        >>> criterion(torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long))
        tensor(1.0986, dtype=torch.float64)
        """
        return self.loss(logits, target, self.totals(logits, target))

    def sum_and_count(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """(sum, count) of a batch that is all here: loss = sum / count, and both are 0 if the batch is all void.

        count is the first term's denominator (for cross-entropy without class weights: the valid pixels).
        """
        totals = self.totals(logits, target)
        count = self.terms[0].count(totals[: self.terms[0].size])
        return self.loss(logits, target, totals) * count, count

    def _check(self, logits: Tensor | None, target: Tensor) -> None:
        if target.dim() != 3 or target.is_floating_point():
            raise DataError(f"the loss needs class ids of shape (N, H, W), not {target.dtype} of {tuple(target.shape)}")
        if logits is None:
            return
        expected = (len(target), self.num_classes, *target.shape[1:])
        if tuple(logits.shape) != expected:
            raise DataError(
                f"the loss got logits of shape {tuple(logits.shape)} for {self.num_classes} classes and labels "
                f"{tuple(target.shape)}: they must be {expected} (upsample the logits to the labels' size)"
            )


def _float(logits: Tensor) -> Tensor:
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def _plain_precision(tensor: Tensor) -> contextlib.AbstractContextManager[None]:
    """No autocast inside: losses are computed in the precision of their (float32 or float64) input."""
    return torch.autocast(tensor.device.type, enabled=False)


def build_criterion(
    loss: Loss, num_classes: int, ignore_index: int = 255, class_weights: Tensor | None = None
) -> Criterion:
    """The criterion that ``loss`` describes.

    class_weights: (num_classes,), for loss.class_weights=auto, where they come from the training masks; otherwise
    those of ``loss`` count. Raises ConfigError where their number or values are wrong.
    """
    values = _class_weights(loss, num_classes, class_weights)
    terms = tuple(_term(term, num_classes, ignore_index, values) for term in loss.terms)
    weights = tuple(term.weight for term in loss.terms)
    return Criterion(terms, weights, tuple(term.name for term in loss.terms), num_classes, ignore_index)


def _term(term: LossTerm, num_classes: int, ignore_index: int, class_weights: tuple[float, ...]) -> Term:
    pixels = (num_classes, ignore_index, class_weights)
    regions = (num_classes, ignore_index)
    if term.name == "ce":
        return CrossEntropy(*pixels, label_smoothing=term.label_smoothing)
    if term.name == "ohem":
        return OHEMCrossEntropy(*pixels, min_kept=term.min_kept, threshold=term.threshold)
    if term.name == "focal":
        return Focal(*pixels, gamma=term.gamma)
    if term.name == "lovasz":
        return Lovasz(*regions)
    if term.name == "tversky":
        return OverlapLoss(*regions, alpha=term.alpha, beta=term.beta)
    share = {"dice": 0.5, "jaccard": 1.0}[term.name]
    return OverlapLoss(*regions, alpha=share, beta=share)


def _class_weights(loss: Loss, num_classes: int, class_weights: Tensor | None) -> tuple[float, ...]:
    if isinstance(loss.class_weights, tuple):
        given = torch.tensor(loss.class_weights)
    elif class_weights is not None:
        given = class_weights.detach().cpu()
    elif loss.class_weights == "auto":
        raise ConfigError(
            "loss.class_weights=auto, but no class statistics were handed over: set data.check=full, "
            "or loss.class_weights to one number a class"
        )
    else:
        return ()
    values = tuple(given.float().tolist())  # as float32, so that sum and count see the same numbers
    if len(values) != num_classes:
        raise ConfigError(f"loss.class_weights has {len(values)} numbers for {num_classes} classes: give one a class")
    if not all(math.isfinite(value) and value >= 0 for value in values) or not any(values):
        raise ConfigError(f"loss.class_weights={list(values)}: each must be finite and at least 0, and one above 0")
    return values
