"""Table of the experiment trackers, and an object that sends to all trackers of a run.

A requested tracker that cannot be reached, or whose extra is not installed, is an error at the
start.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from segtrain.errors import MissingExtra, without_platforms
from segtrain.observe.journal import Say
from segtrain.observe.tracker import MLflow, TensorBoard, TrackedRun, Tracker, WandB

if TYPE_CHECKING:
    import numpy as np

    from segtrain.config import Log


@dataclass(frozen=True)
class TrackerKind:
    """A kind of tracker: ``make(value, run)`` starts it if ``log.SETTING`` has a value other than
    false or "".

    ``extra``: the extra of pyproject.toml that installs ``package``. A run is refused if such a
    package is missing. ``extra`` is empty for a package that segtrain itself requires. If such a
    package is missing, the run prints a line and continues without the tracker. ``module``: the
    import name of the package, if it is not ``package``.
    """

    setting: str
    package: str
    extra: str
    make: Callable[[Any, TrackedRun], Tracker]
    module: str = ""

    @property
    def is_installed(self) -> bool:
        try:
            return importlib.util.find_spec(self.module or self.package) is not None
        except ModuleNotFoundError:  # The parent package of the module is missing too.
            return False


# of the section log; each asks for a tracker
SETTINGS = ("tensorboard", "mlflow", "wandb", "vertex")
# The trackers of the core. Those of platforms are in segtrain/platforms/__init__.py.
TRACKERS = (
    TrackerKind("tensorboard", package="tensorboard", extra="", make=TensorBoard),
    TrackerKind("mlflow", package="mlflow", extra="mlflow", make=MLflow),
    TrackerKind("wandb", package="wandb", extra="wandb", make=WandB),
)


class Trackers:
    """Sends to all trackers of a run. A tracker that raises is dropped with one printed line; the
    run continues.
    """

    def __init__(self, trackers: list[Tracker], say: Say) -> None:
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
        """Send ``values`` (tag -> number), leaving out None, NaN, and infinities."""
        finite = {
            tag: float(value)
            for tag, value in values.items()
            if value is not None and math.isfinite(value)
        }
        if finite:
            self._each("scalars", finite, step)

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        self._each("image", tag, image, step)

    def text(self, tag: str, text: str) -> None:
        self._each("text", tag, text)

    def close(self, status: str = "done") -> None:
        self._each("close", status)
        self._trackers = []


def refuse_trackers(log: Log, kinds: Sequence[TrackerKind]) -> None:
    """Raise MissingExtra for a requested tracker that is not installed."""
    for kind in kinds:
        value = getattr(log, kind.setting)
        if value and kind.extra and not kind.is_installed:
            raise MissingExtra(kind.package, kind.extra, f"log.{kind.setting}={value}")
    for setting in {*SETTINGS} - {kind.setting for kind in kinds}:
        if value := getattr(log, setting):
            raise without_platforms(f"log.{setting}", value)


def open_trackers(
    log: Log,
    run: TrackedRun,
    kinds: Sequence[TrackerKind],
    *,
    rank: int = 0,
    say: Say,
    own: Sequence[Tracker] = (),
) -> Trackers:
    """The requested trackers and the user's ``own``; none on ranks other than 0.

    Raises MissingExtra, or ConfigError if a server cannot be reached.
    """
    if rank != 0:
        return Trackers([], say)
    refuse_trackers(log, kinds)
    trackers = []
    for kind in kinds:
        value = getattr(log, kind.setting)
        if value and not kind.is_installed:
            fix = f"pip install {kind.package}, or set log.{kind.setting}=false"
            say(f"{kind.package} is not installed: continuing without it ({fix})")
        elif value:
            trackers.append(kind.make(value, run))
    return Trackers([*trackers, *own], say)
