"""Optimizers (SGD, AdamW, Muon) of a run, and their parameter groups."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from segtrain.config import MuonOptim, Optim
from segtrain.optim.fused import fused
from segtrain.optim.muon import Muon

# stages_2.blocks.5, layer3.1, blocks.7: a stage, and a block in it if stages have some
_BLOCK = re.compile(r"(?:block|stage|layer|feature)s?[_.]?(\d+)(?:\.(?:blocks\.)?(\d+)\.)?")
# the last words in the names of parameters that say where a patch is, or that are not patches
_POSITION = re.compile(r"\w*(pos_embed\w*|_token|position_bias_table)")


def layers(names: Iterable[str]) -> dict[str, int]:
    """Number of the layer group of each encoder parameter, by name, in the order of the network: 0
    for the stem, then each block of a plain sequence, or up to three blocks of a stage.

    >>> layers(["stem_0.bias", "stages_0.blocks.2.gamma", "stages_0.blocks.3.gamma"])
    {'stem_0.bias': 0, 'stages_0.blocks.2.gamma': 1, 'stages_0.blocks.3.gamma': 2}
    """
    groups: dict[tuple[str, int], int] = {}
    numbers, number = {}, 0
    for name in names:
        if match := _BLOCK.search(name):
            group = match[1], int(match[2] or 0) // 3
            number = groups.setdefault(group, len(groups) + 1)
        numbers[name] = number
    return numbers


def parameter_groups(
    model: nn.Module,
    encoder: Iterable[nn.Parameter],
    optim: Optim,
    heads: Iterable[nn.Parameter] = (),
) -> list[dict[str, Any]]:
    """Parameter groups by learning rate, weight decay, and optimizer. ``scale`` multiplies
    optim.lr. ``late`` groups begin at optim.encoder_start.

    Weights decay; biases, norms, positions, and tokens do not. With muon, filters with more than 3
    input channels are in ``muon`` groups. AdamW updates the others: the first layer (3 input
    channels), depthwise filters, ``heads`` (the layers that make logits), and what does not decay.
    """
    of_encoder, of_heads = {id(p) for p in encoder}, {id(p) for p in heads}
    layer = layers(name for name, p in model.named_parameters() if id(p) in of_encoder)
    top = max(layer.values(), default=0) + 1
    groups: dict[tuple[float, float, bool, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        scale, in_encoder = 1.0, name in layer
        if in_encoder:
            scale = optim.encoder_lr * optim.layer_decay ** (top - layer[name])
        decays = parameter.dim() > 1 and not _POSITION.fullmatch(name.rpartition(".")[2])
        decay = optim.weight_decay if decays else 0.0
        group: dict[str, Any] = {"params": [], "weight_decay": decay}
        # absent from the groups in checkpoints of runs without it
        late = in_encoder and optim.starts_encoder_late
        if late:
            group["late"] = True
        muon = False
        if isinstance(optim, MuonOptim):
            muon = decays and parameter.shape[1] > 3 and id(parameter) not in of_heads
            group["muon"] = muon
            scale *= optim.muon_lr / optim.lr if muon else 1.0
        group |= {"scale": scale, "lr": optim.lr * scale}
        groups.setdefault((scale, decay, muon, late), group)["params"].append(parameter)
    return list(groups.values())


def build_optimizer(
    model: nn.Module,
    encoder: Iterable[nn.Parameter],
    optim: Optim,
    heads: Iterable[nn.Parameter] = (),
    bf16: bool = False,
) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum, AdamW, or Muon, with fused kernels if this torch has them for the
    device.

    ``bf16``: Muon orthogonalizes in bfloat16.
    """
    groups = parameter_groups(model, encoder, optim, heads)
    if optim.name == "muon":
        return Muon(groups, lr=optim.lr, momentum=optim.momentum, betas=optim.betas, bf16=bf16)
    if optim.name == "sgd":
        return fused(
            torch.optim.SGD,
            groups,
            lr=optim.lr,
            momentum=optim.momentum,
            nesterov=optim.momentum > 0,
        )
    return fused(torch.optim.AdamW, groups, lr=optim.lr, betas=optim.betas)
