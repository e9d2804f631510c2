"""Window of a read-ahead, measured while it runs: how far to read ahead, and when a request is
late.
"""

from __future__ import annotations

import math
import time
from collections import deque
from statistics import median

# The window is this many times the number of samples that are taken during a slow request (99th
# percentile).
_MARGIN = 1.5
# The window depends on the durations of the last 256 requests and on the last 8 sample rates,
# measured every 0.1 s.
_TIMES, _RATES, _EVERY = 256, 8, 0.1
# A request is late after this many times the 95th percentile of the durations, and not before this
# many seconds.
_LATE, _LEAST_LATE = 3.0, 0.05
# The median duration of this many requests at the start of the pass, when few are in flight, is
# ``first_s``.
_FIRST = 32
# Each answer allows this many repeated requests, of which at most this many are saved up. So a slow
# server gets few additional requests.
_REPEATS, _MOST_REPEATS = 0.05, 8.0


class ReadAheadWindow:
    """``window``: samples to fetch ahead. ``late_s``: seconds after which a request that a worker
    waits for is late.

    The window is the rate at which samples are taken x the 99th percentile of the request durations
    x 1.5, but at least two batches. ``first_s``: seconds of a request at the start of the pass; 0:
    not known.
    """

    def __init__(self, batch: int) -> None:
        self._batch, self.window, self.late_s = batch, 2 * batch, 1.0
        self._times: deque[float] = deque(maxlen=_TIMES)
        self._rates: deque[float] = deque(maxlen=_RATES)
        self._measured = time.perf_counter(), 0
        self._repeats = self.first_s = 0.0
        self._first: list[float] = []

    def answered(self, seconds: float) -> None:
        """Record the duration of a request."""
        self._times.append(seconds)
        if len(self._first) < _FIRST:
            self._first.append(seconds)
            # A median, so that one late answer does not change it.
            self.first_s = median(self._first)
        self._repeats = min(_MOST_REPEATS, self._repeats + _REPEATS)

    def may_repeat(self) -> bool:
        """Whether one more request may be sent a second time. It is counted if so."""
        allowed = self._repeats >= 1
        self._repeats -= allowed
        return allowed

    def measure(self, taken: int) -> None:
        """Update the window, at most once per 0.1 s and batch. ``taken``: samples so far."""
        now, (since, before) = time.perf_counter(), self._measured
        if now - since < _EVERY or taken - before < self._batch:
            return
        self._measured = now, taken
        self._rates.append((taken - before) / (now - since))
        if self._times:
            times = sorted(self._times)
            self.window = max(
                2 * self._batch, math.ceil(_MARGIN * max(self._rates) * _at(times, 0.99))
            )
            self.late_s = max(_LEAST_LATE, _LATE * _at(times, 0.95))


def _at(times: list[float], share: float) -> float:
    """A percentile of sorted values."""
    return times[math.ceil(share * len(times)) - 1]
