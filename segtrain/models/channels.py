"""The first convolutions of networks, changed for images of other than three bands."""

from __future__ import annotations

import torch
from torch import nn

from segtrain.base.terminal import counted
from segtrain.errors import ConfigError
from segtrain.models.base import SegModel


def first_convolutions(network: SegModel) -> dict[str, nn.Conv2d]:
    """The convolutions of the encoder that take three channels, which only images have, with their
    names in the network.
    """
    inside = {id(module) for part in network.encoder_parts() for module in part.modules()}
    return {
        name: module
        for name, module in network.named_modules()
        if id(module) in inside and isinstance(module, nn.Conv2d) and module.in_channels == 3
    }


@torch.no_grad()
def set_channels(
    network: SegModel, channels: int, pretrained: bool = False, how: str = "initialized at random"
) -> None:
    """Make the network take images of ``channels`` bands, in place.

    ``pretrained``: band ``i`` gets the weights of color ``i % 3``, multiplied by ``3 / channels``;
    a single band gets their sum. This is the rule of segmentation-models-pytorch and of timm. Other
    weights are initialized at random, or come from elsewhere, as ``how`` tells the user.
    Raises ConfigError for an encoder without such a convolution.
    """
    convolutions = first_convolutions(network)
    if not convolutions:
        raise ConfigError(
            f"data.channels={channels}: {type(network).__name__} has no first convolution of three "
            "channels that could be changed: take another encoder",
            code="channels-unfit",
            key="data.channels",
            found=channels,
        )
    for convolution in convolutions.values():
        weight, convolution.in_channels = convolution.weight, channels
        bands = [band % 3 for band in range(channels)]
        wider = weight.sum(1, True) if channels == 1 else weight[:, bands] * (3 / channels)
        convolution.weight = nn.Parameter(wider, requires_grad=weight.requires_grad)
        if not pretrained:
            convolution.reset_parameters()
    if pretrained:
        how = f"band i has the pretrained ones of color i modulo 3, times 3/{channels}"
        how = "the sum of the pretrained ones" if channels == 1 else how
    network.remarks += (
        f"{counted(channels, 'band')}: weights of {' and '.join(convolutions)}: {how}",
    )
