"""Layers that several networks share, and exact rewrites of slow operations.

A rewrite has the same parameters, values, and gradients with less computation. It is an algebraic
identity, equal to the plain form up to rounding (1e-12 in float64, tested), and built from
differentiable operations.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segtrain.models.fused import FusedBatchNorm2d


def norm_act(
    norm: nn.Module, activation: nn.Module | None, x: Tensor, residual: Tensor | None = None
) -> Tensor:
    """``activation(norm(x) + residual)``, in one pass where ``norm`` has a kernel for it."""
    relu = isinstance(activation, nn.ReLU)
    if isinstance(norm, FusedBatchNorm2d):
        x = norm(x, residual, relu)
        return x if relu or activation is None else activation(x)
    x = norm(x)
    x = x if residual is None else x.add_(residual)
    return x if activation is None else activation(x)


class ConvNorm(nn.Sequential):
    """A convolution, batch norm and, as a third layer, an activation."""

    def forward(self, x: Tensor) -> Tensor:
        return norm_act(self[1], self[2] if len(self) > 2 else None, self[0](x))


def conv_bn(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, relu: bool = True
) -> ConvNorm:
    """Convolution without bias, batch norm and, unless ``relu`` is false, ReLU."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return ConvNorm(*layers, *([nn.ReLU(inplace=True)] if relu else []))


def doubled_kernel(weight: Tensor) -> Tensor:
    """Kernel (I, O, 4, 4) of a transposed convolution that replaces nearest upsampling x2 and a 3x3
    convolution.

    The transposed convolution has stride 2 and padding 1. weight: (O, I, 3, 3) of the convolution,
    with padding 1.

    Under nearest upsampling an input pixel becomes a 2x2 block. So its contribution to the output
    is the sum of the four one-pixel shifts of the flipped 3x3 kernel: 16 numbers instead of 4 x 9,
    and 16 multiplications instead of 36 per pixel and pair of channels. At the border both forms
    read zeros in the same places.
    """
    flipped = weight.flip(2, 3).transpose(0, 1)
    rows = F.pad(flipped, (0, 0, 1, 0)) + F.pad(flipped, (0, 0, 0, 1))
    return F.pad(rows, (1, 0, 0, 0)) + F.pad(rows, (0, 1, 0, 0))


def upsample_conv(x: Tensor, skip: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``conv3x3(cat([nearest_x2(x), skip]))`` with padding 1, without storing upsampled or
    concatenated tensors.

    x: (N, I, h, w). skip: (N, S, 2h, 2w) or None. weight: (O, I + S, 3, 3). bias: (O,) or None.
    Returns (N, O, 2h, 2w).
    """
    inputs = x.shape[1]
    if skip is None:
        return F.conv_transpose2d(x, doubled_kernel(weight), bias, stride=2, padding=1)
    out = F.conv_transpose2d(x, doubled_kernel(weight[:, :inputs]), stride=2, padding=1)
    return out.add_(F.conv2d(skip, weight[:, inputs:], bias, padding=1))


def grid_means(x: Tensor, bins: int) -> Tensor:
    """``F.adaptive_avg_pool2d(x, bins)`` from means over slices, whose gradient is deterministic on
    CUDA.

    x: (N, C, H, W). Returns (N, C, bins, bins). Bin k covers the rows from floor(k H / bins) to
    ceil((k + 1) H / bins), exclusive, and the same for columns. Neighboring bins may overlap.
    """
    for axis in (2, 3):
        size = x.shape[axis]
        ends = [(k * size // bins, -(-(k + 1) * size // bins)) for k in range(bins)]
        x = torch.stack(
            [x.narrow(axis, first, last - first).mean(axis) for first, last in ends], axis
        )
    return x


def upsampled(x: Tensor, align_corners: bool, **size: Any) -> Tensor:
    """Bilinear upsampling of features, (N, C, H, W), in their own type. ``size``: ``size`` or
    ``scale_factor``.

    On a GPU, autocast would compute and return float32, which the next convolution casts back. For
    small factors: in 16 bits, a GPU also adds the gradients of the pixels of a value in 16 bits.
    """
    kind = x.device.type
    casts = kind != "meta" and torch.is_autocast_enabled(kind)
    with torch.autocast(kind, enabled=False) if casts else contextlib.nullcontext():
        return F.interpolate(x, mode="bilinear", align_corners=align_corners, **size)
