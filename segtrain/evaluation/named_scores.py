"""Scores of a split by class name, as `segtrain.evaluate` and a finished training return them.
Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class NamedScores:
    """Scores as fractions. A class that is neither in the labels nor predicted has no score: nan.

    per_class: IoU by class name. values: the complete result, as ``segtrain eval --json`` prints
    it.
    """

    miou: float
    per_class: dict[str, float]
    accuracy: float
    mean_accuracy: float
    mean_dice: float
    values: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, values: Mapping[str, Any], names: Sequence[str]) -> NamedScores:
        """From ``Scores.to_dict()`` or the scores in a journal, where None stands for nan."""
        means = {
            key: _number(values[key]) for key in ("miou", "accuracy", "mean_accuracy", "mean_dice")
        }
        return cls(
            per_class={n: _number(v) for n, v in zip(names, values["iou"])}, values=values, **means
        )


def _number(value: float | None) -> float:
    return math.nan if value is None else value
