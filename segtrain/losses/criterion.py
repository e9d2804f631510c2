"""The criterion of a training: a weighted sum of losses, each a fraction over the whole batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from segtrain.config import Loss, LossTerm
from segtrain.errors import ConfigError
from segtrain.losses.overlap import DiceLoss, JaccardLoss, LovaszSoftmax, TverskyLoss
from segtrain.losses.pixelwise import CrossEntropy, FocalLoss, OHEMCrossEntropy
from segtrain.losses.term import Term, at_least_float32, batch_totals, check_shapes, checked_weights, without_autocast


@dataclass(frozen=True)
class Criterion:
    """The sum over terms of weight * numerator / denominator. Every method takes any part of the batch.

    logits: (N, C, H, W); half precision is computed in float32, float64 stays. target: integers (N, H, W).
    """

    terms: tuple[Term, ...]
    weights: tuple[float, ...]
    names: tuple[str, ...]
    num_classes: int
    ignore_index: int = 255

    @property
    def needs_logits(self) -> bool:
        """Whether the totals depend on the logits (OHEM, Dice, ...), or on the labels alone."""
        return any(term.needs_logits for term in self.terms)

    @property
    def size(self) -> int:
        """Length of the totals."""
        return sum(term.size for term in self.terms)

    @torch.no_grad()
    def totals(self, logits: Tensor | None, target: Tensor) -> Tensor:
        """float64 (size,) of this part, to be added up over parts. logits may be None unless ``needs_logits``."""
        check_shapes(self.num_classes, logits if self.needs_logits else None, target)
        if self.needs_logits and logits is None:
            raise ValueError(f"the totals of {' + '.join(self.names)} depend on the logits: pass them")
        return torch.cat([batch_totals(term, logits, target) for term in self.terms])

    def shares(self, logits: Tensor, target: Tensor, totals: Tensor) -> Tensor:
        """float64 (terms,): this part's share of each term, before its weight. Shares add up to the term's value."""
        check_shapes(self.num_classes, logits, target)
        values = []
        with without_autocast(logits):
            logits = at_least_float32(logits)
            for term, part in zip(self.terms, totals.split([term.size for term in self.terms])):
                count = term.denominator(part)
                values.append(term.numerator(logits, target, part).double() / torch.where(count > 0, count, 1.0))
        return torch.stack(values)

    def loss(self, logits: Tensor, target: Tensor, totals: Tensor) -> Tensor:
        """This part's share of the loss of the whole batch, whose totals are given: a float64 scalar with gradient."""
        return sum(w * share for w, share in zip(self.weights, self.shares(logits, target, totals)))  # type: ignore[return-value]

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of a whole batch: a float64 scalar with gradient, 0 if every pixel is void.

        >>> criterion = build_criterion(Loss(), num_classes=3)
        >>> criterion(torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long))
        tensor(1.0986, dtype=torch.float64)
        """
        return self.loss(logits, target, self.totals(logits, target))


def build_criterion(
    loss: Loss, num_classes: int, ignore_index: int = 255, class_weights: Tensor | None = None
) -> Criterion:
    """Build the criterion that ``loss`` describes.

    class_weights: (num_classes,), made from the training masks, for loss.class_weights=auto. Raises ConfigError if the
    number or a value of the class weights is wrong.
    """
    values = _class_weights(loss, num_classes, class_weights)
    terms = tuple(_term(term, num_classes, ignore_index, values) for term in loss.terms)
    weights = tuple(term.weight for term in loss.terms)
    return Criterion(terms, weights, tuple(term.name for term in loss.terms), num_classes, ignore_index)


def _term(term: LossTerm, num_classes: int, ignore_index: int, class_weights: tuple[float, ...]) -> Term:
    regions = (num_classes, ignore_index)
    pixels = (num_classes, ignore_index, class_weights)
    if term.name == "ce":
        return CrossEntropy(*pixels, label_smoothing=term.label_smoothing)
    if term.name == "ohem":
        return OHEMCrossEntropy(*pixels, min_kept=term.min_kept, threshold=term.threshold)
    if term.name == "focal":
        return FocalLoss(*pixels, gamma=term.gamma)
    if term.name == "tversky":
        return TverskyLoss(*regions, alpha=term.alpha, beta=term.beta)
    return {"dice": DiceLoss, "jaccard": JaccardLoss, "lovasz": LovaszSoftmax}[term.name](*regions)


def _class_weights(loss: Loss, num_classes: int, class_weights: Tensor | None) -> tuple[float, ...]:
    given = loss.class_weights if isinstance(loss.class_weights, tuple) else class_weights
    if given is not None:
        return checked_weights(given, num_classes, "loss.class_weights")
    if loss.class_weights == "auto":
        raise ConfigError(
            "loss.class_weights=auto needs class statistics, which were not collected: set data.check=full, "
            "or set loss.class_weights to one number per class",
            code="class-weights-without-statistics",
        )
    return ()
