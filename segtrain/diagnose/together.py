"""Waits of all ranks of a run together, for samples and for cores: when one rank waits, the others wait for it.

A rank that has its samples waits in ``sync`` for the rank whose samples are late, and in the next step it may be the
other way around. So the wait of a step is that of its slowest rank, not the mean and not that of any one rank. Windows
hold sums over steps, and a sum of greatest values has three bounds:

the greatest sum of a rank <= sum of the greatest <= the sum over ranks,

and no rank can have waited for others longer than its ``sync`` (or, for a rank that was late in its passes,
``gradient_sync``) lasted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Windows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Together:
    """Seconds of a mean step, of all ranks as one.

    ``late``: its loops could have run and had no core; None: not counted.
    """

    wait: float
    cpu_wait: float | None


@dataclass(frozen=True)
class _Share:
    """Seconds of a mean step of one rank, in a block of steps that all ranks made."""

    wait: float
    sync: float
    gradient_sync: float
    cpu_wait: float


def together(ranks: Sequence[Windows], cpu_wait: Sequence[Sequence[float] | None]) -> Together:
    """``late``: of each rank's windows, seconds; None where the system counts none."""
    counted = all(of is not None for of in cpu_wait)
    steps = wait = held = 0.0
    for block in _blocks(ranks):
        count = _steps([ranks[0][k] for k in block[0]])
        shares = [
            _share([windows[k] for k in chosen], [of[k] for k in chosen] if of is not None else [])
            for windows, of, chosen in zip(ranks, cpu_wait, block)
        ]
        for_samples = _slowest([s.wait for s in shares], [s.wait + s.sync for s in shares])
        rest = [s.gradient_sync + max(0.0, s.sync - (for_samples - s.wait)) for s in shares]
        for_cores = _slowest([s.cpu_wait for s in shares], [s.cpu_wait + more for s, more in zip(shares, rest)])
        steps, wait, held = steps + count, wait + count * for_samples, held + count * for_cores
    return Together(wait / steps, held / steps if counted else None) if steps else Together(0.0, None)


def _slowest(own: Sequence[float], most: Sequence[float]) -> float:
    """Sum of the greatest values, from each rank's own sum and from the most that its waiting for others allows."""
    return max(max(own), min(sum(own), min(most)))


def _blocks(ranks: Sequence[Windows]) -> list[list[list[int]]]:
    """Windows of each rank, by number, cut where a window of every rank ends; all in one where that is nowhere."""
    ends = sorted(set.intersection(*({w["last"] for w in windows} for windows in ranks)))
    if not ends:
        return [[list(range(len(windows))) for windows in ranks]]
    found = []
    for before, end in zip([float("-inf"), *ends], ends):
        found.append([[k for k, w in enumerate(windows) if before < w["last"] <= end] for windows in ranks])
    return found


def _share(windows: Windows, cpu_wait: Sequence[float]) -> _Share:
    steps = _steps(windows)
    phase = {p: sum(w["phases"].get(p, 0.0) for w in windows) / steps for p in ("wait", "sync", "gradient_sync")}
    return _Share(phase["wait"], phase["sync"], phase["gradient_sync"], sum(cpu_wait) / steps)


def _steps(windows: Windows) -> int:
    return sum(int(w["last"]) - int(w["first"]) + 1 for w in windows)
