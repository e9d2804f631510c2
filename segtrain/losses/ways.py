"""The ways from low-resolution logits to a loss (``loss.upsample``); the fastest is found once per
shape.

direct: the network's own upsampling. products: upsampling as two matrix products
(``losses.upsampling``). fused: kernels that need no logits of full size (``losses.lowlogits``).
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from segtrain import kernels
from segtrain.errors import ConfigError
from segtrain.losses.criterion import Criterion
from segtrain.losses.lowlogits import LowLogits
from segtrain.losses.term import (
    Logits,
    at_least_float32,
    class_sums,
    negative_log_likelihood,
    sum_of_nll,
    true_and_sum_of_p,
    without_autocast,
)
from segtrain.losses.upsampling import Upsample, axes, by_products, owner

REPEATS = 3  # timings of each way

# Cached for the ``owner`` of each upsampling until it is deleted.
_CHOSEN: weakref.WeakKeyDictionary[Any, dict[Hashable, str]] = weakref.WeakKeyDictionary()


def chosen(
    wanted: str,
    criterion: Criterion,
    low: Tensor,
    target: Tensor,
    upsample: Upsample,
    trial: Callable[[str], object],
) -> str:
    """direct, products, or fused, as ``loss.upsample`` says.

    auto: direct on a CPU. On a GPU, those that give what the network's own upsampling gives are
    timed, once per shape, with ``trial(way)``, which computes the loss and its gradient. With
    deterministic kernels, nothing is timed: it is fused, else products. Raises ConfigError if fused
    is wanted and impossible.
    """
    if wanted in ("direct", "products"):
        return wanted
    if wanted == "auto" and not low.is_cuda:
        return "direct"
    kept = _CHOSEN.setdefault(owner(upsample), {})
    deterministic = torch.are_deterministic_algorithms_enabled()
    key = (wanted, criterion, low.shape, target.shape, low.dtype, low.device, deterministic)
    if key not in kept:
        fault = fused_fault(criterion, low, target, upsample)
        if wanted == "fused":
            _refuse(fault)
        elif fault:
            text = f"loss.upsample=auto leaves out the fused loss: {fault}"
            warnings.warn(text, kernels.UnusedKernels, stacklevel=2)
        right = [] if fault else ["fused"]
        if wanted == "auto":
            right += ["products"] if products_agree(upsample, low, target) else []
            right += ["direct"]
        timed = len(right) > 1 and not deterministic
        kept[key] = min(right, key=lambda way: _took(trial, way)) if timed else right[0]
    return kept[key]


def refuse_fused(criterion: Criterion, device: torch.device) -> None:
    """Raise ConfigError if the loss cannot be fused on ``device``, whatever the logits."""
    _refuse(unavailable(criterion, device))


def _refuse(fault: str) -> None:
    if fault:
        raise ConfigError(
            f"loss.upsample=fused: {fault}: use loss.upsample=auto",
            code="fused-loss",
            key="loss.upsample",
        )


def unavailable(criterion: Criterion, device: torch.device) -> str:
    """Why the loss cannot be fused on ``device``, or ""."""
    if criterion.fused:
        return kernels.unavailable(device)
    names = [name for name, term in zip(criterion.names, criterion.terms) if not term.fused]
    return f"it has no kernels for {' + '.join(names)}"


@torch.no_grad()
def products_agree(upsample: Upsample, low: Tensor, target: Tensor) -> bool:
    """Whether the products give what the network's upsampling gives, for the first image. Waits for
    the GPU.
    """
    first, size = at_least_float32(low[:1].detach()), (target.shape[-2], target.shape[-1])
    with without_autocast(low):
        return _agree([(by_products(upsample, first, size), upsample(first, size))], 1e-4)


def fused_fault(criterion: Criterion, low: Tensor, target: Tensor, upsample: Upsample) -> str:
    """Why the loss of these logits cannot be fused, or "". Compares it for the first image. Waits
    for the GPU.
    """
    why = unavailable(criterion, low.device)
    if why:
        return why
    if low.dtype == torch.float64 or max(low[:1].numel(), target[:1].numel()) >= 2**31:
        return (
            "it takes up to 2^31 numbers per image, not of float64: the logits are "
            f"{low.dtype} {tuple(low.shape)}"
        )
    size = (target.shape[-2], target.shape[-1])
    tables = axes(upsample, low, size)
    if tables is None or not products_agree(upsample, low, target):
        return "the upsampling of the network is not bilinear"
    small = low[:1].detach().float().requires_grad_()
    try:
        with torch.enable_grad(), without_autocast(low):
            logits = LowLogits(low[:1], target[:1], criterion.ignore_index, tables)
            found, value = _read(logits, criterion, target[:1])
            expected, true = _read(upsample(small, size), criterion, target[:1])
            (slope,) = torch.autograd.grad(true, small)
            right = _agree(list(zip([*found, logits.gradient(value)], [*expected, slope])), 1e-3)
    except Exception as error:  # of Triton, which needs a C compiler, a driver that fits, ...
        return f"its kernels do not run here ({type(error).__name__}: {error})"
    return "" if right else "its kernels give other values than the plain loss on this GPU"


def _read(logits: Logits, criterion: Criterion, target: Tensor) -> tuple[list[Tensor], Tensor]:
    """Everything that a loss may read of ``logits``, and a scalar made of it that has a
    gradient.
    """
    valid, index = criterion.terms[0].labels(target)
    factors = torch.linspace(-1, 1, criterion.num_classes, device=target.device)
    _, mean = true_and_sum_of_p(logits, index, factors)
    maps = [
        torch.where(valid, negative_log_likelihood(logits, index), 0.0),
        mean,
        sum_of_nll(logits, factors),
    ]
    return [class_sums(logits, index, valid), *(each.detach() for each in maps)], torch.stack(
        maps
    ).sum()


def _agree(pairs: list[tuple[Tensor, Tensor]], tolerance: float) -> bool:
    """Whether the tensors of each pair differ by at most ``tolerance`` of the second one's largest
    value.
    """
    numbers = [
        number.abs().max().double()
        for found, expected in pairs
        for number in (found - expected, expected)
    ]
    values = torch.stack(numbers).tolist()
    return all(apart <= tolerance * largest for apart, largest in zip(values[::2], values[1::2]))


def _took(trial: Callable[[str], object], way: str) -> float:
    """Milliseconds of ``trial(way)``, the least of a few."""
    times = []
    for _ in range(1 + REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        trial(way)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return min(times[1:])  # without the first, which loads kernels
