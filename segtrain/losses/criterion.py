"""The training criterion: a weighted sum of losses over the whole batch, or the user's own loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from segtrain.config import Loss
from segtrain.errors import ConfigError
from segtrain.losses.overlap import DiceLoss, JaccardLoss, LovaszSoftmax, TverskyLoss
from segtrain.losses.pixelwise import CrossEntropy, FocalLoss, OHEMCrossEntropy
from segtrain.losses.term import (
    Logits,
    Term,
    WeightedTerm,
    at_least_float32,
    batch_totals,
    check_shapes,
    checked_weights,
    without_autocast,
)

# The user's own loss: logits (N, C, H, W), target int64 (N, H, W) -> scalar.
Mean = Callable[[Tensor, Tensor], Tensor]
# The name of a term in the config -> its class, whose fields are the settings of the term.
_TERMS: dict[str, type[Term]] = {
    "ce": CrossEntropy,
    "ohem": OHEMCrossEntropy,
    "focal": FocalLoss,
    "dice": DiceLoss,
    "jaccard": JaccardLoss,
    "lovasz": LovaszSoftmax,
    "tversky": TverskyLoss,
}


@dataclass(frozen=True)
class Criterion:
    """The sum over the terms of weight * numerator / denominator. Each method accepts any part of
    the global batch.

    logits: (N, C, H, W); half precision is computed in float32, float64 stays. Or, if ``fused``,
    LowLogits. target: integers (N, H, W).
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
    def fused(self) -> bool:
        """Whether every term takes LowLogits."""
        return all(term.fused for term in self.terms)

    @property
    def size(self) -> int:
        """Length of the vector that ``totals`` returns."""
        return sum(term.size for term in self.terms)

    @torch.no_grad()
    def totals(self, logits: Logits | None, target: Tensor) -> Tensor:
        """Sums over this part of the batch, float64 (size,). Add them up over all parts before
        ``shares`` and ``loss``.

        logits may be None unless ``needs_logits``.
        """
        check_shapes(
            self.num_classes,
            logits if self.needs_logits and isinstance(logits, Tensor) else None,
            target,
        )
        if self.needs_logits and logits is None:
            raise ValueError(
                f"the totals of {' + '.join(self.names)} depend on the logits: pass them"
            )
        return torch.cat([batch_totals(term, logits, target) for term in self.terms])

    def shares(self, logits: Logits, target: Tensor, totals: Tensor) -> Tensor:
        """This part's share of the value of each term, float64 (terms,), unweighted. Shares add up
        over parts.
        """
        if isinstance(logits, Tensor):
            check_shapes(self.num_classes, logits, target)
            logits = at_least_float32(logits)
        values = []
        with without_autocast(target):
            for term, part in zip(self.terms, totals.split([term.size for term in self.terms])):
                count = term.denominator(part)
                values.append(
                    term.numerator(logits, target, part).double()
                    / torch.where(count > 0, count, 1.0)
                )
        return torch.stack(values)

    def loss(self, logits: Logits, target: Tensor, totals: Tensor) -> Tensor:
        """This part's share of the whole batch's loss, a float64 scalar with gradient. totals: sums
        over all parts.
        """
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

    class_weights: (num_classes,), made from the training masks, for loss.class_weights=auto. Raises
    ConfigError if the number or a value of the class weights is wrong.
    """
    given = loss.class_weights if isinstance(loss.class_weights, tuple) else class_weights
    if given is None and loss.class_weights == "auto":
        fix = "set data.check=full, or give one number per class"
        why = f"loss.class_weights=auto needs class statistics, which were not collected: {fix}"
        raise ConfigError(why, code="class-weights-without-statistics")
    weights = () if given is None else checked_weights(given, num_classes, "loss.class_weights")
    terms = []
    for term in loss.terms:
        kind, settings = _TERMS[term.name], term.model_dump(exclude={"name", "weight"})
        if issubclass(kind, WeightedTerm):
            settings["class_weights"] = weights
        terms.append(kind(num_classes, ignore_index, **settings))
    factors, names = (
        tuple(term.weight for term in loss.terms),
        tuple(term.name for term in loss.terms),
    )
    return Criterion(tuple(terms), factors, names, num_classes, ignore_index)


@dataclass(frozen=True)
class OwnLoss(Term):
    """The user's own loss of a micro-batch, weighted by the number of its valid pixels.

    If the loss is a mean over the pixels whose label is not ``ignore_index``, this gives the value
    and gradient of the global batch on any number of ranks and micro-batches. Any other loss, such
    as Dice, is averaged over micro-batches.
    """

    mean: Mean = None  # type: ignore[assignment]

    def numerator(self, logits: Tensor, target: Tensor, totals: Tensor) -> Tensor:
        valid = int((target != self.ignore_index).sum())
        # Without valid pixels, the mean is 0 / 0, and multiplying it by 0 keeps the NaN. ``int``
        # above waits for a GPU.
        if not valid:
            return logits.sum() * 0.0
        # Check before calling the loss: on a GPU, a class index out of bounds raises no error that
        # Python can catch.
        if (
            valid < target.numel()
            and getattr(self.mean, "ignore_index", self.ignore_index) != self.ignore_index
        ):
            raise self._counts_void()
        try:
            mean = self.mean(logits, target.long())
        except IndexError as error:
            if str(self.ignore_index) in str(error):
                raise self._counts_void() from error
            raise
        if isinstance(mean, Tensor) and logits.requires_grad and not mean.requires_grad:
            fix = (
                "compute it from the logits, without detach(), item(), argmax(), or torch.no_grad()"
            )
            raise ConfigError(
                f"the criterion returned a number without a gradient: {fix}",
                code="criterion-detached",
            )
        if not isinstance(mean, Tensor) or mean.numel() != 1:
            found = tuple(mean.shape) if isinstance(mean, Tensor) else type(mean).__name__
            why = (
                f"the criterion returned {found}: it must return one number, the mean over the "
                "valid pixels"
            )
            raise ConfigError(why, code="criterion-output-shape")
        return mean.reshape(()).double() * valid

    def _counts_void(self) -> ConfigError:
        fix = (
            f"ignore the target {self.ignore_index}, as "
            f"nn.CrossEntropyLoss(ignore_index={self.ignore_index}) does"
        )
        why = "the criterion does not ignore void pixels, which masks and padded crops contain"
        return ConfigError(f"{why}: {fix}", code="criterion-counts-void")


def as_criterion(given: Any, num_classes: int, ignore_index: int) -> Criterion:
    """Make a ``Criterion`` of a loss of this package or of any callable (logits, target) -> mean
    over valid pixels.

    A ``Criterion`` is returned unchanged. Losses of this package are exact on any number of ranks
    and micro-batches.
    """
    if isinstance(given, Criterion):
        return given
    term = given if isinstance(given, Term) else OwnLoss(num_classes, ignore_index, mean=given)
    if (term.num_classes, term.ignore_index) != (num_classes, ignore_index):
        why = (
            f"{type(given).__name__} has num_classes={term.num_classes}, "
            f"ignore_index={term.ignore_index}"
        )
        fix = f"the data needs num_classes={num_classes}, ignore_index={ignore_index}"
        raise ConfigError(f"{why}: {fix}", code="criterion-classes-differ")
    return Criterion((term,), (1.0,), (type(given).__name__,), num_classes, ignore_index)
