"""Batch norm whose statistics span all ranks, by sums alone: for the CPU and SMDDP, where torch's
has no kernel.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from segtrain.parallel.collective import all_reduce


class _AllReduceSum(torch.autograd.Function):
    """Sum over ranks, differentiable: the gradient of a sum over ranks is the sum of the ranks'
    gradients.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone()
        all_reduce(total)
        # Autograd adds its graph to the clone, not to ``total``, which all_reduce keeps alive.
        return total.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone()
        all_reduce(total)
        return total


class SyncBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d over (N, H, W) of all ranks together; same parameters and buffers as
    nn.BatchNorm2d.

    Input (N, C, H, W). Sums are taken in float64 when the input is float64, else float32.
    """

    def forward(self, images: Tensor) -> Tensor:
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(images)
        wide = images if images.dtype == torch.float64 else images.float()
        count = torch.full(
            (1,), images.numel() / images.shape[1], dtype=wide.dtype, device=images.device
        )
        dims = (0, 2, 3)
        total = _AllReduceSum.apply(torch.cat([wide.sum(dims), count]))
        mean = total[:-1] / total[-1]
        centered = wide - mean[:, None, None]
        # Two passes: E[x^2] - E[x]^2 would lose digits where the mean is large.
        variance = _AllReduceSum.apply(centered.square().sum(dims)) / total[-1]
        if (
            self.track_running_stats
            and self.running_mean is not None
            and self.running_var is not None
        ):
            self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
            momentum = self.momentum
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)  # type: ignore[arg-type]
            with torch.no_grad():
                n = total[-1]
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
                self.running_var.lerp_(
                    (variance * n / (n - 1).clamp(min=1)).to(self.running_var.dtype), momentum
                )
        normal = centered * torch.rsqrt(variance + self.eps)[:, None, None]
        if self.weight is not None:
            normal = normal * self.weight[:, None, None] + self.bias[:, None, None]
        return normal.to(images.dtype)


def convert(model: nn.Module) -> nn.Module:
    """Make every nn.BatchNorm2d a SyncBatchNorm2d, in place; returns the model."""
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SyncBatchNorm2d  # Both classes have the same state.
    return model
