"""Learning-rate schedules."""

from __future__ import annotations

import math

import torch

from segtrain.config import Optim
from segtrain.config.optim import POLY_POWER


def multiplier(optim: Optim, step: int, steps: int, warmup: int) -> float:
    """Factor of the learning rate at optimizer step ``step`` (from 0) of ``steps``.

    In the first ``warmup`` steps, it rises linearly to 1 (onecycle: along a half cosine from 1/25,
    Smith & Topin 2018). Then it follows the schedule, where t goes from 0 to 1: poly (1 - t)^power
    (Chen et al. 2017), cosine (Loshchilov & Hutter 2017), linear, onecycle (cosine to 0), or
    constant.
    """
    if step < warmup:
        rise = (step + 1) / warmup
        return (
            0.04 + 0.96 * (1 - math.cos(math.pi * rise)) / 2
            if optim.schedule == "onecycle"
            else rise
        )
    t = (step - warmup) / max(1, steps - warmup)
    if optim.schedule == "poly":
        return float((1 - t) ** (optim.poly_power or POLY_POWER))
    if optim.schedule in ("cosine", "onecycle"):
        return (1 + math.cos(math.pi * t)) / 2
    return 1 - t if optim.schedule == "linear" else 1.0


def encoder_multiplier(optim: Optim, step: int, steps: int, warmup: int, start: int) -> float:
    """``multiplier`` of an encoder that begins at step ``start``: 0 before, then a linear warm-up
    of its own.
    """
    if step < start:
        return 0.0
    rise = min(1.0, (step - start + 1) / max(1, warmup))
    return rise * multiplier(optim, max(step, warmup), steps, warmup)


def set_lr(optimizer: torch.optim.Optimizer, lr: float, late: float = 0.0) -> None:
    """Set the learning rate of each group: its scale times ``lr``, or ``late`` in late groups."""
    for group in optimizer.param_groups:
        group["lr"] = (late if group.get("late") else lr) * group["scale"]
