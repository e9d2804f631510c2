"""Do ranks wait for each other? For a slow one, a slow host, or for the network between them."""

from __future__ import annotations

import statistics

from segtrain.diagnose.figures import BESIDE, TOGETHER, Figures, Rank
from segtrain.diagnose.verdict import Verdict

SLOWER = 0.20  # share of a step by which the slowest rank may be behind
STARVED = 0.8  # of the time of a rank's workers
CROWD = 0.5  # of what a rank is behind
NETWORK = 0.20  # share of a step that no rank can avoid for the gradients


def rank_verdicts(figures: Figures) -> list[Verdict]:
    if len(figures.ranks) < 2:
        return []
    return [v for v in (_slow(figures), _network(figures)) if v is not None]


def _slow(figures: Figures) -> Verdict | None:
    slow = max(figures.ranks, key=lambda rank: rank.own)
    host = [rank for rank in figures.ranks if rank.host == slow.host]
    others = [rank for rank in figures.ranks if rank.host != slow.host]
    whole_host = bool(others) and min(r.own for r in host) > max(r.own for r in others)
    if not whole_host:
        others = [rank for rank in figures.ranks if rank is not slow]
    usual = statistics.median(rank.own for rank in others)
    behind = slow.own - usual
    if behind <= SLOWER * slow.step or slow.least_own - usual <= SLOWER / 2 * slow.step:
        return None  # the second: a rank that is slow now and then shares its core with other programs
    phase = _late_in(slow, others)
    if phase == "wait" and all(_starved(rank) for rank in others):
        return (
            None  # all make samples as slowly: the one whose samples come last waits for them, the others for that rank
        )
    who = f"host {slow.host} (rank{'s' * (len(host) > 1)} {', '.join(str(r.rank) for r in host)})" if whole_host else (
        f"rank {slow.rank} on {slow.host or 'its host'}"
    )  # fmt: skip
    place, crowd = slow.host or "its host", _crowd(slow, behind)
    return Verdict(
        "slow-host" if whole_host else "slow-rank",
        behind / slow.step,
        f"{who} takes {1000 * slow.own:.3g} ms of its own in a step, the others {1000 * usual:.3g} ms and wait; it is late in '{phase}'"
        + (f", where it has no core for {1000 * crowd:.3g} ms" if crowd else ""),
        f"free the cores of {place}: other programs use them, or its ranks and workers are too many"
        if crowd
        else f"look what else runs on {place}, at its clocks and its disks; leave it out if it stays slow",
        slow.step / (slow.step - (crowd or behind)),
        "high" if slow.steps >= 8 else "medium",
    )


def _crowd(slow: Rank, behind: float) -> float:
    """Seconds of its step that a rank is behind because it has no core, where that is most of it; else 0."""
    late = min(behind, slow.late or 0.0)
    return late if late > CROWD * behind else 0.0


def _starved(rank: Rank) -> bool:
    """Whether the workers of this rank work all the time, so that its samples bound its step too."""
    samples = rank.samples
    if samples is None or not samples.workers:
        return False
    return samples.made * samples.wall / samples.workers > STARVED * rank.step


def _late_in(slow: Rank, others: list[Rank]) -> str:
    late = {
        phase: s - statistics.median(rank.phases.get(phase, 0.0) for rank in others)
        for phase, s in slow.phases.items()
        if phase not in TOGETHER and phase not in BESIDE
    }
    return max(late, key=lambda phase: late[phase])


def _network(figures: Figures) -> Verdict | None:
    """The rank that waits least for gradients is the one that nobody kept waiting: what it waits is the network's."""
    quickest = min(figures.ranks, key=lambda rank: rank.phases.get("gradient_sync", 0.0))
    spent = quickest.phases.get("gradient_sync", 0.0)
    share = spent / quickest.step
    if share <= NETWORK or quickest.least["gradient_sync"] <= NETWORK / 2:
        return None
    sent = 2 * (quickest.world - 1) / quickest.world * quickest.bytes_gradient
    moving = max(spent, quickest.shared or 0.0)
    saved = min(spent, moving / 2)  # of half the bytes; what is hidden already stays hidden
    hidden = f", {1 - spent / moving:.0%} of that behind the backward pass" if quickest.shared else ""
    halved = figures.evidence.setting("parallel.compress", "none") == "none"
    return Verdict(
        "slow-network",
        share,
        f"{share:.0%} of each step waits for gradients after the last one was computed, on every rank: {sent / 1e6:.3g} MB cross in "
        f"{1000 * moving:.3g} ms{hidden}, {8 * sent / moving / 1e9:.2g} Gbit/s",
        "parallel.compress=fp16"
        if halved
        else "a larger train.batch_size with train.accumulate: fewer gradients for each image",
        quickest.step / (quickest.step - saved),
        "medium",
    )
