"""Optimizers (SGD, AdamW, Muon) of a run, and their parameter groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from segtrain.config import MuonOptim, Optim
from segtrain.optim.fused import fused
from segtrain.optim.muon import Muon


def parameter_groups(
    model: nn.Module,
    encoder: Iterable[nn.Parameter],
    optim: Optim,
    heads: Iterable[nn.Parameter] = (),
) -> list[dict[str, Any]]:
    """Parameter groups by learning rate, weight decay, and optimizer. ``scale`` multiplies
    optim.lr.

    Weights decay; biases and norms do not. With muon, filters with more than 3 input channels are
    in ``muon`` groups. AdamW updates the others: the first layer (3 input channels), depthwise
    filters, ``heads`` (the layers that make logits), biases, and norms.
    """
    of_encoder, of_heads = {id(p) for p in encoder}, {id(p) for p in heads}
    groups: dict[tuple[float, float, bool], dict[str, Any]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        scale = optim.encoder_lr if id(parameter) in of_encoder else 1.0
        decay = optim.weight_decay if parameter.dim() > 1 else 0.0
        group: dict[str, Any] = {"params": [], "weight_decay": decay}
        muon = False
        if isinstance(optim, MuonOptim):
            muon = parameter.dim() > 1 and parameter.shape[1] > 3 and id(parameter) not in of_heads
            group["muon"] = muon
            scale *= optim.muon_lr / optim.lr if muon else 1.0
        group |= {"scale": scale, "lr": optim.lr * scale}
        groups.setdefault((scale, decay, muon), group)["params"].append(parameter)
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
