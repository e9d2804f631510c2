"""Where did the time of a step go? Every instant of a thread belongs to exactly one phase, so the phases add up.

``Clock(time.process_time)`` splits process time (all threads) the same way. Neither waits for a GPU: there a phase is the time
in which the loop launched its kernels; what the GPU did meanwhile is told by device_clock.py.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

REST = "other"  # what no span covers
RECENT = 200  # spans kept for whoever asks what a rank did last


class Clock:
    """``with clock("wait"): ...`` charges time to a phase. One clock belongs to one thread.

    A span inside a span is charged to the inner phase alone. A span costs about a microsecond.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._open = [REST]
        self._sums: dict[str, float] = {}  # since the last ``take``
        self._lap: dict[str, float] = {}  # since the last ``mark``
        self._laps: list[dict[str, float]] = []
        self._last = now()
        self.recent: deque[tuple[str, float, float]] = deque(maxlen=RECENT)  # phase, begin, end: seconds of ``now``
        self.turns = 0  # boundaries so far: ranks that run the same loop have as many at the same place

    def __call__(self, phase: str) -> _Span:
        return _Span(self, phase)

    @property
    def pending(self) -> tuple[str, float]:
        """The phase that lasts now, and when it began (seconds of ``now``). May be asked for by another thread."""
        return self._open[-1], self._last

    def turn(self, phase: str) -> None:
        """The rest of the open span belongs to another phase. From another thread only while the clock's own one waits for it."""
        self._charge()
        self._open[-1] = phase

    def _charge(self) -> None:
        now = self._now()
        phase = self._open[-1]
        self.recent.append((phase, self._last, now))
        self.turns += 1
        self._add(phase, now - self._last)
        self._last = now

    def _add(self, phase: str, seconds: float) -> None:
        self._sums[phase] = self._sums.get(phase, 0.0) + seconds
        self._lap[phase] = self._lap.get(phase, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Seconds a phase since the last ``take``, ``other`` included; starts again from zero. Open spans stay open."""
        self._charge()
        sums, self._sums = self._sums, {}
        return sums

    def mark(self) -> None:
        """A lap ends here: what it took is among the next ``laps``."""
        self._charge()
        self._end_lap()

    def _end_lap(self) -> None:
        self._laps.append(self._lap)
        self._lap = {}

    def laps(self) -> list[dict[str, float]]:
        """Seconds a phase of each lap that is over and was not given out yet, in order."""
        laps, self._laps = self._laps, []
        return laps

    def finish(self) -> None:
        """Nothing is left to come for ``laps`` afterwards."""


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
