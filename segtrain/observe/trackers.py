"""Table of the experiment trackers, and all trackers of a run as one.

A requested tracker that is not installed, or cannot be reached, is an error at the start.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from segtrain.errors import MissingExtra
from segtrain.observe.journal import say_on_stderr
from segtrain.observe.tracker import MLflow, TensorBoard, TrackedRun, Tracker, WandB

if TYPE_CHECKING:
    import numpy as np

    from segtrain.config import Log


@dataclass(frozen=True)
class TrackerKind:
    """``make(value, run)`` starts the tracker if ``log.SETTING`` has a value other than false or "".

    ``extra``: the extra of pyproject.toml that installs ``package``; without it, a run with the tracker is refused.
    Empty for a package that segtrain requires: without it, the run prints a line and continues without the tracker.
    """

    setting: str
    package: str
    extra: str
    make: Callable[[Any, TrackedRun], Tracker]


TRACKERS = [
    TrackerKind("tensorboard", package="tensorboard", extra="", make=TensorBoard),
    TrackerKind("mlflow", package="mlflow", extra="mlflow", make=MLflow),
    TrackerKind("wandb", package="wandb", extra="wandb", make=WandB),
]


class Trackers:
    """All trackers of a run as one. A tracker that raises is dropped with one line; the run continues."""

    def __init__(self, trackers: list[Tracker], say: Callable[[str], None] = say_on_stderr) -> None:
        self._trackers = trackers
        self._say = say

    def _each(self, method: str, *values: Any) -> None:
        for tracker in list(self._trackers):
            try:
                getattr(tracker, method)(*values)
            except Exception as error:  # Third-party code must not end a run.
                self._trackers.remove(tracker)
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                name = getattr(tracker, "name", type(tracker).__name__)
                self._say(f"{name} is off from now on: {method} raised {reason}")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Send ``values`` (tag -> number) without those that are not finite."""
        finite = {tag: float(value) for tag, value in values.items() if value is not None and math.isfinite(value)}
        if finite:
            self._each("scalars", finite, step)

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        self._each("image", tag, image, step)

    def text(self, tag: str, text: str) -> None:
        self._each("text", tag, text)

    def close(self, status: str = "done") -> None:
        self._each("close", status)
        self._trackers = []


def refuse_trackers(log: Log) -> None:
    """Raise MissingExtra for a requested tracker that is not installed."""
    for kind in TRACKERS:
        asked = getattr(log, kind.setting)
        if asked and kind.extra and importlib.util.find_spec(kind.package) is None:
            raise MissingExtra(kind.package, kind.extra, f"log.{kind.setting}={asked}")


def open_trackers(
    log: Log,
    run: TrackedRun,
    *,
    rank: int = 0,
    say: Callable[[str], None] = say_on_stderr,
    own: Sequence[Tracker] = (),
) -> Trackers:
    """The requested trackers and the user's ``own``; none on ranks other than 0.

    Raises MissingExtra, or ConfigError if a server cannot be reached.
    """
    if rank != 0:
        return Trackers([], say)
    refuse_trackers(log)
    trackers = []
    for kind in TRACKERS:
        value = getattr(log, kind.setting)
        if value and importlib.util.find_spec(kind.package) is None:
            fix = f"pip install {kind.package}, or set log.{kind.setting}=false"
            say(f"{kind.package} is not installed: continuing without it ({fix})")
        elif value:
            trackers.append(kind.make(value, run))
    return Trackers([*trackers, *own], say)
