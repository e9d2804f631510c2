"""Where did the time of a step go? Every instant of a thread belongs to exactly one phase, so the phases add up.

``Clock(time.process_time)`` splits process time (all threads) the same way. Neither waits for a GPU: there a phase is the time
in which the loop launched its kernels, unless ``now`` is a clock that knows better.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

REST = "other"  # what no span covers


class Clock:
    """``with clock("wait"): ...`` charges time to a phase. One clock belongs to one thread.

    A span inside a span is charged to the inner phase alone. A span costs about a microsecond.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._open = [REST]
        self._sums: dict[str, float] = {}
        self._last = now()

    def __call__(self, phase: str) -> _Span:
        return _Span(self, phase)

    def _charge(self) -> None:
        now = self._now()
        phase = self._open[-1]
        self._sums[phase] = self._sums.get(phase, 0.0) + now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        """Seconds a phase since the last ``take``, ``other`` included; starts again from zero. Open spans stay open."""
        self._charge()
        sums, self._sums = self._sums, {}
        return sums


class _Span:
    __slots__ = ("_clock", "_phase")

    def __init__(self, clock: Clock, phase: str) -> None:
        self._clock, self._phase = clock, phase

    def __enter__(self) -> None:
        self._clock._charge()
        self._clock._open.append(self._phase)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock._charge()
        self._clock._open.pop()


def shares(sums: dict[str, float]) -> dict[str, float]:
    """Each phase's share of the whole, 0 to 1; empty for no time at all."""
    whole = sum(sums.values())
    return {phase: seconds / whole for phase, seconds in sums.items()} if whole > 0 else {}
