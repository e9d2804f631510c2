"""Memory-efficient loss: upsamples a few images at a time, so that full-size logits are never all in memory.

For a whole batch, logits, log-probabilities, and gradient would be three tensors of N * C * H * W floats. But the loss
is a sum over images (see ``losses.term``), so the forward pass takes a few images at a time (``term.parts``): it
computes the gradient with respect to the low-resolution logits, and frees the full-size tensors. Nothing is
approximated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from segtrain.losses.criterion import Criterion
from segtrain.losses.term import at_least_float32, parts, without_autocast
from segtrain.losses.upsampling import Upsample
from segtrain.precision import tf32


def low_res_loss(criterion: Criterion, low: Tensor, target: Tensor, totals: Tensor, upsample: Upsample) -> Tensor:
    """criterion.loss(upsample(low, (H, W)), target, totals), with full-size tensors for a few images at a time.

    low: (N, C, h, w), upsampled in float32 if it comes in half precision. target: integers (N, H, W). upsample: a pure
    function of (n, C, h, w) and (H, W), the same for each image. The result is a float64 scalar with gradient for
    ``low``; it cannot be differentiated twice. Under torch.no_grad, only the value is computed.
    """
    if low.requires_grad and torch.is_grad_enabled():
        return _PartByPart.apply(low, criterion, target, totals, upsample)
    shares = [criterion.loss(*_full(low, target, part, upsample), totals) for part in _parts(low, target)]
    return torch.stack(shares).sum() if shares else totals.new_zeros(())


@torch.no_grad()
def low_res_totals(criterion: Criterion, low: Tensor, target: Tensor, upsample: Upsample) -> Tensor:
    """criterion.totals(upsample(low, (H, W)), target), float64 (size,), one part of the batch at a time."""
    if not criterion.needs_logits:
        return criterion.totals(None, target)
    totals = torch.zeros(criterion.size, dtype=torch.float64, device=low.device)
    for part in _parts(low, target):
        totals += criterion.totals(*_full(low, target, part, upsample))
    return totals


def _parts(low: Tensor, target: Tensor) -> list[slice]:
    numbers = low.shape[1] * target.shape[-2] * target.shape[-1]
    return parts(len(low), numbers * at_least_float32(low[:0]).element_size(), low.device)


def _full(low: Tensor, target: Tensor, part: slice, upsample: Upsample) -> tuple[Tensor, Tensor]:
    with without_autocast(low):
        return upsample(at_least_float32(low[part]), (target.shape[-2], target.shape[-1])), target[part]


class _PartByPart(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, low: Tensor, criterion: Criterion, target: Tensor, totals: Tensor, upsample: Upsample
    ) -> Tensor:
        # The gradients are in float32 even if low is float16. The loss scale is applied later, so small gradients would
        # round to 0 in float16.
        slopes = torch.empty_like(low, dtype=torch.promote_types(low.dtype, torch.float32))
        value = torch.zeros((), dtype=torch.float64, device=low.device)
        for part in _parts(low, target):
            with torch.enable_grad():
                small = at_least_float32(low[part].detach()).requires_grad_()
                share = criterion.loss(*_full(small, target[part], slice(None), upsample), totals)
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
        return (slopes * slope.to(slopes.dtype)).to(ctx.dtype), None, None, None, None
