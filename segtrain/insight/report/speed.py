"""Speed of a run: the time of a step and of its phases, from the laps between log lines (timeline.py)."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from segtrain.insight.report.timeline import Lap, steady

# Phases in the order of a step, with the words for them. A phase that is not listed here is shown by its own name.
PHASES = {
    "wait": "waiting for data",
    "device": "copy to the device",
    "forward": "forward",
    "sync": "waiting for other ranks",
    "backward": "backward",
    "gradient_sync": "gradient sync",
    "update": "optimizer",
    "log": "logging",
    "other": "everything else",
}


@dataclass(frozen=True)
class Speed:
    """Speed over the laps that ``steady`` returns."""

    step_s: float  # median over the laps of their mean time of a step
    shares: dict[str, float]  # shares of the phases in the time of a step; they add up to 1
    images_per_s: float | None  # median over the laps
    cores: float | None  # CPU seconds per second, of all ranks
    worst_wait: float  # share of waiting in the worst tenth of the run, which ends with step ``worst_step``
    worst_step: int

    @property
    def wait(self) -> float:
        return self.shares.get("wait", 0.0)


def speed(found: Sequence[Lap]) -> Speed | None:
    """The speed in these laps; None if the journal has no step."""
    kept = steady(found)
    seconds = sum(lap.seconds for lap in kept)
    if not kept or seconds <= 0:
        return None
    shares = {phase: sum(lap.spans.get(phase, 0.0) for lap in kept) / seconds for phase in phases(kept)}
    rates = [lap.event["images_per_s"] for lap in kept if lap.event.get("images_per_s") is not None]
    step_s = statistics.median(lap.seconds / lap.steps for lap in kept)
    return Speed(step_s, shares, statistics.median(rates) if rates else None, _cores(found), *_worst_wait(kept))


def _worst_wait(kept: Sequence[Lap]) -> tuple[float, int]:
    size = -(-len(kept) // 10)
    tenths = [kept[index : index + size] for index in range(0, len(kept), size)]
    shares = []
    for tenth in tenths:
        seconds = sum(lap.seconds for lap in tenth)
        shares.append((sum(lap.spans.get("wait", 0.0) for lap in tenth) / (seconds or 1.0), tenth[-1].step))
    return max(shares)


def _cores(found: Sequence[Lap]) -> float | None:
    """CPU seconds per second, from the differences of ``cpu_s`` between laps.

    The value of ``cpu_s`` itself is not used, because its first value includes the imports of all ranks.
    """
    cpu = wall = 0.0
    for before, lap in itertools.pairwise(found):
        old, new = before.event.get("cpu_s"), lap.event.get("cpu_s")
        if not lap.first and old is not None and new is not None and new >= old:
            cpu, wall = cpu + new - old, wall + lap.seconds
    return cpu / wall if wall > 0 else None


def phases(found: Sequence[Lap]) -> list[str]:
    """All phases that occur, in the order of a step."""
    there = dict.fromkeys(phase for lap in found for phase in lap.spans)
    known = [phase for phase in PHASES if phase in there and phase != "other"]
    new = [phase for phase in there if phase not in PHASES]
    return known + new + (["other"] if "other" in there else [])


def words(phase: str) -> str:
    return PHASES.get(phase, phase)


def quantiles(values: Sequence[float], *wanted: float) -> list[float]:
    """Quantiles by linear interpolation. ``values`` must not be empty."""
    return [float(value) for value in np.quantile(values, wanted)]
