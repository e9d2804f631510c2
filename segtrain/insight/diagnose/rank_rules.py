"""Rules for ranks that wait for each other: for a slow rank, a slow host, or the network between
them.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from segtrain.base.units import ms, rounded
from segtrain.insight.diagnose.stats import SYNC_PHASES, Figures, Rank
from segtrain.insight.diagnose.verdict import Fix, Verdict
from segtrain.observe.spans import NO_STEP

SLOWER = 0.20  # share of a step by which the slowest rank may be behind
# if the workers of a rank are busy for more than this share of the time, samples bound its step too
BUSY = 0.8
CROWD = 0.5  # if waits for cores are more than this share of a rank's delay, they are its cause
LARGER = 4  # how many times as large a proposed step is
NETWORK = 0.20  # share of a step for which even the quickest rank may wait for gradients


@dataclass(frozen=True)
class Behind:
    """A slow rank, or a host whose ranks are all slow: the other ranks wait for it in every
    window.
    """

    slow: Rank
    host: tuple[Rank, ...]  # all ranks of its host if all of them are slow, else empty
    usual: float  # seconds that the other ranks need for their own work in a step
    seconds: float  # how much more the slow rank needs
    phase: str  # the phase in which the slow rank differs most from the others
    awake: bool  # whether the times exclude waits for a core


def rank_verdicts(figures: Figures) -> list[Verdict]:
    if len(figures.ranks) < 2:
        return []
    slow = behind(figures)
    verdicts = (_slow(slow) if slow else None, _network(figures))
    return [verdict for verdict in verdicts if verdict is not None]


def behind(figures: Figures) -> Behind | None:
    """The slow rank or host; None where all ranks are about as quick, or all wait for samples.

    Other programs that take cores from all ranks can hide a slow rank, so a second search leaves
    out the time in which a rank had no core.
    """
    if len(figures.ranks) < 2:
        return None
    return _behind(figures, awake=False) or _behind(figures, awake=True)


def _behind(figures: Figures, awake: bool) -> Behind | None:
    def own(rank: Rank) -> float:
        return rank.awake if awake else rank.own

    slow = max(figures.ranks, key=own)
    host = tuple(rank for rank in figures.ranks if rank.host == slow.host)
    others = [rank for rank in figures.ranks if rank.host != slow.host]
    if not others or min(map(own, host)) <= max(map(own, others)):
        host, others = (), [rank for rank in figures.ranks if rank is not slow]
    usual = statistics.median(map(own, others))
    seconds = own(slow) - usual
    least = slow.least_own
    step = slow.step
    if awake:
        least, step = slow.least_awake, slow.step - slow.cpu_wait
    if seconds <= SLOWER * step or least - usual <= SLOWER / 2 * step:
        # The second condition is true for a rank that is slow only while other programs use its
        # cores.
        return None
    phase = _slow_phase(slow, others)
    if phase == "wait" and all(rank.busy > BUSY for rank in others):
        # All ranks wait for samples: the last rank for its own, and the other ranks for that rank.
        return None
    return Behind(slow, host, usual, seconds, phase, awake)


def _slow(late: Behind) -> Verdict:
    slow = late.slow
    seconds = late.seconds
    host = late.slow.host or "its host"
    cause, name = "slow-rank", f"rank {slow.rank} on {host}"
    if late.host:
        ranks = ", ".join(str(rank.rank) for rank in late.host)
        cause = "slow-host"
        name = f"host {slow.host} (rank{'s' * (len(late.host) > 1)} {ranks})"
    why = (
        f"{name} takes {ms(late.usual + seconds)} per step for its own work, the others "
        f"{ms(late.usual)}, and then "
        f"they wait{' (time without a core is not counted)' * late.awake}; the difference is "
        f"mostly in '{late.phase}'"
    )
    advice = f"check {host}: other programs, clock speeds, disks; leave it out if it stays slow"
    no_core, saved = min(seconds, slow.cpu_wait), seconds
    if no_core > CROWD * seconds and not late.awake:
        why = f"{why}, where it waits {ms(no_core)} for a free CPU core"
        saved = no_core
        advice = (
            f"free the cores of {host}: other programs use them, or its ranks and workers "
            "are too many"
        )
    sure = "high" if slow.steps >= 8 else "medium"
    return Verdict(
        cause,
        seconds / slow.step,
        why,
        Fix(advice=advice),
        slow.step / max(slow.step - saved, 1e-9),
        sure,
    )


def _slow_phase(slow: Rank, others: list[Rank]) -> str:
    longer = {
        phase: s - statistics.median(rank.spent(phase) for rank in others)
        for phase, s in slow.phases.items()
        if phase not in (*SYNC_PHASES, *NO_STEP)
    }
    return max(longer, key=lambda phase: longer[phase])


def _network(figures: Figures) -> Verdict | None:
    """The rank that waits least for gradients waits for no other rank, so its wait is due to the
    network.
    """
    quickest = min(figures.ranks, key=lambda rank: rank.spent("gradient_sync"))
    spent = quickest.spent("gradient_sync")
    share = spent / quickest.step
    if share <= NETWORK or quickest.least["gradient_sync"] <= NETWORK / 2:
        return None
    sent = 2 * (quickest.world - 1) / quickest.world * quickest.bytes_gradient
    moving = max(spent, quickest.shared or 0.0)
    hidden = (
        f" ({1 - spent / moving:.0%} of that hidden behind the backward pass)"
        if quickest.shared
        else ""
    )
    why = (
        f"after computing its last gradient, every rank waits for the others' for {share:.0%} of "
        f"each step: {rounded(sent / 1e6)} MB take {ms(moving)}{hidden}, "
        f"{rounded(8 * sent / moving / 1e9, 2)} Gbit/s"
    )
    fix, gain = _send_less(figures, quickest, spent, moving)
    return Verdict("slow-network", share, why, fix, gain, "medium")


def _send_less(figures: Figures, rank: Rank, spent: float, moving: float) -> tuple[Fix, float]:
    """Ways to exchange fewer bytes, and the gain of the first one."""
    setting = figures.evidence.setting
    kind = setting("parallel.compress", "none")
    ddp = setting("parallel.strategy", "ddp") in ("auto", "ddp")
    # Only the last micro-batch of a step waits for gradients.
    gain = rank.step / (rank.step - spent * (1 - 1 / LARGER))
    times = f"train.batch_size and train.accumulate {LARGER} times as large"
    fixes = [
        Fix(advice=f"{times}: {rounded(gain)}x the images/s, but one update instead of {LARGER}")
    ]
    if ddp and kind != "powersgd" and rank.device.startswith("cuda"):
        most = rounded(rank.step / (rank.step - spent))
        fixes.append(
            Fix(
                {"parallel.compress": "powersgd"},
                f"at most {most}x; changes the result, and cannot resume",
            )
        )
    if ddp and kind == "none":
        # with half the bytes; time that is already hidden saves nothing
        saved = min(spent, moving / 2)
        return Fix({"parallel.compress": "fp16"}, alternatives=tuple(fixes)), rank.step / (
            rank.step - saved
        )
    return Fix(advice=fixes[0].advice, alternatives=tuple(fixes[1:])), gain
