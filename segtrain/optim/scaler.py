"""Gradient clipping, and the loss scale of fp16."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def clip_(parameters: list[nn.Parameter], most: float) -> Tensor:
    """Scale gradients in place so that their global 2-norm is at most ``most`` (0: only measure).
    Returns the norm.

    For sharded gradients (DTensor), torch computes the norm over all ranks; the full scalar is
    returned.
    """
    norm: Any = torch.nn.utils.clip_grad_norm_(parameters, most or math.inf)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def unless(skipped: Tensor, values: list[Tensor], else_: list[Tensor]) -> list[Tensor]:
    """``values``, or the tensors ``else_`` if the step is skipped (a boolean scalar on their
    device).
    """
    return [torch.where(skipped, other, value) for value, other in zip(values, else_)]


class LossScaler:
    """Dynamic loss scale for fp16 (Micikevicius et al. 2018): halved after an overflow, doubled
    after 2,000 good steps.

    An overflow shows in the norm of the summed gradient, which is equal on all ranks: all skip the
    step, or none does. The scale (float64) and the number of good steps stay on ``device``, and the
    optimizer skips the step there, so the host need not wait for the norm.
    """

    def __init__(
        self,
        enabled: bool,
        device: torch.device | str = "cpu",
        scale: float = 2.0**16,
        patience: int = 2000,
    ) -> None:
        self.enabled, self._patience = enabled, patience
        self._scale = torch.full((), scale if enabled else 1.0, dtype=torch.float64, device=device)
        self._good = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def factor(self) -> Tensor | float:
        """What the loss is multiplied by: a scalar on the device, or 1."""
        return self._scale if self.enabled else 1.0

    def unscale_(self, parameters: list[nn.Parameter]) -> None:
        if self.enabled:
            grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
            shards = [grad.to_local() if hasattr(grad, "to_local") else grad for grad in grads]
            if shards:
                torch._foreach_mul_(shards, (1 / self._scale).float())

    def step(self, optimizer: torch.optim.Optimizer, norm: Tensor | None) -> Tensor | None:
        """Update the weights, unless ``norm`` of the unscaled gradients is not finite; then adapt
        the scale.

        Returns whether the step was skipped, a boolean scalar on the device; None without fp16,
        which skips none.
        """
        if not self.enabled or norm is None:
            optimizer.step()
            return None
        skipped = ~torch.isfinite(norm)
        if getattr(optimizer, "_step_supports_amp_scaling", False):  # as torch.amp.GradScaler asks
            _begin_momentum(optimizer)
            optimizer.grad_scale, optimizer.found_inf = None, skipped.float()  # type: ignore[attr-defined]
            optimizer.step()
            optimizer.found_inf = None  # type: ignore[attr-defined]
        # waits: an optimizer without fused kernels cannot decide on the device
        elif not bool(skipped):
            optimizer.step()
        self._adapt(skipped)
        return skipped

    def _adapt(self, skipped: Tensor) -> None:
        self._good.add_(1).masked_fill_(skipped, 0)
        doubled = self._good == self._patience
        # All factors are powers of two. No number of the host is mixed in by torch.where, which
        # would copy it. The scale keeps its memory, from which a CUDA graph reads it.
        self._scale.mul_(1 + doubled.double()).mul_(1 - skipped.double() / 2)
        self._good.masked_fill_(doubled, 0)

    def state_dict(self) -> dict[str, Tensor]:
        """Scalars on the device: ``scale``, and ``good``, the number of good steps since it last
        changed.
        """
        return {"scale": self._scale, "good": self._good}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._scale.fill_(float(state["scale"]))
        self._good.fill_(int(state["good"]))


def _begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give fused SGD zero momentum before its first step: if that is skipped, torch leaves it
    uninitialized.
    """
    if isinstance(optimizer, torch.optim.SGD) and not optimizer.state:
        for group in optimizer.param_groups:
            for parameter in group["params"] if group["momentum"] else ():
                if parameter.grad is not None:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
