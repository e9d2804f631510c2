"""Bilinear upsampling of logits as two matrix products, and the choice between it and the network's own function.

Bilinear interpolation is separable: ``rows @ low @ columns``. As products, its gradient is a product too. On a GPU, the
gradient of torch's own function adds with atomics, so that its bits differ from run to run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from segtrain.precision import tf32

Size = tuple[int, int]
Upsample = Callable[[Tensor, Size], Tensor]  # low-resolution logits (n, C, h, w) to (n, C, H, W)

TOLERANCE = 1e-4  # of the products, relative to the largest value; float32 rounding stays below 1e-6
REPEATS = 3  # timings of each way

# Cached for each model until it is deleted. ``upsample`` is a bound method of the model.
_MATRICES: weakref.WeakKeyDictionary[Any, dict[Any, tuple[Tensor, Tensor]]] = weakref.WeakKeyDictionary()
_CHOICES: weakref.WeakKeyDictionary[Any, dict[Any, bool]] = weakref.WeakKeyDictionary()


@torch.no_grad()
def matrices(upsample: Upsample, low: Tensor, size: Size) -> tuple[Tensor, Tensor]:
    """Matrices ``rows`` (H, h) and ``columns`` (w, W) with ``upsample(low, (H, W)) == rows @ low @ columns``.

    With some of their rows and columns, only the wanted pixels are computed.
    """
    kept = _MATRICES.setdefault(getattr(upsample, "__self__", upsample), {})
    key = (low.shape[-2:], size, low.dtype, low.device)
    if key not in kept:
        rows, columns = (torch.eye(side, dtype=low.dtype, device=low.device)[None] for side in low.shape[-2:])
        rows = upsample(rows[..., None].expand(-1, -1, -1, low.shape[-1]), size)
        columns = upsample(columns[:, :, None].expand(-1, -1, low.shape[-2], -1), size)
        kept[key] = rows[0, :, :, 0].T.contiguous(), columns[0, :, 0].contiguous()
    return kept[key]


def by_products(upsample: Upsample, low: Tensor, size: Size) -> Tensor:
    """``upsample(low, size)`` as two products of matrices, in full float32 whatever train.precision is.

    Its gradient must be computed with TF32 off, too.
    """
    rows, columns = matrices(upsample, low, size)
    with tf32(False):
        return rows @ (low.contiguous() @ columns)


def chosen(upsample: Upsample, way: str) -> Upsample:
    """``upsample`` as ``loss.upsample`` says: products, direct, or auto.

    auto: direct on a CPU; on a GPU products with deterministic kernels, otherwise the faster of the two, which is
    measured once per shape.
    """
    if way == "direct":
        return upsample
    kept = _CHOICES.setdefault(getattr(upsample, "__self__", upsample), {})

    def picked(low: Tensor, size: Size) -> Tensor:
        if way == "auto" and not low.is_cuda:
            return upsample(low, size)
        deterministic = torch.are_deterministic_algorithms_enabled()
        key = (low.shape, size, low.dtype, low.device, deterministic)
        if way == "auto" and key not in kept:
            kept[key] = _products_win(upsample, low, size, timed=not deterministic)
        return by_products(upsample, low, size) if way == "products" or kept[key] else upsample(low, size)

    return picked


def _products_win(upsample: Upsample, low: Tensor, size: Size, timed: bool = True) -> bool:
    """Whether the products give what the network's function gives, on the first image, and, if ``timed``, sooner.

    Forward and backward pass are timed on this GPU. Waits for it.
    """
    with torch.no_grad():
        expected = upsample(low[:1], size)
        apart = (by_products(upsample, low[:1], size) - expected).abs()
        error, largest = torch.stack([apart.max(), expected.abs().max()]).tolist()
    if not error <= TOLERANCE * largest:
        return False
    ways: list[Upsample] = [upsample, lambda part, to: by_products(upsample, part, to)]
    took = []
    for way in ways if timed else ():
        times = []
        for _ in range(1 + REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with torch.enable_grad(), tf32(False):
                small = low.detach().requires_grad_()
                begin.record()
                full = way(small, size)
                torch.autograd.grad(full, small, full.detach())
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        took.append(min(times[1:]))  # without the first, which loads kernels
    return not timed or took[1] < took[0]
