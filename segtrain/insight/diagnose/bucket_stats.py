"""Statistics of the requests to buckets in the windows of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BucketReads:
    """Sums over windows.

    ``retries``: kind of fault -> number of failed requests. ``retry_s``: kind of fault -> seconds of these requests and
    of the pauses after them.
    """

    requests: float  # including failed ones
    late: float  # requests that were sent a second time
    bytes: float
    seconds: float  # of the requests that succeeded
    retries: Mapping[str, float]
    retry_s: Mapping[str, float]
    wall: float  # seconds of the windows
    by_size: float | None  # share of ``seconds`` that grows with the bytes of a request; None: not known
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
        """Share of the time of all requests that goes to failed requests and the pauses after them."""
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
        return max(0.0, 1 - self.first * self.answered / self.seconds) if self.first and self.seconds else 0.0

    @property
    def at_most(self) -> bool:
        """Whether the read-ahead has reached its limit of threads or memory, and so of requests in flight."""
        threads, held = (self.ahead.get(f"most_{key}", 0) for key in ("threads", "held"))
        return bool(threads and self.ahead.get("threads", 0) >= threads) or bool(
            held and self.ahead.get("held", 0) >= 0.9 * held
        )


def bucket_reads(windows: Iterable[Mapping[str, Any]]) -> BucketReads | None:
    """The sums over these windows; None if no window has requests to a bucket."""
    some = [window for window in windows if isinstance(window.get("bucket"), Mapping)]
    found = [window["bucket"] for window in some]

    def total(key: str) -> float:
        return float(sum(of.get(key, 0) for of in found))

    def by_kind(key: str) -> dict[str, float]:
        kinds = sorted({kind for of in found for kind in of.get(key, {})})
        return {kind: sum(of.get(key, {}).get(kind, 0) for of in found) for kind in kinds}

    if not total("requests"):
        return None
    retries, seconds = by_kind("retries"), total("seconds")
    number, mb = total("requests") - sum(retries.values()), total("bytes") / 1e6
    return BucketReads(
        requests=total("requests"),
        late=total("late"),
        bytes=total("bytes"),
        seconds=seconds,
        retries=retries,
        retry_s=by_kind("retry_s"),
        wall=sum(window["seconds"] for window in some),
        by_size=share_by_size(number, mb, seconds, total("mb2"), total("mb_s")),
        first=found[-1].get("ahead", {}).get("first_s", 0.0),
        ahead=found[-1].get("ahead", {}),
    )


def share_by_size(n: float, b: float, t: float, bb: float, bt: float) -> float | None:
    """Share of the read time that grows with the bytes read: by the slope of a line through (bytes, seconds).

    The arguments are sums over reads: their number, bytes, seconds, squared bytes, and bytes times seconds. None if
    there are fewer than 8 reads, or if all have about the same size.
    """
    if n < 8 or not t or bb * n < 1.1 * b * b:
        return None
    slope = (n * bt - b * t) / (n * bb - b * b)
    return min(1.0, max(0.0, slope * b / t))
