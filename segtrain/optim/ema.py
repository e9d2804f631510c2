"""Exponential moving average of a network."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from segtrain.optim.scaler import unless


class Ema:
    """Exponential moving average of parameters and float buffers of ``model`` (Polyak & Juditsky
    1992).

    The decay rises as (1 + step) / (10 + step) up to ``decay``, so that the random start is soon
    forgotten. ``shadow`` has the averages under the names of the model's state dict, without
    ``get_extra_state``.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self._model = decay, model
        whole = model.state_dict(keep_vars=True)
        state = {name: value for name, value in whole.items() if not name.endswith("_extra_state")}
        self.shadow = {name: value.detach().clone() for name, value in state.items()}
        self._averaged = [name for name, value in state.items() if value.is_floating_point()]
        self._copied = [name for name, value in state.items() if not value.is_floating_point()]
        self._sharded = any(hasattr(value, "to_local") for value in state.values())

    @torch.no_grad()
    def update(self, step: int, skipped: Tensor | None = None) -> None:
        """Average the model's present values in. ``skipped``: see ``LossScaler.step``; such a step
        changes nothing.
        """
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        current = self._model.state_dict()
        average = partial(torch._foreach_lerp_, weight=weight)
        for names, change in ((self._averaged, average), (self._copied, torch._foreach_copy_)):
            shadow, new = ([values[name] for name in names] for values in (self.shadow, current))
            if self._sharded:
                shadow, new = ([_shard(value) for value in values] for values in (shadow, new))
            if skipped is not None:  # the average of a value and itself is the value
                new = unless(skipped, new, shadow)
            if shadow:
                change(shadow, new)


def _shard(value: Tensor) -> Tensor:
    """The local shard of a DTensor: foreach kernels refuse a mix of sharded parameters (fsdp) and
    whole buffers.
    """
    return value.to_local() if hasattr(value, "to_local") else value
