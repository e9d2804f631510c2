"""Base class of the losses: a fraction whose numerator and denominator are sums over images.

Each loss is computed in two steps, with sums over the images of all micro-batches on all ranks:

    totals = sum of loss.totals(...)                          # collected first, by one all-reduce
    value  = sum of loss.numerator(..., totals) / loss.denominator(totals)

So the value and its gradient do not depend on how the batch is split.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from segtrain.base import bins
from segtrain.errors import ConfigError, DataError
from segtrain.losses.lowlogits import LowLogits

AT_ONCE = 512 << 20  # bytes of full-size logits of a part, on a GPU

Logits = Union[Tensor, LowLogits]  # (N, C, H, W)


@dataclass(frozen=True)
class Term:
    """A loss over the pixels whose label is not ``ignore_index``. Call it for the mean over a
    batch.

    num_classes: number of classes C.
    ignore_index: label of void pixels, which have no effect.

    Shapes: logits (N, C, H, W), target (N, H, W).
    logits: any float type. Half precision is computed in float32, also under autocast; float64
    stays float64. target: any integer type, with class ids 0..C-1 or ``ignore_index``.
    """

    num_classes: int
    ignore_index: int = 255

    # Whether the totals depend on the logits, or on the labels alone.
    needs_logits: ClassVar[bool] = False
    # Whether ``totals`` and ``numerator`` also take LowLogits: they read logits only by the
    # functions at the end below.
    fused: ClassVar[bool] = False

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a batch: a scalar with gradient, float64 for float64 logits and float32
        otherwise.

        It is 0 if every pixel is void. Raises DataError if the shapes do not fit.
        """
        total, count = self.sum_and_count(logits, target)
        return (total / torch.where(count > 0, count, 1.0)).to(
            torch.promote_types(logits.dtype, torch.float32)
        )

    def sum_and_count(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The sum (with gradient) and the count whose quotient is the mean: float64 scalars, both 0
        if all is void.

        The count is what the loss is a mean over: pixels or their class weights (cross-entropy,
        focal), kept pixels (OHEM), classes (Dice, Jaccard, Tversky), or images (Lovasz).
        """
        check_shapes(self.num_classes, logits, target)
        totals = batch_totals(self, logits, target)
        with without_autocast(logits):
            return self.numerator(
                at_least_float32(logits), target, totals
            ).double(), self.denominator(totals)

    @property
    def size(self) -> int:
        """Length k of the totals."""
        return 1

    def totals(self, logits: Logits | None, target: Tensor) -> Tensor:
        """Sums over these images, float64 (k,), without gradient. ``logits`` is read only if
        ``needs_logits``.

        In this base class: the number of valid pixels.
        """
        return (target != self.ignore_index).sum(dtype=torch.float64)[None]

    def numerator(self, logits: Any, target: Tensor, totals: Tensor) -> Tensor:
        """These images' share of the numerator: a scalar whose value and gradient add up over
        images.

        logits: float32 or float64, or LowLogits if ``fused``. totals: those of the *whole* batch.
        """
        raise NotImplementedError

    def denominator(self, totals: Tensor) -> Tensor:
        """The denominator, a float64 scalar. If the whole batch is void, it is 0, as is the
        numerator.
        """
        return totals[0]

    def labels(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Which pixels are valid, bool (N, H, W), and their class ids, int64 (N, H, W).

        Void pixels get id 0, which gather accepts.
        """
        valid = target != self.ignore_index
        return valid, target.long() * valid


@dataclass(frozen=True)
class WeightedTerm(Term):
    """A loss that is a mean over pixels, each weighted by its class.

    class_weights: one number per class, as a sequence or a tensor (C,); empty: all 1.
    """

    class_weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.class_weights):
            object.__setattr__(
                self, "class_weights", checked_weights(self.class_weights, self.num_classes)
            )

    def totals(self, logits: Logits | None, target: Tensor) -> Tensor:
        """The sum of the class weights of the valid pixels."""
        valid, index = self.labels(target)
        weights = self.pixel_weights(index, torch.float32)
        return (valid if weights is None else weights * valid).sum(dtype=torch.float64)[None]

    def pixel_weights(self, index: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Class weight of every pixel, or None where all are 1."""
        return (
            vector(self.class_weights, index.device, dtype)[index] if self.class_weights else None
        )


def checked_weights(
    values: Union[Sequence[float], Tensor], num_classes: int, key: str = "class_weights"
) -> tuple[float, ...]:
    """Class weights rounded to float32, so that numerator and denominator use the same numbers.
    Raises ConfigError.
    """
    weights = tuple(torch.as_tensor(values, dtype=torch.float32).detach().cpu().tolist())
    if len(weights) != num_classes:
        why = (
            f"{key} has {len(weights)} numbers for {num_classes} classes: give one number per class"
        )
        raise ConfigError(why, code="class-weights-count")
    if not all(math.isfinite(value) and value >= 0 for value in weights) or not any(weights):
        why = f"{key}={list(weights)}: each must be finite and at least 0, and at least one above 0"
        raise ConfigError(why, code="class-weights-value")
    return weights


def check_shapes(num_classes: int, logits: Tensor | None, target: Tensor) -> None:
    """Raises DataError unless target is integers (N, H, W) and logits, if given, are (N, C, H,
    W).
    """
    if target.dim() != 3 or target.is_floating_point():
        why = (
            f"the target of a loss is {target.dtype} {tuple(target.shape)}: it must be integer "
            "class ids (N, H, W)"
        )
        raise DataError(why, code="target-not-class-ids")
    if logits is None:
        return
    found, expected = tuple(logits.shape), (len(target), num_classes, *target.shape[1:])
    if found != expected:
        fix = (
            "upsample them to the target"
            if found[1:2] == (num_classes,)
            else "give one channel per class"
        )
        why = f"the loss got logits of shape {found} instead of {expected}: {fix}"
        raise DataError(why, code="logits-shape", found=found, expected=expected)


@torch.no_grad()
def batch_totals(term: Term, logits: Logits | None, target: Tensor) -> Tensor:
    """term.totals of a batch: float64 (k,).

    Logits are read in ``parts``, so that the probabilities of the whole batch are never in memory.
    """
    if not term.needs_logits:
        return term.totals(None, target)
    assert logits is not None
    if isinstance(logits, LowLogits):
        return term.totals(logits, target)
    totals = torch.zeros(term.size, dtype=torch.float64, device=target.device)
    size = logits[:1].numel() * at_least_float32(logits[:0]).element_size()
    for part in parts(len(target), size, target.device):
        with without_autocast(target):
            totals += term.totals(at_least_float32(logits[part]), target[part])
    return totals


def parts(images: int, size: int, device: torch.device) -> list[slice]:
    """Parts of a batch whose full-size logits are in memory at the same time; ``size``: their bytes
    for one image.

    On a CPU one image each, which stays in its caches. On a GPU as many as fit AT_ONCE bytes,
    because each part costs the launches of all its kernels.
    """
    step = 1 if device.type == "cpu" else max(1, AT_ONCE // max(1, size))
    return [slice(first, min(images, first + step)) for first in range(0, images, step)]


def at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def without_autocast(tensor: Tensor) -> contextlib.AbstractContextManager[None]:
    """Turn autocast off, so that losses are computed in the precision of their input (float32 or
    float64).
    """
    return torch.autocast(tensor.device.type, enabled=False)


@functools.lru_cache(maxsize=64)
def vector(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """A constant on the device, copied there once instead of in every step. Do not write to it."""
    # Inference mode is off: training may use the cached tensor later, and autograd cannot save
    # inference tensors.
    with torch.inference_mode(False):
        return torch.tensor(values, device=device, dtype=dtype)


def add_up(size: int, index: Tensor, values: Tensor) -> Tensor:
    """float64 (size,): the sum of ``values`` at each index. Unlike bincount it never waits for a
    GPU.
    """
    return bins.add_up(size, index.flatten(), values.flatten().double())


# What losses read of logits. ``index``, int64 (N, H, W): the labels of ``Term.labels``.


def negative_log_likelihood(logits: Logits, index: Tensor) -> Tensor:
    """-log p of the label of each pixel (N, H, W)."""
    if isinstance(logits, LowLogits):
        return logits.nll()
    return -F.log_softmax(logits, 1).gather(1, index[:, None])[:, 0]


def sum_of_nll(logits: Logits, factors: Tensor) -> Tensor:
    """The sum over the classes of factor * -log p (N, H, W). factors: (C,)."""
    if isinstance(logits, LowLogits):
        return logits.sum_nll(factors)
    return -(F.log_softmax(logits, 1) * factors[:, None, None]).sum(1)


def true_and_sum_of_p(logits: Logits, index: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """p of the label, and the sum over the classes of factor * p: (N, H, W) each. factors: (C,)."""
    if isinstance(logits, LowLogits):
        return torch.exp(-logits.nll()), logits.sum_p(factors)
    probs = logits.softmax(1)
    return probs.gather(1, index[:, None])[:, 0], (
        probs * factors.to(probs.dtype)[:, None, None]
    ).sum(1)


def class_sums(logits: Logits, index: Tensor, valid: Tensor) -> Tensor:
    """float64 (3, C), over the valid pixels: the sum of p where it is the label's, the sum of p,
    and their number.
    """
    if isinstance(logits, LowLogits):
        return logits.class_sums()
    probs, classes = logits.detach().softmax(1), logits.shape[1]
    true = probs.gather(1, index[:, None])[:, 0] * valid
    mass = (probs * valid[:, None]).sum((0, 2, 3), dtype=torch.float64)
    return torch.stack([add_up(classes, index, true), mass, add_up(classes, index, valid)])
