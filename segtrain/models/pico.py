"""Pico: a small residual network of dense 3x3 kernels that trains from scratch on a CPU in
minutes.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segtrain.config import Model, unknown_name
from segtrain.errors import ConfigError
from segtrain.models.base import SegModel
from segtrain.models.factory import check_options
from segtrain.models.layers import conv_bn, grid_means, upsampled


class Residual(nn.Module):
    """``relu(x + body(x))`` with two 3x3 convolutions; starts as the identity (the scale of its
    last norm is 0).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        last = conv_bn(channels, channels, relu=False)
        nn.init.zeros_(last[1].get_parameter("weight"))
        self.body = nn.Sequential(conv_bn(channels, channels), last)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x), inplace=True)


class PyramidPool(nn.Module):
    """Pyramid pooling (PSPNet, Zhao et al. 2017): averages over a few grids, each projected,
    upsampled, and fused.
    """

    def __init__(self, inputs: int, outputs: int, bins: tuple[int, ...]) -> None:
        super().__init__()
        self.bins = bins
        branch = max(inputs // 4, 8)
        self.project = nn.ModuleList(nn.Conv2d(inputs, branch, 1) for _ in bins)
        self.fuse = conv_bn(inputs + branch * len(bins), outputs)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        exact = torch.are_deterministic_algorithms_enabled() and x.device.type != "cpu"
        means = grid_means if exact else F.adaptive_avg_pool2d
        for bins, project in zip(self.bins, self.project):
            pooled = F.relu(project(means(x, bins)))
            parts.append(
                F.interpolate(pooled, size=x.shape[2:], mode="bilinear", align_corners=False)
            )
        return self.fuse(torch.cat(parts, 1))


class Pico(SegModel):
    """An encoder down to stride 32, pyramid pooling, and a decoder up to stride 4 with lateral
    connections as in FPN.

    Strides 2 and 4 have one 3x3 convolution each, because dense 3x3 kernels run most efficiently at
    strides 8 to 32 on a CPU. The logits have stride 4.

    num_classes: classes C. stem: channels at stride 2. widths, depths: channels and residual blocks
    at strides 4, 8, 16, and 32.
    decoder: channels of the decoder. bins: grids of the pyramid pooling. aux: whether there is a
    second head.

    ``forward(low=True)``: logits (N, C, ceil(H/4), ceil(W/4)); in training mode with ``aux`` also
    those of stride 8.
    """

    stride = 32
    # Every resize takes the size of the tensor that it is combined with, so any image size works.
    pads = False

    def __init__(
        self,
        num_classes: int,
        stem: int = 16,
        widths: tuple[int, ...] = (32, 64, 96, 128),
        depths: tuple[int, ...] = (0, 1, 2, 2),
        decoder: int = 48,
        bins: tuple[int, ...] = (1, 2, 4),
        aux: bool = False,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.stem = conv_bn(3, stem, stride=2)
        inputs = (stem, *widths[:-1])
        self.stages = nn.ModuleList(
            nn.Sequential(
                conv_bn(before, width, stride=2), *(Residual(width) for _ in range(depth))
            )
            for before, width, depth in zip(inputs, widths, depths)
        )
        self.context = PyramidPool(widths[-1], decoder, tuple(bins))
        self.lateral = nn.ModuleList(
            conv_bn(width, decoder, 1, relu=False) for width in reversed(widths[:-1])
        )
        self.smooth = nn.ModuleList(conv_bn(decoder, decoder) for _ in widths[:-1])
        self.head = nn.Conv2d(decoder, num_classes, 1)
        self.aux = nn.Conv2d(decoder, num_classes, 1) if aux else None
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.head.weight, std=0.01)

    def encoder_parts(self) -> list[nn.Module]:
        return [self.stem, self.stages]

    def auxiliary_parts(self) -> list[nn.Module]:
        return [] if self.aux is None else [self.aux]

    def heads(self) -> list[nn.Module]:
        return [self.head] if self.aux is None else [self.head, self.aux]

    def _low(self, images: Tensor) -> tuple[Tensor, ...]:
        x = self.stem(images)
        skips = []
        for stage in self.stages:
            x = stage(x)
            skips.append(x)
        x = self.context(skips.pop())
        extra: tuple[Tensor, ...] = ()
        for lateral, smooth in zip(self.lateral, self.smooth):
            skip = lateral(skips.pop())
            x = upsampled(x, False, size=skip.shape[2:])
            x = smooth(F.relu(x + skip))
            if len(skips) == 1 and self.training and self.aux is not None:
                extra = (self.aux(x),)
        return (self.head(x), *extra)


def build(model: Model, num_classes: int) -> SegModel:
    """Build the network; ``model.options`` are ``Pico``'s arguments, and ``model.encoder`` is
    ignored.
    """
    check_options(model, Pico, {"num_classes": "it follows from data.classes"})
    if model.encoder_weights is not None:
        raise unknown_name(
            "encoder_weights", model.encoder_weights, (), "pico is not pretrained: set it to null"
        )
    _check(model.options)
    return Pico(num_classes, **model.options)


# Smallest and largest valid number. Options whose names end in "s" are lists of such numbers.
_LIMITS = {
    "stem": (1, 65_536),
    "decoder": (1, 65_536),
    "widths": (1, 65_536),
    "depths": (0, 1_000),
    "bins": (1, 64),
}


def _check(options: dict[str, Any]) -> None:
    """Raises ConfigError for options that make no working network."""
    for key, value in options.items():
        if key == "aux":
            fits, expected = isinstance(value, bool), "true or false"
        else:
            least, most = _LIMITS[key]
            several = key.endswith("s")
            numbers = value if isinstance(value, (list, tuple)) else [value]
            fits = several == (numbers is value) and all(
                type(n) is int and least <= n <= most for n in numbers
            )
            expected = (
                f"{'a list of numbers' if several else 'a number'} from {least:,} to {most:,}"
            )
        if not fits:
            raise ConfigError(
                f"model.options.{key}={value!r} must be {expected}",
                code="model-option-value",
                key=key,
            )
    defaults = inspect.signature(Pico).parameters
    widths, depths = (list(options.get(key, defaults[key].default)) for key in ("widths", "depths"))
    if len(widths) != len(depths) or len(widths) < 2:
        raise ConfigError(
            f"model.options: widths={widths} and depths={depths} must have one entry per "
            "stage, at least 2",
            code="model-option-value",
            key="widths",
        )
