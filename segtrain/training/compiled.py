"""torch.compile of the network, whole or by its repeated blocks."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from segtrain.errors import ConfigError


def compiled(network: nn.Module, how: bool | str) -> nn.Module:
    """The network as ``train.compile`` says. It shares its weights with ``network``, which
    evaluation uses uncompiled.

    With ``regions``, the blocks of ``network`` itself are compiled (an evaluation turns that off
    while it lasts). Each image size has a graph of its own. Raises ConfigError for a network
    without repeated blocks.
    """
    if not how:
        return network
    if how == "regions":
        blocks = repeated_blocks(network)
        if not blocks:
            raise ConfigError(
                "train.compile=regions, but this network has no repeated blocks: use "
                "train.compile=true",
                code="no-blocks-to-compile",
                key="train.compile",
                found=how,
            )
        for block in blocks:
            block.compile(dynamic=False)
        return network
    mode = {"mode": how} if isinstance(how, str) else {}
    return torch.compile(network, dynamic=False, **mode)  # type: ignore[call-overload, no-any-return]


def repeated_blocks(network: nn.Module) -> list[nn.Module]:
    """The outermost modules with parts of which their nn.Sequential or nn.ModuleList has several of
    the same class.
    """
    kinds = Counter(
        map(type, network.children() if isinstance(network, (nn.Sequential, nn.ModuleList)) else ())
    )
    blocks: list[nn.Module] = []
    for child in network.children():
        repeated = (
            kinds[type(child)] > 1
            and type(child) is not nn.Sequential
            and next(child.children(), None)
        )
        blocks += [child] if repeated else repeated_blocks(child)
    return blocks
