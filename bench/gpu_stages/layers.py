"""The rate of a network's convolutions and matrix products alone, forward and backward: a ceiling
for its training step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_stages.timing import rate as calls_per_s
from segtrain.base.precision import AUTOCAST

# The function, the shapes of its input and its weight, its other arguments, and whether its input
# needs no gradient.
Shape = tuple[str, tuple[int, ...], tuple[int, ...], tuple[Any, ...], bool]
FUNCTIONS = ("conv2d", "conv_transpose2d", "linear")


def rate(network: nn.Module, images: Tensor, precision: str, warm: int, times: int) -> float:
    """TFLOP/s of all layers with weights, each timed alone on random inputs of its shape, in
    channels_last.

    FLOPs of the backward pass count as twice those of the forward pass, as in the rate of a step.
    The products of attention are not among the layers, so a transformer's ceiling is that of its
    layers with weights.
    """
    flops = seconds = 0.0
    dtype = AUTOCAST[precision] or torch.float32
    for shape, count in shapes(network, images).items():
        call, forward_flops = _call(shape, images.device, dtype)
        flops += 3 * count * forward_flops
        seconds += count / calls_per_s(call, images.device.type, warm, times)
    return flops / seconds / 1e12


def shapes(network: nn.Module, images: Tensor) -> Counter[Shape]:
    """How often each shape of a layer occurs in a forward pass, also of weights that a module
    passes to torch itself.
    """
    found = Counter[Shape]()

    def counted(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(x: Tensor, weight: Tensor, bias: Any = None, *more: Any, **named: Any) -> Tensor:
            others = tuple(
                tuple(one) if isinstance(one, (list, tuple)) else one
                for one in (*more, *named.items())
            )
            found[
                name, tuple(x.shape), tuple(weight.shape), others, x.dim() == 4 and x.shape[1] == 3
            ] += 1
            return function(x, weight, bias, *more, **named)

        return call

    kept = {name: getattr(F, name) for name in FUNCTIONS}
    try:
        for name, function in kept.items():
            setattr(F, name, counted(name, function))
        with torch.no_grad():
            network(images, low=True)
    finally:
        for name, function in kept.items():
            setattr(F, name, function)
    return found


def _call(
    shape: Shape, device: torch.device, dtype: torch.dtype
) -> tuple[Callable[[], None], float]:
    """Forward and backward of a layer, and the FLOPs of the forward pass."""
    name, size, of_weight, others, first = shape
    more = [
        one for one in others if not (isinstance(one, tuple) and one and isinstance(one[0], str))
    ]
    named = dict(
        one for one in others if isinstance(one, tuple) and one and isinstance(one[0], str)
    )
    inputs = torch.randn(size, device=device, dtype=dtype)
    weight: Any = torch.randn(of_weight, device=device, dtype=dtype)
    if len(size) == 4:
        inputs, weight = (part.to(memory_format=torch.channels_last) for part in (inputs, weight))
    inputs.requires_grad_(not first)
    weight.requires_grad_()

    def forward() -> Tensor:
        return getattr(F, name)(inputs, weight, None, *more, **named)  # type: ignore[no-any-return]

    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        gradient = torch.randn_like(forward())

    def call() -> None:
        inputs.grad = weight.grad = None
        forward().backward(gradient)

    return call, float(counter.get_total_flops())
