"""Finds layers whose gradient is not deterministic on a GPU, by a forward pass on the meta device
before training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from segtrain.base.compat import TorchDispatchMode
from segtrain.base.terminal import counted
from segtrain.errors import ConfigError
from segtrain.models.base import SegModel, channels_of

# Operators whose gradient torch refuses on CUDA with use_deterministic_algorithms(True). Bilinear
# interpolation is not among them: F.interpolate then uses other operators. Pooling into a single
# bin is a mean, which is deterministic.
REFUSED = {
    "aten::_adaptive_avg_pool2d": "adaptive average pooling into more than one bin",
    "aten::adaptive_max_pool2d": "adaptive max pooling",
    "aten::fractional_max_pool2d": "fractional max pooling",
    "aten::max_unpool2d": "max unpooling",
    "aten::reflection_pad2d": "reflection padding",
    "aten::grid_sampler_2d": "grid sampling",
    "aten::_upsample_bilinear2d_aa": "bilinear interpolation with antialiasing",
    "aten::upsample_bicubic2d": "bicubic interpolation",
}


class _Watch(TorchDispatchMode):
    """Records which refused operators ran, and in which layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [""]
        self.refused: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = REFUSED.get(func.name().partition(".")[0])
        if operation is not None:
            self.refused.append((self.layers[-1], operation))
        return func(*args, **(kwargs or {}))


def refuse_nondeterministic(network: SegModel, arch: str) -> None:
    """Raise ConfigError with the layer whose backward pass on a GPU would fail with
    train.deterministic=true.
    """
    try:
        layers = _refused_operations(network, "meta")
    except NotImplementedError:
        # An older torch does not implement some operator on the meta device.
        layers = _refused_operations(network, "cpu")
    if layers:
        layer, operation = layers[0]
        others = len({name for name, _ in layers} - {layer})
        more = f" and {counted(others, 'more layer')}" if others else ""
        raise ConfigError(
            f"train.deterministic=true: model.arch={arch}: the gradient of {operation} in "
            f"{layer or 'the network'}{more} is not deterministic on a GPU: use unet, "
            "deeplabv3plus, or pico, set train.deterministic=false, or train on a CPU",
            code="layer-not-deterministic",
            arch=arch,
            layer=layer,
        )


def _refused_operations(network: SegModel, device: str) -> list[tuple[str, str]]:
    tensors: dict[str, Tensor] = {
        **dict(network.named_parameters()),
        **dict(network.named_buffers()),
    }
    meta_params = {name: torch.zeros_like(value, device=device) for name, value in tensors.items()}
    images = torch.zeros(
        2, channels_of(network), *[max(network.least, 2 * network.stride)] * 2, device=device
    )
    watch = _Watch()
    hooks = []
    for name, module in network.named_modules():
        hooks.append(
            module.register_forward_pre_hook(lambda *_, name=name: watch.layers.append(name))
        )  # type: ignore[misc]
        hooks.append(module.register_forward_hook(lambda *_: watch.layers.pop() and None))
    try:
        with torch.no_grad(), watch:
            torch.func.functional_call(network, meta_params, (images,))
    finally:
        for hook in hooks:
            hook.remove()
    return watch.refused
