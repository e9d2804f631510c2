"""Whole model and optimizer state, gathered from the shards of each rank and cut into them again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from segtrain.parallel.strategy import unwrapped


def full_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Model and optimizer state under the plain model's names, whole and on the CPU, whatever the strategy.

    A collective under fsdp: every rank calls it. The optimizer's state is keyed by parameter name, so that it fits
    any world size.
    """
    plain = unwrapped(model)
    weights = {k: _whole(v) for k, v in plain.state_dict().items()}
    names = {parameter: name for name, parameter in plain.named_parameters()}
    moments = {
        names[p]: {k: _whole(v) for k, v in optimizer.state[p].items()}
        for group in optimizer.param_groups
        for p in group["params"]
        if p in optimizer.state
    }
    return weights, moments


def load_full_state(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, weights: dict[str, Tensor], moments: dict[str, Any]
) -> None:
    """The inverse of ``full_state``: each rank takes its own share."""
    plain = unwrapped(model)
    with torch.no_grad():
        for name, value in plain.state_dict(keep_vars=True).items():
            value.copy_(share(weights[name], value))
    if optimizer is None:
        return
    group_of = {p: group for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in plain.named_parameters():
        if name in moments and parameter in group_of:
            group = group_of[parameter]
            on_device = bool(group.get("fused") or group.get("capturable"))
            optimizer.state[parameter] = {
                key: placed_as(parameter, key, value, on_device) for key, value in moments[name].items()
            }


def placed_as(parameter: Tensor, key: str, value: Any, on_device: bool) -> Any:
    """One entry of a parameter's optimizer state, as the optimizer would have made it beside ``parameter``.

    A moment gets the device, the type and the memory layout of its parameter: fused kernels walk parameter, gradient and
    moment as flat memory, so a moment in another layout would give each weight the moment of another weight. ``step`` goes to
    the parameter's device only for a fused or capturable optimizer (``on_device``), as in torch's ``load_state_dict``.
    """
    if not isinstance(value, Tensor):
        return value
    if key == "step":
        return value.to(parameter.device, torch.float32, copy=True) if on_device else value.clone()
    if value.shape != parameter.shape:
        return value.to(parameter.device, copy=True)
    return torch.empty_like(parameter.detach()).copy_(share(value, parameter))


def _whole(value: Any) -> Any:
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value


def share(value: Tensor, like: Tensor) -> Tensor:
    """``value`` on ``like``'s device, cut as ``like`` is when that is a DTensor."""
    value = value.to(like.device)
    if hasattr(like, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value, like.device_mesh, like.placements)  # type: ignore[attr-defined]
    return value
