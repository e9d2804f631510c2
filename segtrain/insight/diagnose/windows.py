"""Sums over the windows of ranks: requests to buckets, samples of helpers, and waits of all ranks
together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from segtrain.base.terminal import counted
from segtrain.observe.spans import NO_STEP

Window = Mapping[str, Any]
Windows = Sequence[Window]


@dataclass(frozen=True)
class BucketReads:
    """Sums over windows.

    ``retries``: kind of fault -> number of failed requests. ``retry_s``: kind of fault -> seconds
    of these requests and of the pauses after them.
    """

    requests: float  # including failed ones
    late: float  # requests that were sent a second time
    bytes: float
    seconds: float  # of the requests that succeeded
    retries: Mapping[str, float]
    retry_s: Mapping[str, float]
    wall: float  # seconds of the windows
    # share of ``seconds`` that grows with the bytes of a request; None: not known
    by_size: float | None
    first: float  # seconds of the first requests for samples; 0: not known
    ahead: Mapping[str, float]  # figures of the read-ahead at the end

    @property
    def failed(self) -> float:
        return sum(self.retries.values())

    @property
    def answered(self) -> float:
        """Number of requests that succeeded."""
        return self.requests - self.failed

    @property
    def retry_seconds(self) -> float:
        return sum(self.retry_s.values())

    @property
    def lost(self) -> float:
        """Share of the time of all requests that goes to failed requests and the pauses after
        them.
        """
        whole = self.seconds + self.retry_seconds
        return self.retry_seconds / whole if whole else 0.0

    @property
    def in_flight(self) -> float:
        """Mean number of requests in flight."""
        return (self.seconds + self.retry_seconds) / self.wall if self.wall else 0.0

    @property
    def by_number(self) -> float:
        """Share of the time of a request that is due to many requests in flight.

        It is computed from the time of the first requests of a pass, when few are in flight.
        """
        return (
            max(0.0, 1 - self.first * self.answered / self.seconds)
            if self.first and self.seconds
            else 0.0
        )

    @property
    def at_most(self) -> bool:
        """Whether the read-ahead has reached its limit of threads or memory, and so of requests in
        flight.
        """
        threads, held = (self.ahead.get(f"most_{key}", 0) for key in ("threads", "held"))
        return bool(threads and self.ahead.get("threads", 0) >= threads) or bool(
            held and self.ahead.get("held", 0) >= 0.9 * held
        )


def bucket_reads(windows: Iterable[Window]) -> BucketReads | None:
    """The sums over these windows; None if no window has requests to a bucket."""
    some = [window for window in windows if "bucket" in window]
    sums = [window["bucket"] for window in some]

    def total(key: str) -> float:
        return float(sum(part.get(key, 0) for part in sums))

    def by_kind(key: str) -> dict[str, float]:
        kinds = sorted({kind for part in sums for kind in part.get(key, {})})
        return {kind: sum(part.get(key, {}).get(kind, 0) for part in sums) for kind in kinds}

    if not total("requests"):
        return None
    retries, seconds = by_kind("retries"), total("seconds")
    number = total("requests") - sum(retries.values())
    mb = total("bytes") / 1e6
    return BucketReads(
        requests=total("requests"),
        late=total("late"),
        bytes=total("bytes"),
        seconds=seconds,
        retries=retries,
        retry_s=by_kind("retry_s"),
        wall=sum(window["seconds"] for window in some),
        by_size=share_by_size(number, mb, seconds, total("mb2"), total("mb_s")),
        first=sums[-1].get("ahead", {}).get("first_s", 0.0),
        ahead=sums[-1].get("ahead", {}),
    )


def share_by_size(n: float, b: float, t: float, bb: float, bt: float) -> float | None:
    """Share of the read time that grows with the bytes read: by the slope of a line through (bytes,
    seconds).

    The arguments are sums over reads: their number, bytes, seconds, squared bytes, and bytes times
    seconds. None if there are fewer than 8 reads, or if all have about the same size.
    """
    if n < 8 or not t or bb * n < 1.1 * b * b:
        return None
    slope = (n * bt - b * t) / (n * bb - b * b)
    return min(1.0, max(0.0, slope * b / t))


def samples_of_helpers(work: Sequence[Window], steps: int) -> dict[str, float]:
    """Samples per step by host. ``work``: the field ``workers`` of the windows."""
    counts: Counter[str] = Counter()
    for window in work:
        counts.update(window.get("helpers", {}))
    return {host: count / steps for host, count in counts.items() if count > 0}


def receive_cost(work: Sequence[Window]) -> float | None:
    """CPU seconds of the rank for a sample that a helper made; None if there were none, or it was
    not measured.
    """
    measured = [window for window in work if "receive_s" in window]
    count = sum(sum(window.get("helpers", {}).values()) for window in measured)
    return sum(window["receive_s"] for window in measured) / count if count > 0 else None


def by_helpers(helper_samples: Mapping[str, float], own_samples: float) -> str:
    """``69% by helpers on 1 host``; empty if they made nothing."""
    made = sum(helper_samples.values())
    share = made / max(1e-9, made + own_samples)
    return f"{share:.0%} by helpers on {counted(len(helper_samples), 'host')}" if made else ""


def straggler_wait(ranks: Sequence[Windows]) -> tuple[float, float]:
    """Seconds of a mean step in which the ranks wait for samples, and for a core.

    ``ranks``: the windows of each rank.
    """
    steps = wait = held = 0.0
    for block in _blocks(ranks):
        waits, syncs, gradient_syncs, cpu_waits = zip(*map(_means, block))
        for_samples = _slowest(waits, map(sum, zip(waits, syncs)))
        rest = (
            more + max(0.0, sync - (for_samples - own))
            for own, sync, more in zip(waits, syncs, gradient_syncs)
        )
        for_cores = _slowest(cpu_waits, map(sum, zip(cpu_waits, rest)))
        count = sum(map(steps_of, block[0]))
        steps += count
        wait += count * for_samples
        held += count * for_cores
    return wait / steps, held / steps


def _slowest(own: Sequence[float], most: Iterable[float]) -> float:
    """Estimate of the sum of the longest waits. ``own``: the sum of each rank. ``most``: upper
    bounds, by rank.
    """
    return max(max(own), min(sum(own), min(most)))


def _blocks(ranks: Sequence[Windows]) -> list[list[Windows]]:
    """Blocks of windows, by rank. A block ends at a step at which a window of every rank ends, if
    there is one.
    """
    ends = sorted(set.intersection(*({w["last"] for w in windows} for windows in ranks))) or [
        float("inf")
    ]
    return [
        [[w for w in windows if before < w["last"] <= end] for windows in ranks]
        for before, end in zip([float("-inf"), *ends], ends)
    ]


def _means(windows: Windows) -> tuple[float, ...]:
    """Seconds of a mean step: in ``wait``, ``sync``, and ``gradient_sync``, and without a core."""
    sums = [
        sum(w["phases"].get(phase, 0.0) for w in windows)
        for phase in ("wait", "sync", "gradient_sync")
    ]
    steps = sum(map(steps_of, windows))
    return tuple(spent / steps for spent in (*sums, sum(map(cpu_wait_of, windows))))


def steps_of(window: Window) -> int:
    return int(window["last"]) - int(window["first"]) + 1


def cpu_wait_of(window: Window) -> float:
    """Seconds for which the steps of a window waited for a core, at most the time that they
    took.
    """
    phases = window["phases"]
    awake = sum(s for phase, s in phases.items() if phase != "wait")
    inside = awake - sum(phases.get(phase, 0.0) for phase in NO_STEP)
    return float(min(inside, window.get("cpu_wait_s", 0.0) * inside / awake)) if awake > 0 else 0.0
