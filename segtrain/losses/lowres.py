"""Memory-efficient loss: full-size logits are in memory for a few images at a time, or never.

For a whole batch, logits, log-probabilities, and gradient would be three tensors of N * C * H * W
floats. But the loss is a sum over images (see ``losses.term``), so the forward pass takes a few
images at a time (``term.parts``): it computes the gradient with respect to the low-resolution
logits, and frees the full-size tensors. Nothing is approximated. On a GPU, kernels may take the
place of the full-size tensors (``losses.lowlogits``).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from segtrain.base.precision import tf32
from segtrain.losses import ways
from segtrain.losses.criterion import Criterion
from segtrain.losses.lowlogits import LowLogits
from segtrain.losses.term import Logits, at_least_float32, check_shapes, parts, without_autocast
from segtrain.losses.upsampling import Upsample, axes, by_products

MAPS = 64  # bytes per pixel of the maps of LowLogits and of what the terms make of them, about


def low_res_loss(
    criterion: Criterion,
    low: Tensor,
    target: Tensor,
    totals: Tensor,
    upsample: Upsample,
    way: str = "direct",
) -> Tensor:
    """criterion.loss(upsample(low, (H, W)), target, totals), with full-size tensors for a few
    images at a time.

    low: (N, C, h, w), upsampled in float32 if it comes in half precision. target: integers (N, H,
    W). upsample: a pure function of (n, C, h, w) and (H, W), the same for each image. way: a value
    of ``loss.upsample``. The result is a float64 scalar with gradient for ``low``; it cannot be
    differentiated twice. Under torch.no_grad, only the value is computed.
    """
    way = _chosen(criterion, low, target, upsample, way)
    if low.requires_grad and torch.is_grad_enabled():
        return _PartByPart.apply(low, criterion, target, totals, upsample, way)
    split = _parts(low, target, way)
    shares = [
        criterion.loss(_logits(criterion, low[p], target[p], upsample, way), target[p], totals)
        for p in split
    ]
    return torch.stack(shares).sum() if shares else totals.new_zeros(())


@torch.no_grad()
def low_res_totals(
    criterion: Criterion, low: Tensor, target: Tensor, upsample: Upsample, way: str = "direct"
) -> Tensor:
    """criterion.totals(upsample(low, (H, W)), target), float64 (size,), one part of the batch at a
    time.
    """
    if not criterion.needs_logits:
        return criterion.totals(None, target)
    way = _chosen(criterion, low, target, upsample, way)
    totals = torch.zeros(criterion.size, dtype=torch.float64, device=low.device)
    for p in _parts(low, target, way):
        totals += criterion.totals(_logits(criterion, low[p], target[p], upsample, way), target[p])
    return totals


def _chosen(criterion: Criterion, low: Tensor, target: Tensor, upsample: Upsample, way: str) -> str:
    if not len(low):
        return "direct"
    return ways.chosen(
        way, criterion, low, target, upsample, partial(_gradient, criterion, low, target, upsample)
    )


def _gradient(
    criterion: Criterion, low: Tensor, target: Tensor, upsample: Upsample, way: str
) -> Tensor:
    """The gradient of the loss as a step on this part of the batch alone computes it."""
    low = low.detach().requires_grad_()
    totals = low_res_totals(criterion, low, target, upsample, way)
    with torch.enable_grad():
        return torch.autograd.grad(
            low_res_loss(criterion, low, target, totals, upsample, way), low
        )[0]


def _parts(low: Tensor, target: Tensor, way: str) -> list[slice]:
    number = MAPS if way == "fused" else low.shape[1] * at_least_float32(low[:0]).element_size()
    return parts(len(low), number * target.shape[-2] * target.shape[-1], low.device)


def _logits(
    criterion: Criterion, low: Tensor, target: Tensor, upsample: Upsample, way: str
) -> Logits:
    """Logits of full size."""
    size = (target.shape[-2], target.shape[-1])
    if way == "fused":
        check_shapes(criterion.num_classes, low[..., :1, :1].expand(-1, -1, *size), target)
        tables = axes(upsample, low, size)
        assert tables is not None  # or this way would not have been chosen
        return LowLogits(low, target, criterion.ignore_index, tables)
    with without_autocast(low):
        low = at_least_float32(low)
        return by_products(upsample, low, size) if way == "products" else upsample(low, size)


class _PartByPart(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        low: Tensor,
        criterion: Criterion,
        target: Tensor,
        totals: Tensor,
        upsample: Upsample,
        way: str,
    ) -> Tensor:
        # The gradients are in float32 even if low is float16. The loss scale is applied later, so
        # small gradients would round to 0 in float16.
        slopes = torch.empty_like(low, dtype=torch.promote_types(low.dtype, torch.float32))
        value = torch.zeros((), dtype=torch.float64, device=low.device)
        for part in _parts(low, target, way):
            with torch.enable_grad():
                small = (
                    at_least_float32(low[part].detach()).requires_grad_()
                    if way != "fused"
                    else low[part]
                )
                logits = _logits(criterion, small, target[part], upsample, way)
                share = criterion.loss(logits, target[part], totals)
            if isinstance(logits, LowLogits):
                slopes[part] = logits.gradient(share)
            else:
                with tf32(False):  # the gradient of upsampling may be a product
                    slopes[part] = torch.autograd.grad(share, small)[0]
            value += share.detach()
        ctx.save_for_backward(slopes)
        ctx.dtype = low.dtype
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (slopes,) = ctx.saved_tensors
        return (slopes * slope.to(slopes.dtype)).to(ctx.dtype), None, None, None, None, None
