"""Interface of an experiment tracker, and the type of a row in the table of trackers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np


class Tracker(Protocol):
    name: str

    def scalars(self, values: Mapping[str, float], step: int) -> None: ...

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        """``image``: uint8 (H, W, 3) RGB."""

    def text(self, tag: str, text: str) -> None: ...

    def close(self, status: str) -> None: ...


@dataclass(frozen=True)
class TrackedRun:
    """Facts about a run for its trackers. ``config``: all settings, as nested values.

    ``resume_step``: the step that a resumed run continues from; None for a new run.
    """

    folder: Path
    name: str = "run"
    hash: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    resume_step: int | None = None


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
