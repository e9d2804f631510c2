"""Bilinear upsampling of logits as two matrix products, and as tables.

Bilinear interpolation is separable: ``rows @ low @ columns``. As products, its gradient is a
product too. On a GPU, the gradient of torch's own function adds with atomics, so that its bits
differ from run to run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from segtrain.base.precision import tf32
from segtrain.losses.taps import AxisTaps, axis

Size = tuple[int, int]
Upsample = Callable[[Tensor, Size], Tensor]  # low-resolution logits (n, C, h, w) to (n, C, H, W)

# Cached for the ``owner`` of each upsampling until it is deleted.
_MATRICES: weakref.WeakKeyDictionary[Any, dict[Any, tuple[Tensor, Tensor]]] = (
    weakref.WeakKeyDictionary()
)
_AXES: weakref.WeakKeyDictionary[Any, dict[Any, tuple[AxisTaps, AxisTaps] | None]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True)
class Thinned:
    """``upsample`` to ``size``, of which only every ``stride``-th pixel in each direction is
    computed.

    first: row and column of the first pixel.
    """

    upsample: Upsample
    size: Size
    stride: int
    first: tuple[int, int]

    def __call__(self, low: Tensor, _: Size) -> Tensor:
        rows, columns = matrices(self, low, self.size)
        with tf32(False):
            return rows @ low.contiguous() @ columns


def owner(upsample: Upsample) -> Any:
    """What ``upsample`` is a method of, usually a model, or else itself. Results may be kept as
    long as it lives.
    """
    if isinstance(upsample, Thinned):
        return owner(upsample.upsample)
    return getattr(upsample, "__self__", upsample)


@torch.no_grad()
def matrices(upsample: Upsample, low: Tensor, size: Size) -> tuple[Tensor, Tensor]:
    """Matrices ``rows`` (H, h) and ``columns`` (w, W) with ``upsample(low, (H, W)) == rows @ low @
    columns``.
    """
    if isinstance(upsample, Thinned):
        rows, columns = matrices(upsample.upsample, low, upsample.size)
        top, left = upsample.first
        return rows[top :: upsample.stride], columns[:, left :: upsample.stride]
    kept = _MATRICES.setdefault(owner(upsample), {})
    key = (low.shape[-2:], size, low.dtype, low.device)
    if key not in kept:
        rows, columns = (
            torch.eye(side, dtype=low.dtype, device=low.device)[None] for side in low.shape[-2:]
        )
        rows = upsample(rows[..., None].expand(-1, -1, -1, low.shape[-1]), size)
        columns = upsample(columns[:, :, None].expand(-1, -1, low.shape[-2], -1), size)
        kept[key] = rows[0, :, :, 0].T.contiguous(), columns[0, :, 0].contiguous()
    return kept[key]


def by_products(upsample: Upsample, low: Tensor, size: Size) -> Tensor:
    """``upsample(low, size)`` as two products of matrices, in full float32 whatever train.precision
    is.

    Its gradient must be computed with TF32 off, too.
    """
    rows, columns = matrices(upsample, low, size)
    with tf32(False):
        return rows @ (low.contiguous() @ columns)


def axes(upsample: Upsample, low: Tensor, size: Size) -> tuple[AxisTaps, AxisTaps] | None:
    """Tables of ``upsample(low, size)`` along the rows and along the columns, on the device of
    ``low``.

    None if it is not bilinear. Waits for the GPU once per shape, and if it is thinned, once per
    first pixel.
    """
    kept = _AXES.setdefault(owner(upsample), {})
    thinned = (
        (upsample.size, upsample.stride, upsample.first) if isinstance(upsample, Thinned) else None
    )
    key = (low.shape[-2:], size, low.device, thinned)
    if key not in kept:
        rows, columns = matrices(upsample, low[:0].float(), size)
        found = axis(rows, low.device), axis(columns.T, low.device)
        kept[key] = None if found[0] is None or found[1] is None else (found[0], found[1])
    return kept[key]
