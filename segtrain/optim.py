"""What turns gradients into new weights: optimizer, schedule (a pure function of the step), clipping, scaler, EMA."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from segtrain.config import Optim


def multiplier(optim: Optim, step: int, steps: int, warmup: int) -> float:
    """Factor of the learning rate at optimizer step ``step`` of ``steps`` (both from 0).

    ``warmup`` steps rise linearly to 1 (onecycle: by a half cosine from 1/25, Smith & Topin 2018); then poly
    (1 - t)^power (Chen et al. 2017), cosine (Loshchilov & Hutter 2017), linear, onecycle (cosine to 0), or constant.
    """
    if step < warmup:
        rise = (step + 1) / warmup
        return 0.04 + 0.96 * (1 - math.cos(math.pi * rise)) / 2 if optim.schedule == "onecycle" else rise
    t = (step - warmup) / max(1, steps - warmup)
    if optim.schedule == "poly":
        return (1 - t) ** optim.poly_power
    if optim.schedule in ("cosine", "onecycle"):
        return (1 + math.cos(math.pi * t)) / 2
    return 1 - t if optim.schedule == "linear" else 1.0


def parameter_groups(model: nn.Module, encoder: Iterable[nn.Parameter], optim: Optim) -> list[dict[str, Any]]:
    """Up to four groups: (encoder, rest) x (weights, biases and norms without decay). ``scale`` multiplies lr."""
    of_encoder = {id(p) for p in encoder}
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        scale = optim.encoder_lr if id(parameter) in of_encoder else 1.0
        decay = optim.weight_decay if parameter.dim() > 1 else 0.0
        group = groups.setdefault((scale, decay), {"params": [], "weight_decay": decay, "scale": scale, "lr": optim.lr * scale})
        group["params"].append(parameter)
    return list(groups.values())


def build_optimizer(model: nn.Module, encoder: Iterable[nn.Parameter], optim: Optim) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum or AdamW, in the fused form where this torch has it for the device."""
    groups = parameter_groups(model, encoder, optim)
    kind, settings = {
        "sgd": (torch.optim.SGD, {"momentum": optim.momentum, "nesterov": optim.momentum > 0}),
        "adamw": (torch.optim.AdamW, {"betas": optim.betas}),
    }[optim.name]
    try:
        return kind(groups, lr=optim.lr, fused=True, **settings)  # type: ignore[arg-type]
    except (TypeError, RuntimeError, ValueError):
        # torch before 2.4 has no fused CPU kernels, and SGD's came with 2.3: the foreach form is the same arithmetic.
        return kind(groups, lr=optim.lr, foreach=True, **settings)  # type: ignore[arg-type]


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group["scale"]


def clip_(parameters: list[nn.Parameter], most: float) -> Tensor:
    """Scale gradients in place so that their global 2-norm is at most ``most`` (0: only measure). Returns the norm.

    Sharded gradients (DTensor) are summed over ranks by torch; the scalar comes back whole.
    """
    norm: Any = torch.nn.utils.clip_grad_norm_(parameters, most or math.inf)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


class LossScaler:
    """Dynamic loss scale for fp16 (Micikevicius et al. 2018): halved after an overflow, doubled after 2,000 good steps.

    Overflow shows in the norm of the summed gradient, which is the same number on every rank: all skip, or none.
    """

    def __init__(self, enabled: bool, scale: float = 2.0**16, patience: int = 2000) -> None:
        self.enabled, self.scale, self.patience, self.good = enabled, scale if enabled else 1.0, patience, 0

    def unscale_(self, parameters: list[nn.Parameter]) -> None:
        if self.enabled:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(1 / self.scale)

    def update(self, finite: bool) -> None:
        if not self.enabled:
            return
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.scale /= 2
        elif self.good == self.patience:
            self.scale, self.good = self.scale * 2, 0

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale, "good": self.good}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale, self.good = float(state["scale"]), int(state["good"])


class Ema:
    """Exponential moving average of parameters and float buffers (Polyak & Juditsky 1992).

    The decay rises as (1 + step) / (10 + step) up to ``decay``, so that the random start is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        current = model.state_dict()
        averaged = [name for name, value in current.items() if value.is_floating_point()]
        torch._foreach_lerp_([self.shadow[n] for n in averaged], [current[n].detach() for n in averaged], weight)
        for name, value in current.items():
            if not value.is_floating_point():
                self.shadow[name].copy_(value)
