"""Waits of all ranks of a run together, for samples and for cores: when one rank waits, the others wait for it.

A rank that has its samples waits in ``sync`` for the rank whose samples are late, and in the next step it may be the
other way around. So the wait of a step is the longest wait of any rank in this step, not the mean and not the wait of
one fixed rank. Windows hold only sums over steps, so the sum of these longest waits is estimated from three bounds:

the largest sum of one rank <= the sum of the longest waits <= the sum over all ranks,

and no rank can have waited for the samples of others longer than its ``sync`` lasted. Nor can it have waited for ranks
without a core longer than its ``sync`` and its ``gradient_sync`` lasted together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from segtrain.observe.spans import NO_STEP

Windows = Sequence[Mapping[str, Any]]


def straggler_wait(ranks: Sequence[Windows]) -> tuple[float, float]:
    """Seconds of a mean step in which the ranks wait for samples, and for a core.

    ``ranks``: the windows of each rank.
    """
    steps = wait = held = 0.0
    for block in _blocks(ranks):
        waits, syncs, gradient_syncs, cpu_waits = zip(*map(_means, block))
        for_samples = _slowest(waits, map(sum, zip(waits, syncs)))
        rest = (more + max(0.0, sync - (for_samples - own)) for own, sync, more in zip(waits, syncs, gradient_syncs))
        for_cores = _slowest(cpu_waits, map(sum, zip(cpu_waits, rest)))
        count = sum(map(steps_of, block[0]))
        steps, wait, held = steps + count, wait + count * for_samples, held + count * for_cores
    return wait / steps, held / steps


def _slowest(own: Sequence[float], most: Iterable[float]) -> float:
    """Estimate of the sum of the longest waits. ``own``: the sum of each rank. ``most``: upper bounds, by rank."""
    return max(max(own), min(sum(own), min(most)))


def _blocks(ranks: Sequence[Windows]) -> list[list[Windows]]:
    """Blocks of windows, by rank. A block ends at a step at which a window of every rank ends, if there is one."""
    ends = sorted(set.intersection(*({w["last"] for w in windows} for windows in ranks))) or [float("inf")]
    return [
        [[w for w in windows if before < w["last"] <= end] for windows in ranks]
        for before, end in zip([float("-inf"), *ends], ends)
    ]


def _means(windows: Windows) -> tuple[float, ...]:
    """Seconds of a mean step: in ``wait``, ``sync``, and ``gradient_sync``, and without a core."""
    sums = [sum(w["phases"].get(phase, 0.0) for w in windows) for phase in ("wait", "sync", "gradient_sync")]
    steps = sum(map(steps_of, windows))
    return tuple(spent / steps for spent in (*sums, sum(map(cpu_wait_of, windows))))


def steps_of(window: Mapping[str, Any]) -> int:
    return int(window["last"]) - int(window["first"]) + 1


def cpu_wait_of(window: Mapping[str, Any]) -> float:
    """Seconds for which the steps of a window waited for a core, at most the time that they took."""
    phases = window["phases"]
    awake = sum(s for phase, s in phases.items() if phase != "wait")
    inside = awake - sum(phases.get(phase, 0.0) for phase in NO_STEP)
    return float(min(inside, window.get("cpu_wait_s", 0.0) * inside / awake)) if awake > 0 else 0.0
