"""Rules for ranks that wait for each other: for a slow rank, a slow host, or the network between them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from segtrain.diagnose.stats import SYNC_PHASES, Figures, Rank
from segtrain.diagnose.together import NON_STEP_PHASES
from segtrain.diagnose.verdict import Fix, Verdict

SLOWER = 0.20  # share of a step by which the slowest rank may be behind
STARVED = 0.8  # of the time of a rank's workers
CROWD = 0.5  # of what a rank is behind
NETWORK = 0.20  # share of a step that no rank can avoid for the gradients


@dataclass(frozen=True)
class Behind:
    """A rank, or all those of a host, that the others wait for in every window."""

    slow: Rank
    host: tuple[Rank, ...]  # all ranks of its host
    whole_host: bool
    usual: float  # seconds of a step that the others take by themselves
    seconds: float
    phase: str  # in which it is late
    awake: bool = False  # seconds are those in which a rank had a core


def rank_verdicts(figures: Figures) -> list[Verdict]:
    if len(figures.ranks) < 2:
        return []
    late = behind(figures)
    slow, network = (_slow(late) if late else None), _network(figures)
    return [verdict for verdict in (slow, network) if verdict is not None]


def behind(figures: Figures) -> Behind | None:
    """The slow rank or host; None where all ranks are about as quick, or all wait for samples.

    Other programs that take cores of all ranks hide a slow one, so it is also looked for in the time in which ranks had
    a core.
    """
    if len(figures.ranks) < 2:
        return None
    every = _behind(figures, lambda rank: (rank.own, rank.least_own, rank.step))
    if every is not None or any(rank.cpu_wait is None for rank in figures.ranks):
        return every
    awake = _behind(figures, lambda rank: (rank.awake, rank.least_awake, rank.step - (rank.cpu_wait or 0.0)))
    return replace(awake, awake=True) if awake else None


def _behind(figures: Figures, of: Callable[[Rank], tuple[float, float, float]]) -> Behind | None:
    """``of`` gives the seconds of a rank's own work, the least of a window, and its step."""

    def own(rank: Rank) -> float:
        return of(rank)[0]

    slow = max(figures.ranks, key=own)
    host = tuple(rank for rank in figures.ranks if rank.host == slow.host)
    others = [rank for rank in figures.ranks if rank.host != slow.host]
    whole_host = bool(others) and min(map(own, host)) > max(map(own, others))
    if not whole_host:
        others = [rank for rank in figures.ranks if rank is not slow]
    usual = statistics.median(map(own, others))
    taken, least, step = of(slow)
    seconds = taken - usual
    if seconds <= SLOWER * step or least - usual <= SLOWER / 2 * step:
        return None  # the second: a rank that is slow now and then shares its core with other programs
    phase = _late_in(slow, others)
    if phase == "wait" and all(_starved(rank) for rank in others):
        return None  # The rank whose samples come last waits for them, the others for that rank.
    return Behind(slow, host, whole_host, usual, seconds, phase)


def _slow(late: Behind) -> Verdict:
    slow, seconds, place = late.slow, late.seconds, late.slow.host or "its host"
    who = f"rank {slow.rank} on {place}"
    if late.whole_host:
        who = f"host {slow.host} (rank{'s' * (len(late.host) > 1)} {', '.join(str(r.rank) for r in late.host)})"
    no_core = min(seconds, slow.cpu_wait or 0.0)
    crowd = no_core if no_core > CROWD * seconds and not late.awake else 0.0
    lacks = f", where it has no core for {1000 * crowd:.3g} ms" if crowd else ""
    why = (
        f"{who} takes {1000 * (late.usual + seconds):.3g} ms per step for its own work, the others "
        f"{1000 * late.usual:.3g} ms, and then they wait{' (time without a core is not counted)' * late.awake}; it is "
        f"late in '{late.phase}'{lacks}"
    )
    check = f"check {place}: other programs, clock speeds, disks; leave it out if it stays slow"
    free = f"free the cores of {place}: other programs use them, or its ranks and workers are too many"
    cause, gain = "slow-host" if late.whole_host else "slow-rank", slow.step / (slow.step - (crowd or seconds))
    sure = "high" if slow.steps >= 8 else "medium"
    return Verdict(cause, seconds / slow.step, why, Fix(advice=free if crowd else check), gain, sure)


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
        if phase not in SYNC_PHASES and phase not in NON_STEP_PHASES
    }
    return max(late, key=lambda phase: late[phase])


def _network(figures: Figures) -> Verdict | None:
    """The rank that waits least for gradients waits for no other rank, so its wait is due to the network."""
    quickest = min(figures.ranks, key=lambda rank: rank.phases.get("gradient_sync", 0.0))
    spent = quickest.phases.get("gradient_sync", 0.0)
    share = spent / quickest.step
    if share <= NETWORK or quickest.least["gradient_sync"] <= NETWORK / 2:
        return None
    sent = 2 * (quickest.world - 1) / quickest.world * quickest.bytes_gradient
    moving = max(spent, quickest.shared or 0.0)
    saved = min(spent, moving / 2)  # of half the bytes; what is hidden already stays hidden
    hidden = f" ({1 - spent / moving:.0%} of that hidden behind the backward pass)" if quickest.shared else ""
    larger = Fix(advice="raise train.batch_size with train.accumulate: fewer gradients per image")
    setting = figures.evidence.setting
    halved = setting("parallel.compress", "none") == "none" and setting("parallel.strategy", "ddp") in ("auto", "ddp")
    why = (
        f"after computing its last gradient, every rank waits for the others' for {share:.0%} of each step: "
        f"{sent / 1e6:.3g} MB take {1000 * moving:.3g} ms{hidden}, {8 * sent / moving / 1e9:.2g} Gbit/s"
    )
    fix = Fix({"parallel.compress": "fp16"}, alternatives=(larger,)) if halved else larger
    return Verdict("slow-network", share, why, fix, quickest.step / (quickest.step - saved), "medium")
