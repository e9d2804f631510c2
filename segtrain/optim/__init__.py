"""Optimizers (SGD, AdamW, Muon), learning-rate schedules, gradient clipping, loss scaling, and
EMA.
"""

from __future__ import annotations

from segtrain.optim.ema import Ema
from segtrain.optim.groups import build_optimizer, parameter_groups
from segtrain.optim.muon import Muon, orthogonalize
from segtrain.optim.scaler import LossScaler, clip_
from segtrain.optim.schedule import encoder_multiplier, multiplier, set_lr

__all__ = [
    "Ema",
    "LossScaler",
    "Muon",
    "build_optimizer",
    "clip_",
    "encoder_multiplier",
    "multiplier",
    "orthogonalize",
    "parameter_groups",
    "set_lr",
]
