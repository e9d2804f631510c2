"""Optimizers (SGD, AdamW, Muon), learning-rate schedules, gradient clipping, loss scaling, and EMA."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from segtrain.compat import copy_, lerp_
from segtrain.config import MuonOptim, Optim
from segtrain.config.optim import POLY_POWER
from segtrain.precision import tf32


def multiplier(optim: Optim, step: int, steps: int, warmup: int) -> float:
    """Factor of the learning rate at optimizer step ``step`` (from 0) of ``steps``.

    In the first ``warmup`` steps, it rises linearly to 1 (onecycle: along a half cosine from 1/25, Smith & Topin 2018).
    Then it follows the schedule, where t goes from 0 to 1: poly (1 - t)^power (Chen et al. 2017), cosine (Loshchilov &
    Hutter 2017), linear, onecycle (cosine to 0), or constant.
    """
    if step < warmup:
        rise = (step + 1) / warmup
        return 0.04 + 0.96 * (1 - math.cos(math.pi * rise)) / 2 if optim.schedule == "onecycle" else rise
    t = (step - warmup) / max(1, steps - warmup)
    if optim.schedule == "poly":
        return float((1 - t) ** (optim.poly_power or POLY_POWER))
    if optim.schedule in ("cosine", "onecycle"):
        return (1 + math.cos(math.pi * t)) / 2
    return 1 - t if optim.schedule == "linear" else 1.0


def parameter_groups(
    model: nn.Module, encoder: Iterable[nn.Parameter], optim: Optim, heads: Iterable[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Parameter groups by learning rate, weight decay, and optimizer. ``scale`` multiplies optim.lr.

    Weights decay; biases and norms do not. With muon, filters with more than 3 input channels are in ``muon`` groups.
    AdamW updates the others: the first layer (3 input channels), depthwise filters, ``heads`` (the layers that make
    logits), biases, and norms.
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
    model: nn.Module, encoder: Iterable[nn.Parameter], optim: Optim, heads: Iterable[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum, AdamW, or Muon, with fused kernels if this torch has them for the device."""
    groups = parameter_groups(model, encoder, optim, heads)
    if optim.name == "muon":
        return Muon(groups, lr=optim.lr, momentum=optim.momentum, betas=optim.betas)
    if optim.name == "sgd":
        return _fused(torch.optim.SGD, groups, lr=optim.lr, momentum=optim.momentum, nesterov=optim.momentum > 0)
    return _fused(torch.optim.AdamW, groups, lr=optim.lr, betas=optim.betas)


def _fused(kind: Any, groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    # Torch has fused SGD since 2.3, and fused kernels for the CPU since 2.4. Some releases in between accept
    # ``fused=True`` and fail in the first step, and there is no fused SGD for sharded parameters, so one step is tried.
    # The foreach form computes the same, a little slower.
    probe = torch.zeros_like(groups[0]["params"][0], requires_grad=True)
    probe.grad = torch.zeros_like(probe)
    # The gradient of a 1x1 kernel in channels_last may come in other strides, which torch refuses before 2.2.
    kernel = torch.zeros(4, 4, 1, 1, device=probe.device).to(memory_format=torch.channels_last).requires_grad_()
    kernel.grad = torch.zeros(4, 4, 1, 1, device=probe.device)
    try:
        for tried in (probe, kernel):
            kind([tried], fused=True, **settings).step()
    except (TypeError, RuntimeError):
        return kind(groups, foreach=True, **settings)  # type: ignore[no-any-return]
    return kind(groups, fused=True, **settings)  # type: ignore[no-any-return]


def orthogonalize(matrix: Tensor, steps: int = 5) -> Tensor:
    """A nearly semi-orthogonal matrix close to ``matrix`` (rows, cols): its singular values are about 0.7 to 1.2.

    ``matrix`` may also be a stack (n, rows, cols) of matrices.

    Newton-Schulz iteration with the quintic of Jordan et al. (Muon, 2024). Each round multiplies by a polynomial in the
    Gram matrix. Such polynomials commute, so all rounds run on small square matrices, and the wide matrix is multiplied
    only once, at the end. For 3x3 filters (cols = 9 * rows), this is 2.5 times cheaper.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall, stacked = matrix.shape[-2] > matrix.shape[-1], matrix.dim() == 3
    x = matrix.mT if tall else matrix
    x = x / ((x.norm(dim=(1, 2), keepdim=True) if stacked else x.norm()) + 1e-7)
    add_product = torch.baddbmm if stacked else torch.addmm
    gram = x @ x.mT
    product: Tensor | None = None
    for step in range(steps):
        p = add_product(gram, gram, gram, beta=b, alpha=c)
        p.diagonal(dim1=-2, dim2=-1).add_(a)
        product = p if product is None else p @ product
        if step + 1 < steps:
            gram = p @ (gram @ p)
    x = product @ x  # type: ignore[operator]
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for groups with ``muon: True``, AdamW for the others.

    A convolution weight is treated as the matrix (out, in * kh * kw). Its step is the orthogonalized Nesterov momentum,
    scaled to a root mean square of 0.2, as is usual for steps of AdamW (Liu et al. 2025), with decoupled weight decay.
    Every rank must have the whole gradient (strategies single, dp, ddp, smddp), and computes the same step.

    On a GPU, weights of equal shape are updated together, because each matrix alone would cost 40 kernel launches.
    """

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, momentum: float = 0.95, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "betas": betas, "weight_decay": 0.0, "muon": False})
        others = [group for group in self.param_groups if not group["muon"]]
        self._adamw = _fused(torch.optim.AdamW, others, lr=lr, betas=betas) if others else None
        if self._adamw is not None:
            # AdamW shares our groups and state, so code that sets learning rates or saves moments sees one optimizer.
            self.param_groups = [group for group in self.param_groups if group["muon"]] + self._adamw.param_groups
            self._adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        with tf32(False):
            for group in self.param_groups:
                if group["muon"]:
                    for parameters in self._together(group["params"]):
                        self._step(parameters, group)
        if self._adamw is not None:
            self._adamw.step()

    @staticmethod
    def _together(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
        """The parameters with a gradient: on a GPU by shape, on a CPU each alone."""
        found: dict[Any, list[nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.grad is not None:
                key = parameter.shape if parameter.is_cuda else id(parameter)
                found.setdefault(key, []).append(parameter)
        return list(found.values())

    def _step(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        momentum, directions = group["momentum"], []
        for parameter in parameters:
            state, grad = self.state[parameter], parameter.grad
            assert grad is not None
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].lerp_(grad, 1 - momentum)
            directions.append(grad.lerp(state["momentum"], momentum).reshape(len(parameter), -1))
        steps = orthogonalize(torch.stack(directions)) if len(directions) > 1 else [orthogonalize(directions[0])]
        for parameter, step in zip(parameters, steps):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(step.view_as(parameter), alpha=-group["lr"] * 0.2 * max(step.shape) ** 0.5)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group["scale"]


def clip_(parameters: list[nn.Parameter], most: float) -> Tensor:
    """Scale gradients in place so that their global 2-norm is at most ``most`` (0: only measure). Returns the norm.

    For sharded gradients (DTensor), torch computes the norm over all ranks; the full scalar is returned.
    """
    norm: Any = torch.nn.utils.clip_grad_norm_(parameters, most or math.inf)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


class LossScaler:
    """Dynamic loss scale for fp16 (Micikevicius et al. 2018): halved after an overflow, doubled after 2,000 good steps.

    An overflow shows in the norm of the summed gradient, which is equal on all ranks: all skip the step, or none does.
    """

    def __init__(self, enabled: bool, scale: float = 2.0**16, patience: int = 2000) -> None:
        self.enabled, self.scale, self.patience, self.good = enabled, scale if enabled else 1.0, patience, 0

    def unscale_(self, parameters: list[nn.Parameter]) -> None:
        if self.enabled:
            grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if grads:
                torch._foreach_mul_(grads, 1 / self.scale)

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
        shadow, new = ([_shard(state[name].detach()) for name in averaged] for state in (self.shadow, current))
        lerp_(shadow, new, weight)
        counts = [name for name, value in current.items() if not value.is_floating_point()]
        copy_([self.shadow[name] for name in counts], [current[name] for name in counts])


def _shard(value: Tensor) -> Tensor:
    """The local shard of a DTensor: foreach kernels refuse a mix of sharded parameters (fsdp) and whole buffers."""
    return value.to_local() if hasattr(value, "to_local") else value
