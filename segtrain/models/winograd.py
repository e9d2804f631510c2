"""Wide 3x3 convolutions by Winograd's F(2x2, 3x3) (Lavin and Gray 2016), for training on CPUs.

A 2x2 block of outputs takes 16 products per pair of channels instead of 36. Values, gradients, and parameters are those
of the convolution, up to rounding. The linear maps of inputs (4x4 tiles, two pixels apart), kernels, and outputs cost
memory traffic, so this pays only with many channels. Channels are innermost ("NHWC").
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_KERNEL_MAP = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))


def _kernel_map(like: Tensor) -> Tensor:
    """The matrix (16, 9) that maps a 3x3 kernel (row, column) to its 4x4 transform (column, row)."""
    g = torch.tensor(_KERNEL_MAP, dtype=like.dtype)
    return torch.einsum("ax,by->abyx", g, g).reshape(16, 9)


def _inputs_along(p: Tensor, dim: int) -> Tensor:
    """Transform inputs along ``dim``. A padded length of 2n + 2 becomes n tiles of 4 numbers: (4, ..., n, ...)."""
    n = p.shape[dim] // 2 - 1
    even, odd = p.unflatten(dim, (n + 1, 2)).unbind(dim + 1)
    e0, e1 = even.narrow(dim, 0, n), even.narrow(dim, 1, n)
    o0, o1 = odd.narrow(dim, 0, n), odd.narrow(dim, 1, n)
    out = p.new_empty(4, *e0.shape)
    torch.sub(e0, e1, out=out[0])
    torch.add(o0, e1, out=out[1])
    torch.sub(e1, o0, out=out[2])
    torch.sub(o0, o1, out=out[3])
    return out


def _inputs_along_adjoint(v: Tensor, dim: int) -> Tensor:
    """The transposed map of ``_inputs_along``."""
    n = v.shape[dim + 1]
    shape = [*v.shape[1:]]
    shape[dim : dim + 1] = [n + 1, 2]
    p = v.new_zeros(shape)
    even, odd = p.unbind(dim + 1)
    even.narrow(dim, 0, n).copy_(v[0])
    even.narrow(dim, 1, n).sub_(v[0]).add_(v[1]).add_(v[2])
    odd.narrow(dim, 0, n).copy_(v[1]).sub_(v[2]).add_(v[3])
    odd.narrow(dim, 1, n).sub_(v[3])
    return p.flatten(dim, dim + 1)


def _outputs_along(m: Tensor, dim: int) -> Tensor:
    """Transform products along ``dim`` back to outputs: (4, ..., n, ...) to (..., 2n, ...)."""
    out = m.new_empty([*m.shape[1 : dim + 2], 2, *m.shape[dim + 2 :]])
    first, second = out.unbind(dim + 1)
    torch.add(m[0], m[1], out=first).add_(m[2])
    torch.sub(m[1], m[2], out=second).sub_(m[3])
    return out.flatten(dim, dim + 1)


def _outputs_along_adjoint(y: Tensor, dim: int) -> Tensor:
    """The transposed map of ``_outputs_along``."""
    first, second = y.unflatten(dim, (-1, 2)).unbind(dim + 1)
    out = y.new_empty(4, *first.shape)
    out[0].copy_(first)
    torch.add(first, second, out=out[1])
    torch.sub(first, second, out=out[2])
    torch.neg(second, out=out[3])
    return out


def _to_phases(x: Tensor, dilation: int) -> Tensor:
    """(N, C, H, W) to (N d d, H/d, W/d, C): a dilated convolution is a plain one on each of d x d sparse grids."""
    x = x.permute(0, 2, 3, 1)
    if dilation == 1:
        return x
    x = x.unflatten(2, (-1, dilation)).unflatten(1, (-1, dilation))
    return x.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)


def _from_phases(x: Tensor, dilation: int, channels_last: bool) -> Tensor:
    """The inverse of ``_to_phases``, as a channels-last or a contiguous tensor."""
    if dilation > 1:
        x = x.unflatten(0, (-1, dilation, dilation)).permute(0, 3, 1, 4, 2, 5).flatten(3, 4).flatten(1, 2)
    memory = torch.channels_last if channels_last else torch.contiguous_format
    return x.permute(0, 3, 1, 2).contiguous(memory_format=memory)


def _tiles(x: Tensor, dilation: int) -> Tensor:
    """(N, C, H, W) to transformed inputs (4 columns, 4 rows, N d d, H / 2d, W / 2d, C)."""
    return _inputs_along(_inputs_along(F.pad(_to_phases(x, dilation), (0, 0, 1, 1, 1, 1)), 1), 3)


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dilation: int) -> Tensor:
        tiles = _tiles(x, dilation)
        kernel = (_kernel_map(weight) @ weight.reshape(-1, 9).t()).view(16, *weight.shape[:2])
        products = torch.bmm(tiles.view(16, -1, x.shape[1]), kernel.transpose(1, 2))
        products = products.view(*tiles.shape[:-1], weight.shape[0])
        ctx.save_for_backward(x, kernel)
        ctx.dilation = dilation
        ctx.channels_last = _is_channels_last(x)
        return _from_phases(_outputs_along(_outputs_along(products, 3), 1), dilation, ctx.channels_last)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, kernel = ctx.saved_tensors
        outputs, inputs = kernel.shape[1:]
        grads = _outputs_along_adjoint(_outputs_along_adjoint(_to_phases(grad, ctx.dilation), 1), 3)
        flat = grads.view(16, -1, outputs)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:  # Recompute the tiles: saving them would take four times the memory of the input.
            tiles = _tiles(x, ctx.dilation).view(16, -1, inputs)
            grad_kernel = torch.bmm(flat.transpose(1, 2), tiles).view(16, -1)
            grad_weight = (_kernel_map(kernel).t() @ grad_kernel).t().reshape(outputs, inputs, 3, 3)
        if ctx.needs_input_grad[0]:
            grad_tiles = torch.bmm(flat, kernel).view(*grads.shape[:-1], inputs)
            padded = _inputs_along_adjoint(_inputs_along_adjoint(grad_tiles, 3), 1)
            grad_x = _from_phases(padded[:, 1:-1, 1:-1], ctx.dilation, ctx.channels_last)
        return grad_x, grad_weight, None


def _is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def winograd_conv(x: Tensor, weight: Tensor, dilation: int = 1) -> Tensor:
    """``conv2d(x, weight, padding=dilation, dilation=dilation)``.

    x: (N, C, H, W), H and W multiples of 2 x dilation. weight: (O, C, 3, 3).
    """
    return _Winograd.apply(x, weight, dilation)


class WinogradConv2d(nn.Conv2d):
    """A 3x3 convolution by Winograd in training on a CPU, and by PyTorch everywhere else.

    So scores and exported networks use PyTorch's kernel. On two kinds of AMD cores, with 1 thread, Winograd was 1.2 to
    1.4 times faster with at least 256 input and output channels and 64 tiles, and slower with 128 channels.
    """

    channels = 256
    tiles = 64

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether ``module`` is a convolution that this class can replace, with enough channels to be faster."""
        return (
            type(module) is nn.Conv2d
            and module.kernel_size == (3, 3)
            and module.stride == (1, 1)
            and module.groups == 1
            and module.dilation[0] == module.dilation[1]
            and module.padding == module.dilation
            and module.padding_mode == "zeros"
            and module.bias is None
            and min(module.in_channels, module.out_channels) >= cls.channels
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled() and self._gains(x):
            return winograd_conv(x, self.weight, self.dilation[0])
        return super().forward(x)

    def _gains(self, x: Tensor) -> bool:
        step = 2 * self.dilation[0]
        batch, _, height, width = x.shape
        return (
            x.device.type == "cpu"
            and x.dtype == self.weight.dtype
            and x.dtype in (torch.float32, torch.float64)
            and not torch.is_autocast_enabled("cpu")
            and height % step == 0
            and width % step == 0
            and batch * height * width >= 4 * self.tiles
        )


def use_winograd_convs(network: nn.Module) -> None:
    """Make every convolution that fits a ``WinogradConv2d``; parameters and names stay."""
    for module in network.modules():
        if WinogradConv2d.fits(module):
            module.__class__ = WinogradConv2d
