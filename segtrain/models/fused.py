"""Layers whose training runs in kernels of Triton (``train.kernels``): batch norm with addition and
ReLU in one pass, layer norm in 16 bits, depthwise 3x3 convolutions, and biases of linear layers.

They are torch's layers with another class, and have the same state. In evaluation, and for types
other than float32, float16, and bfloat16, they compute as torch's do.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segtrain import kernels

ROWS, COLS, WARPS = 16, 64, 4  # pixels and channels of a program
WIDEST = 1024  # channels of a layer norm; a program has a block of its rows
PROGRAMS = 512  # that share a sum over pixels, for each block of channels
TYPES = (torch.float32, torch.float16, torch.bfloat16)
# The largest difference to torch's layers, which may compute in TF32, relative to the largest
# value.
BOUND = 1e-2


def use_kernels(
    model: nn.Module,
    names: Collection[str],
    device: torch.device,
    total: Callable[[Tensor], None],
    reduce: Callable[[Tensor], Tensor] = lambda value: value,
) -> None:
    """Give the layers ``names`` of ``model`` (batch_norm, layer_norm, depthwise, linear) kernels,
    in place. A collective, if there are names.

    ``total`` sums a tensor over ranks, in place: for batch norm that is synchronized. ``reduce``
    does so for this call. Where kernels cannot run on a rank, or do not give torch's values, a
    warning says why, and nothing changes on any rank.
    """
    if not names:
        return
    why = kernels.unavailable(device) or _fault(device)
    if reduce(torch.tensor(bool(why), dtype=torch.int32, device=device)):
        why = why or "they do not run on another rank"
        text = f"train.kernels has no effect, because {why}"
        warnings.warn(text, kernels.UnusedKernels, stacklevel=2)
    else:
        _convert(model, names, total)


def _convert(model: nn.Module, names: Collection[str], total: Callable[[Tensor], None]) -> None:
    for module in model.modules():
        # By name: subclasses may do more than normalize, and the last two are synchronized.
        kind = type(module).__name__
        if "batch_norm" in names and kind in ("BatchNorm2d", "SyncBatchNorm", "SyncBatchNorm2d"):
            if module.affine and module.track_running_stats and module.momentum is not None:
                module.total = None if kind == "BatchNorm2d" else total  # type: ignore[assignment]
                module.__class__ = FusedBatchNorm2d
        elif "layer_norm" in names and kind == "LayerNorm" and _is_narrow(module):
            # SMP's takes images, too, and normalizes their channels.
            module.by_channel = type(module).__module__.startswith("segmentation_models_pytorch")  # type: ignore[assignment]
            module.__class__ = FusedLayerNorm
        elif "linear" in names and type(module) is nn.Linear and module.bias is not None:
            module.__class__ = BiasByProduct
        elif "depthwise" in names and type(module) is nn.Conv2d and _is_depthwise(module):
            module.__class__ = DepthwiseConv2d


def _is_depthwise(conv: nn.Conv2d) -> bool:
    return (
        conv.groups == conv.in_channels == conv.out_channels
        and conv.kernel_size == (3, 3)
        and conv.stride == (1, 1)
        and conv.padding == conv.dilation == conv.dilation[:1] * 2
        and conv.padding_mode == "zeros"
    )


def _is_narrow(norm: Any) -> bool:
    affine = norm.weight is not None and norm.bias is not None
    return affine and len(norm.normalized_shape) == 1 and norm.normalized_shape[0] <= WIDEST


def _fault(device: torch.device) -> str:
    """Why the kernels are not used, or "": whether they give torch's values and gradients. Waits
    for the GPU.
    """
    conv = nn.Conv2d(70, 70, 3, padding=2, dilation=2, groups=70)
    plain = nn.Sequential(nn.BatchNorm2d(70), conv, nn.LayerNorm(7), nn.Linear(7, 7))
    plain = plain.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    fused = copy.deepcopy(plain)
    images = torch.randn(2, 70, 6, 7, device=device)
    try:
        _convert(fused, ("batch_norm", "layer_norm", "depthwise", "linear"), lambda value: None)
        results = []
        for network in (plain, fused):
            out = network(images)
            slopes = torch.autograd.grad(out.square().sum() + out[0].sum(), network.parameters())
            results.append([out.detach(), *slopes, *list(network.buffers())[:2]])
        apart = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*results))
    except Exception as error:  # of Triton, which needs a C compiler, a driver that fits, ...
        return f"its kernels do not run here ({type(error).__name__}: {error})"
    return "" if apart <= BOUND else f"its kernels are off by {apart:.2g} here"


def _last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def _launch(name: str, x: Tensor, blocks: int, *arguments: Any, **flags: Any) -> None:
    grid = (blocks, -(-x.shape[1] // COLS), len(x) if name == "depthwise" else 1)
    flags |= {"ROWS": ROWS, "COLS": COLS}
    kernels.launch(f"layers.{name}", x.device, grid, WARPS, *arguments, **flags)


class FusedBatchNorm2d(nn.BatchNorm2d):
    """``relu(batch_norm(x) + residual)``, of tensors (N, C, H, W) in channels_last memory."""

    total: Callable[[Tensor], None] | None  # sums over ranks; None: of this rank alone

    def forward(self, x: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        if self.training and x.dtype in TYPES:
            residual = None if residual is None else _last(residual.to(x.dtype))
            return _NormAct.apply(self, _last(x), residual, relu, self.weight, self.bias)
        x = super().forward(x)
        x = x if residual is None else x.add_(residual)
        return x.relu_() if relu else x


class _NormAct(torch.autograd.Function):
    """Statistics in one pass: sums of x - c and of its square, where c, the running mean, is near
    the mean.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        norm: Any,
        x: Tensor,
        residual: Tensor | None,
        relu: bool,
        weight: Tensor,
        bias: Tensor,
    ) -> Tensor:
        ctx.norm, ctx.relu, ctx.residual = norm, relu, residual is not None
        center = norm.running_mean.float()
        sums, count = _channel_sums(norm.total, x, x, x, center, BACKWARD=False, RELU=False)[1:]
        shift = sums[0] / count
        variance = (sums[1] / count - shift.square()).clamp_(min=0)
        mean = (center + shift).float()
        with torch.no_grad():
            norm.num_batches_tracked.add_(1)
            norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum)
            unbiased = variance * (count / (count - 1).clamp(min=1))
            norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), norm.momentum)
        inverse = torch.rsqrt(variance + norm.eps).float()
        scale = inverse * weight
        out = torch.empty_like(x)
        other = x if residual is None else residual
        tables = (mean, scale, bias.float(), out, x.numel() // x.shape[1], x.shape[1])
        flags = {"RESIDUAL": residual is not None, "RELU": relu}
        _launch("normalized", x, _blocks(x), x, other, *tables, **flags)
        ctx.save_for_backward(x, out if relu else x, mean, inverse, scale)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, out, mean, inverse, scale = ctx.saved_tensors
        slope = _last(slope)
        own, sums, count = _channel_sums(
            ctx.norm.total, x, out, slope, mean, BACKWARD=True, RELU=ctx.relu
        )
        gradient = torch.empty_like(x)
        residual = torch.empty_like(x) if ctx.residual else None
        means = (sums / count).float()
        tables = (mean, scale, means[0], means[1] * inverse.square(), gradient)
        flags = {"RESIDUAL": ctx.residual, "RELU": ctx.relu}
        other = gradient if residual is None else residual
        size = (x.numel() // x.shape[1], x.shape[1])
        _launch("normalized_slopes", x, _blocks(x), x, out, slope, *tables, other, *size, **flags)
        of_weight, of_bias = own[1] * inverse, own[0]
        return None, gradient, residual, None, of_weight.to(scale.dtype), of_bias.to(scale.dtype)


def _blocks(x: Tensor) -> int:
    return -(-x.numel() // (x.shape[1] * ROWS))


def _channel_sums(
    total: Callable[[Tensor], None] | None, x: Tensor, *arguments: Tensor, **flags: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums (2, C) of this rank, sums of all ranks, and how many pixels these are of."""
    channels = x.shape[1]
    programs = min(_blocks(x), PROGRAMS)
    parts = x.new_empty(programs, 2, channels, dtype=torch.float32)
    pixels = x.numel() // channels
    _launch("channel_sums", x, programs, x, *arguments, parts, pixels, channels, **flags)
    own = parts.sum(0, dtype=torch.float64)
    every = torch.cat([own.flatten(), own.new_full((1,), pixels)])
    if total is not None:
        total(every)
    return own, every[:-1].view(2, -1), every[-1]


def _as_autocast(x: Tensor) -> Tensor:
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


class FusedLayerNorm(nn.LayerNorm):
    """Layer norm of the last axis, whose result has the type that autocast gives to products."""

    by_channel: bool  # images (N, C, H, W) are normalized over C

    def forward(self, x: Tensor) -> Tensor:
        channels_first = self.by_channel and x.dim() == 4
        x = x.permute(0, 2, 3, 1) if channels_first else x
        if self.training and x.dtype in TYPES:
            x = _RowNorm.apply(_as_autocast(x).contiguous(), self.weight, self.bias, self.eps)
        else:
            x = super().forward(x)
        return x.permute(0, 3, 1, 2) if channels_first else x


class _RowNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:  # type: ignore[override]
        scale, out = weight.float(), torch.empty_like(x)
        statistics = x.new_empty(2, x.numel() // x.shape[-1], dtype=torch.float32)
        _launch_rows("rows_normalized", x, 0, scale, bias.float(), out, statistics, more=(eps,))
        ctx.save_for_backward(x, scale, statistics)
        ctx.dtype = weight.dtype
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, scale, statistics = ctx.saved_tensors
        gradient = torch.empty_like(x)
        parts = x.new_empty(PROGRAMS, 2, x.shape[-1], dtype=torch.float32)
        tables = (slope.contiguous(), scale, statistics, gradient, parts)
        _launch_rows("rows_normalized_slopes", x, PROGRAMS, *tables)
        of_weight, of_bias = parts.sum(0).to(ctx.dtype)
        return gradient, of_weight, of_bias, None


def _launch_rows(
    name: str, x: Tensor, programs: int, *arguments: Tensor, more: tuple[float, ...] = ()
) -> None:
    """``programs``: 0 for one program for each block of rows."""
    size, channels = x.numel() // x.shape[-1], x.shape[-1]
    cols = 1 << (channels - 1).bit_length()
    rows = max(1, ROWS * COLS // cols)
    flags = {"ROWS": rows, "COLS": cols}
    grid = (programs or -(-size // rows),)
    kernels.launch(
        f"layers.{name}", x.device, grid, WARPS, x, *arguments, size, channels, *more, **flags
    )


class BiasByProduct(nn.Linear):
    """A linear layer whose gradient of the bias is a product with ones: torch's sum over rows is
    slow.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        x, weight, bias = map(_as_autocast, (x, self.weight, self.bias))
        return _Linear.apply(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        rows = slope.flatten(0, -2)
        ones = rows.new_ones(1, len(rows))
        return slope @ weight, rows.t() @ x.flatten(0, -2), (ones @ rows)[0]


class DepthwiseConv2d(nn.Conv2d):
    """A depthwise 3x3 convolution of stride 1 that keeps the size, in channels_last memory."""

    def forward(self, x: Tensor) -> Tensor:
        x = _as_autocast(x)
        if not self.training or x.dtype not in TYPES:
            return super().forward(x)
        return _Depthwise.apply(_last(x), self.weight, self.bias, self.dilation[0])


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int
    ) -> Tensor:
        rows = weight.reshape(-1, 9).t()
        last = rows.new_zeros(rows.shape[1]) if bias is None else bias
        table = torch.cat([rows, last[None]]).float()
        ctx.save_for_backward(x, weight, table)
        ctx.dilation, ctx.biased = dilation, bias is not None
        return _convolved(x, table, dilation, FLIPPED=False)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, table = ctx.saved_tensors
        slope = _last(slope)
        images, channels, height, width = x.shape
        programs = min(images * -(-height * width // ROWS), PROGRAMS)
        parts = x.new_empty(programs, 16, channels, dtype=torch.float32)
        size = (images, height, width, channels, ctx.dilation)
        _launch("depthwise_weights", x, programs, x, slope, parts, *size)
        rows = parts[:, :10].sum(0).to(weight.dtype)
        return (
            _convolved(slope, table, ctx.dilation, FLIPPED=True),
            rows[:9].t().reshape(weight.shape),
            rows[9] if ctx.biased else None,
            None,
        )


def _convolved(x: Tensor, table: Tensor, dilation: int, FLIPPED: bool) -> Tensor:
    _, channels, height, width = x.shape
    out = torch.empty_like(x)
    blocks, size = -(-height * width // ROWS), (height, width, channels, dilation)
    _launch("depthwise", x, blocks, x, table, out, *size, FLIPPED=FLIPPED)
    return out
