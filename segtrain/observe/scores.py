"""The scores of an evaluation that are shown, and the one that decides which is the best. Imports
no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from segtrain.base.units import percent
from segtrain.observe.console import classes_note


@dataclass(frozen=True)
class Score:
    """A fraction in ``scores`` of an ``eval`` event, shown in percent: on the console, in trackers,
    in the report, and in the difference of two runs.
    """

    key: str
    words: str
    color: str  # of its curve, from report.css
    class_mean: bool = False  # texts then say how many classes have pixels

    def text(self, scores: Mapping[str, Any], digits: int = 2) -> str:
        """``mIoU 45.12% (3 of 11 classes)``, for the console."""
        value = math.nan if scores[self.key] is None else scores[self.key]
        return f"{self.words} {100 * value:.{digits}f}%{self._classes(scores)}"

    def percent(self, scores: Mapping[str, Any]) -> str:
        """``45.12 % (3 of 11 classes)``, for the report; ``-`` if there is no value."""
        return percent(scores.get(self.key), 2) + self._classes(scores)

    def _classes(self, scores: Mapping[str, Any]) -> str:
        return classes_note(scores) if self.class_mean else ""


# The launchers read the line after an evaluation: it begins with these two.
SHOWN = (Score("miou", "mIoU", "a", class_mean=True), Score("accuracy", "pixel accuracy", "eval"))
BEST = SHOWN[0]
