"""What is a term of the loss? A fraction whose numerator and denominator are sums over images.

For each term, with sums over the images of all micro-batches on all ranks:

    totals = sum of term.totals(...)                          # collected first; one all-reduce
    loss   = sum of term.sum(..., totals) / term.count(totals)

so that the loss and its gradient do not depend on how the batch was split.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Term:
    """One loss over the pixels whose label is not ``ignore_index``. Shapes: logits (N, C, H, W), target (N, H, W).

    logits: float32 or float64. target: any integer type, 0..C-1 or ``ignore_index``.
    class_weights: one number a class (empty: all 1), for the losses that are means over pixels.
    """

    num_classes: int
    ignore_index: int = 255
    class_weights: tuple[float, ...] = ()

    needs_logits: ClassVar[bool] = False  # do the totals depend on the logits, or on the labels alone?

    @property
    def size(self) -> int:
        """Length k of the totals."""
        raise NotImplementedError

    def totals(self, logits: Tensor | None, target: Tensor) -> Tensor:
        """float64 (k,), without gradient; adds up over images. logits is read only if ``needs_logits``."""
        raise NotImplementedError

    def sum(self, logits: Tensor, target: Tensor, totals: Tensor) -> Tensor:
        """Scalar share of the numerator, given the totals of the *whole* batch; value and gradient add up over images."""
        raise NotImplementedError

    def count(self, totals: Tensor) -> Tensor:
        """float64 scalar: the denominator; 0 if the whole batch is void (the sum is 0 then)."""
        return totals[0]

    def labels(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """(valid bool (N, H, W), index int64 (N, H, W)): void pixels get index 0, for which gather has a place."""
        valid = target != self.ignore_index
        return valid, target.long() * valid

    def pixel_weights(self, index: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Class weight of every pixel, or None where all are 1."""
        return vector(self.class_weights, index.device, dtype)[index] if self.class_weights else None


@functools.lru_cache(maxsize=64)
def vector(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """A constant on the device, copied there once and not in every step. Not to be written to."""
    with torch.inference_mode(False):  # an inference tensor in the cache could not be saved for a later backward
        return torch.tensor(values, device=device, dtype=dtype)


def add_up(size: int, index: Tensor, values: Tensor) -> Tensor:
    """float64 (size,): the sum of ``values`` at each index. Unlike bincount it never waits for a GPU."""
    zeros = torch.zeros(size, dtype=torch.float64, device=index.device)
    return zeros.index_add_(0, index.flatten(), values.flatten().double())


def negative_log_likelihood(logits: Tensor, index: Tensor) -> Tensor:
    """-log softmax(logits) of the class ``index``: (N, C, H, W), int64 (N, H, W) -> (N, H, W)."""
    return -F.log_softmax(logits, 1).gather(1, index[:, None])[:, 0]
