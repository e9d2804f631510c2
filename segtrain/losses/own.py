"""Adapter for a loss written in Python: any callable that returns a mean over pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from segtrain.errors import ConfigError
from segtrain.losses.criterion import Criterion
from segtrain.losses.term import Term

Mean = Callable[[Tensor, Tensor], Tensor]  # logits (N, C, H, W), target int64 (N, H, W) -> scalar


@dataclass(frozen=True)
class OwnLoss(Term):
    """A mean over the valid pixels of a micro-batch, weighted by their number.

    If ``mean`` is a mean over the pixels whose label is not ``ignore_index``, the value and the gradient are those of
    the global batch on any number of ranks and micro-batches. Any other mean (Dice of a batch, say) is averaged over
    micro-batches.
    """

    mean: Mean = None  # type: ignore[assignment]

    def numerator(self, logits: Tensor, target: Tensor, totals: Tensor) -> Tensor:
        valid = int((target != self.ignore_index).sum())
        # Without a valid pixel the mean is 0 / 0, whose gradient no factor removes. A GPU is waited for here.
        if not valid:
            return logits.sum() * 0.0
        # Asked first, because a GPU has no error for a class out of bounds that Python could catch.
        if valid < target.numel() and getattr(self.mean, "ignore_index", self.ignore_index) != self.ignore_index:
            raise self._counts_void()
        try:
            mean = self.mean(logits, target.long())
        except IndexError as error:
            if str(self.ignore_index) in str(error):
                raise self._counts_void() from error
            raise
        if isinstance(mean, Tensor) and logits.requires_grad and not mean.requires_grad:
            raise ConfigError(
                "the criterion returned a number without a gradient: compute it from the logits, without detach(), "
                "item(), argmax(), or torch.no_grad()",
                code="criterion-detached",
            )
        if not isinstance(mean, Tensor) or mean.numel() != 1:
            found = tuple(mean.shape) if isinstance(mean, Tensor) else type(mean).__name__
            raise ConfigError(
                f"the criterion returned {found}: it must return one number, the mean over the valid pixels",
                code="criterion-output-shape",
                found=found,
            )
        return mean.reshape(()).double() * valid

    def _counts_void(self) -> ConfigError:
        return ConfigError(
            "the criterion does not ignore void pixels, which are in masks and around an image smaller than its crop: "
            f"let it ignore the target data.ignore_index={self.ignore_index}, as nn.CrossEntropyLoss(ignore_index="
            f"{self.ignore_index}) does",
            code="criterion-counts-void",
            ignore_index=self.ignore_index,
        )


def as_criterion(given: Any, num_classes: int, ignore_index: int) -> Criterion:
    """A ``Criterion`` itself, one of the package's losses, or any callable (logits, target) -> mean over valid pixels.

    The package's losses are fractions of sums, so they are exact on any number of ranks and micro-batches.
    """
    if isinstance(given, Criterion):
        return given
    term = given if isinstance(given, Term) else OwnLoss(num_classes, ignore_index, mean=given)
    if (term.num_classes, term.ignore_index) != (num_classes, ignore_index):
        raise ConfigError(
            f"{type(given).__name__} has num_classes={term.num_classes}, ignore_index={term.ignore_index}: the data "
            f"needs num_classes={num_classes}, ignore_index={ignore_index}",
            code="criterion-classes-differ",
            found=term.num_classes,
            expected=num_classes,
        )
    return Criterion((term,), (1.0,), (type(given).__name__,), num_classes, ignore_index)
