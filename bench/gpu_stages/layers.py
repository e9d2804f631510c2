"""The rate of a network's convolutions and matrix products alone, forward and backward: a ceiling for its training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gpu_stages.timing import rate as calls_per_s
from segtrain.precision import AUTOCAST

# The layer without its weights, the shapes of its inputs, and whether it is the first one, which needs no gradient
# of its input.
Shape = tuple[str, tuple[int, ...], bool]


def rate(network: nn.Module, images: Tensor, precision: str, warm: int, times: int) -> float:
    """TFLOP/s of all layers with weights, each timed alone on random inputs of its shape, in channels_last.

    FLOPs of the backward pass count as twice those of the forward pass, as in the rate of a step. The products of
    attention are not among the layers, so a transformer's ceiling is that of its layers with weights.
    """
    found, layers = _shapes(network, images)
    flops = seconds = 0.0
    dtype = AUTOCAST[precision] or torch.float32
    for shape, count in found.items():
        call, forward_flops = _call(layers[shape], shape, images.device, dtype)
        flops += 3 * count * forward_flops
        seconds += count / calls_per_s(call, images.device.type, warm, times)
    return flops / seconds / 1e12


def _shapes(network: nn.Module, images: Tensor) -> tuple[Counter[Shape], dict[Shape, nn.Module]]:
    """How often each shape of a layer occurs in a forward pass, and a layer of that shape."""
    found, layers = Counter[Shape](), dict[Shape, nn.Module]()

    def seen(layer: nn.Module, inputs: Any, _: Any) -> None:
        shape = (repr(layer), tuple(inputs[0].shape), inputs[0].shape[1] == 3)
        found[shape] += 1
        layers[shape] = layer

    kinds = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
    handles = [m.register_forward_hook(seen) for m in network.modules() if isinstance(m, kinds)]
    with torch.no_grad():
        network(images, low=True)
    for handle in handles:
        handle.remove()
    return found, layers


def _call(layer: nn.Module, shape: Shape, device: torch.device, dtype: torch.dtype) -> tuple[Callable[[], None], float]:
    """Forward and backward of a layer, and the FLOPs of the forward pass."""
    _, size, first = shape
    inputs = torch.randn(size, device=device, dtype=dtype)
    weight: Any = layer.weight.detach().to(dtype)
    if len(size) == 4:
        inputs, weight = (part.to(memory_format=torch.channels_last) for part in (inputs, weight))
    inputs.requires_grad_(not first)
    weight.requires_grad_()

    def forward() -> Tensor:
        if isinstance(layer, nn.Linear):
            return nn.functional.linear(inputs, weight)
        if isinstance(layer, nn.ConvTranspose2d):
            return nn.functional.conv_transpose2d(
                inputs, weight, None, layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation
            )
        return nn.functional.conv2d(inputs, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)

    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        gradient = torch.randn_like(forward())

    def call() -> None:
        inputs.grad = weight.grad = None
        forward().backward(gradient)

    return call, float(counter.get_total_flops())
