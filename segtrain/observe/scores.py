"""The scores of an evaluation that are shown, and the one that decides which is the best. Imports
no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from segtrain.base.units import percent
from segtrain.errors import ConfigError, closest, some_of
from segtrain.observe.console import classes_note


@dataclass(frozen=True)
class Score:
    """A number in ``scores`` of an ``eval`` event: on the console, in trackers, in the report, and
    in the difference of two runs.

    A share is a fraction that is shown in percent.
    """

    key: str
    words: str
    color: str = "a"  # of its curve, from report.css
    class_mean: bool = False  # texts then say how many classes have pixels
    lower: bool = False  # whether a lower value is better
    unit: Literal["%", "", " px"] = "%"

    @property
    def scale(self) -> int:
        """What a value is multiplied by where it is shown."""
        return 100 if self.unit == "%" else 1

    def text(self, scores: Mapping[str, Any], digits: int = 2) -> str:
        """``mIoU 45.12% (3 of 11 classes)``, for the console."""
        value = math.nan if scores[self.key] is None else scores[self.key]
        digits = digits if self.unit else 4
        shown = f"{self.scale * value:.{digits}f}{self.unit}"
        return f"{self.words} {shown}{self._classes(scores)}"

    def percent(self, scores: Mapping[str, Any]) -> str:
        """``45.12 % (3 of 11 classes)``, for the report; ``-`` if there is no value."""
        value = scores.get(self.key)
        if self.unit == "%" or value is None:
            return percent(value, 2) + self._classes(scores)
        return f"{value:.4g}{self.unit}"

    def better(self, value: float, other: float) -> bool:
        """Whether ``value`` is better than ``other``. NaN never is."""
        return value < other if self.lower else value > other

    def value(self, scores: Mapping[str, Any], names: Sequence[str]) -> float | None:
        """Its value; ``names``: of the classes."""
        kind, _, class_name = self.key.partition("/")
        if class_name:
            return scores[_OF_CLASS[kind][0]][names.index(class_name)]  # type: ignore[no-any-return]
        return scores.get(self.key)

    def _classes(self, scores: Mapping[str, Any]) -> str:
        return classes_note(scores) if self.class_mean else ""


BEST = Score("miou", "mIoU", class_mean=True)
LOSS = Score("loss", "loss", lower=True, unit="")
# The launchers read the line after an evaluation: it begins with these two.
SHOWN = (BEST, Score("accuracy", "pixel accuracy", "eval"))
HAUSDORFF = Score("mean_hausdorff", "Hausdorff distance", lower=True, unit=" px")
_NAMED = {
    score.key: score
    for score in (
        *SHOWN,
        LOSS,
        HAUSDORFF,
        Score("mean_accuracy", "mean accuracy"),
        Score("mean_precision", "mean precision"),
        Score("mean_dice", "mean Dice"),
        Score("mean_image_dice", "mean Dice of images"),
    )
}
# Scores of a class: its key in ``scores``, and its name.
_OF_CLASS = {
    "iou": ("iou", "IoU"),
    "dice": ("dice", "Dice"),
    "recall": ("class_accuracy", "recall"),
    "precision": ("precision", "precision"),
}


def named_score(name: str) -> Score:
    """The score that ``eval.best`` names: ``miou``, ``loss``, ``iou/road``, ... Raises
    ConfigError.
    """
    name = {"dice": "mean_dice"}.get(name, name)
    kind, slash, class_name = name.partition("/")
    if slash and kind in _OF_CLASS:
        return Score(name, f"{_OF_CLASS[kind][1]} of {class_name}")
    if name in _NAMED:
        return _NAMED[name]
    names = [*_NAMED, *(f"{kind}/CLASS" for kind in _OF_CLASS)]
    raise ConfigError(
        f"eval.best={name!r} is not a score: {_or_one_of(name, names)}",
        code="unknown-score",
        key="eval.best",
        found=name,
    )


def refuse_unknown_class(key: str, name: str, names: Sequence[str]) -> None:
    """Raise ConfigError if the setting ``key`` names a class that is not in ``names``."""
    if name not in names:
        raise ConfigError(
            f"{key}: there is no class {name!r}: {_or_one_of(name, names)}",
            code="no-such-class",
            key=key,
            found=name,
        )


def _or_one_of(name: str, names: Sequence[str]) -> str:
    near = closest(name, names, 0.4)
    return f"did you mean {near!r}? " * bool(near) + f"use one of {some_of(list(names), 12)}"
