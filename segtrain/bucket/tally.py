"""Counts of requests that read objects: their number and bytes, retries by kind of fault, and
repeats.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class RequestTotals(NamedTuple):
    """Sums over requests. ``requests`` also counts failed requests.

    ``bytes``, ``seconds``, ``bytes2``, and ``bytes_s`` are sums over the requests that returned
    bytes. ``bytes2`` sums bytes squared, and ``bytes_s`` bytes times seconds: they show which part
    of a request's time grows with its size. ``retries``: kind of a fault -> (number of failed
    requests, their seconds including the pauses after them). ``late``: requests that were sent a
    second time because no answer had come.
    """

    requests: int = 0
    bytes: int = 0
    seconds: float = 0.0
    bytes2: float = 0.0
    bytes_s: float = 0.0
    retries: Mapping[str, tuple[int, float]] = {}
    late: int = 0

    def plus(self, more: RequestTotals, sign: int = 1) -> RequestTotals:
        """The sums of both; with ``sign`` -1 the difference."""
        retries = self.retries
        if more.retries:
            retries = dict(retries)
            for kind, (count, seconds) in more.retries.items():
                before = retries.get(kind, (0, 0.0))
                retries[kind] = before[0] + sign * count, before[1] + sign * seconds
            retries = {kind: sums for kind, sums in retries.items() if sums[0]}
        return RequestTotals(
            self.requests + sign * more.requests,
            self.bytes + sign * more.bytes,
            self.seconds + sign * more.seconds,
            self.bytes2 + sign * more.bytes2,
            self.bytes_s + sign * more.bytes_s,
            retries,
            self.late + sign * more.late,
        )

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON. ``retries`` becomes {kind: count} and ``retry_s`` {kind: seconds}.

        ``bytes2`` and ``bytes_s`` are given in MB, as ``mb2`` and ``mb_s``.
        """
        return {
            "requests": self.requests,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 4),
            "mb2": round(self.bytes2 / 1e12, 6),
            "mb_s": round(self.bytes_s / 1e6, 6),
            "retries": {kind: count for kind, (count, _) in self.retries.items()},
            "retry_s": {kind: round(seconds, 4) for kind, (_, seconds) in self.retries.items()},
            "late": self.late,
        }


class RequestTally:
    """Sums to which several threads add. ``whole``: another tally, to which everything is added as
    well.
    """

    def __init__(self, whole: RequestTally | None = None) -> None:
        self._whole, self.sums = whole, RequestTotals()
        self._lock = threading.Lock()

    def answered(self, count: int, seconds: float) -> None:
        """Count a request that returned ``count`` bytes."""
        self.add(RequestTotals(1, count, seconds, float(count * count), count * seconds))

    def retried(self, kind: str, seconds: float) -> None:
        """Count a failed request and the pause after it, ``seconds`` together."""
        self.add(RequestTotals(1, retries={kind: (1, seconds)}))

    def withdrawn(self, kind: str, count: int, seconds: float) -> None:
        """Count a request as failed that was counted by ``answered``, because its bytes turned out
        to be wrong.
        """
        self.add(
            RequestTotals(
                0, -count, -seconds, -float(count * count), -count * seconds, {kind: (1, seconds)}
            )
        )

    def repeated(self) -> None:
        """Count a request that is sent a second time because no answer has come. Its answers are
        counted as usual.
        """
        self.add(RequestTotals(late=1))

    def add(self, more: RequestTotals) -> None:
        """Add sums, for example those of another process."""
        with self._lock:
            self.sums = self.sums.plus(more)
        if self._whole is not None:
            self._whole.add(more)

    def counter(self) -> Callable[[], RequestTotals]:
        """A function that returns the sums since its previous call; at its first call, since
        ``counter`` was called.
        """
        before = self.sums

        def more() -> RequestTotals:
            nonlocal before
            now = self.sums
            since, before = now.plus(before, -1), now
            return since

        return more


# The tally of this process and its worker processes, for all buckets.
OF_PROCESS = RequestTally()
