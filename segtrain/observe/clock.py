"""The time of a step by phase: every instant of a thread belongs to exactly one phase, so the phases add up.

``Clock(time.process_time)`` splits process time (all threads) the same way. Neither waits for a GPU: there a phase is the time
in which the loop launched its kernels; what the GPU did meanwhile is told by device_clock.py.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from segtrain.cpu_wait import runqueue_wait

REST = "other"  # what no span covers
WAIT = "wait"  # a thread that sleeps, and is late when it wakes, was not held up in its work
_LAP = ""
SAMPLE_S = 0.05  # from the beginning of a lap whose rest is looked at more closely to the next such one
RECENT = 200  # spans kept for whoever asks what a rank did last


class Clock:
    """``with clock("wait"): ...`` charges time to a phase. One clock belongs to one thread.

    A span inside a span is charged to the inner phase alone. A span is two entries in a list, which are summed at the end of a lap:
    between heavy work every line of Python that is run costs many times what it costs in a loop of its own.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._phase = REST
        self._around: list[str] = []
        self._spans: dict[str, _Span] = {}
        self._ended: list[
            tuple[str, float]
        ] = []  # phases and when they ended, not summed yet; _LAP: a lap ended as well
        self._summed = 0
        self._sums: dict[str, float] = {}  # since the last ``take``
        self._lap: dict[str, float] = {}  # since the last ``mark``
        self._laps: list[dict[str, float]] = []
        self._last = now()
        self._rest_cpu, self._rest_since, self._looks = 0.0, time.thread_time(), True
        self._rest_lap, self._unseen, self._next_look = 0.0, 0, 0.0
        self._cpu_wait_since, self._cpu_wait_asleep, self._cpu_wait_lap = runqueue_wait(), 0.0, 0.0
        self._lap_began = self._last
        self._rest_cpu_wait, self._rest_cpu_wait_lap, self._rest_cpu_wait_since = 0.0, 0.0, self._cpu_wait_since or 0.0
        self._recent: deque[tuple[str, float, float]] = deque(maxlen=RECENT)

    def __call__(self, phase: str) -> _Span:
        span = self._spans.get(phase)
        if span is None:
            span = self._spans[phase] = _Span(self, phase)
        return span

    @property
    def pending(self) -> tuple[str, float]:
        """The phase that lasts now, and when it began (seconds of ``now``). May be asked for by another thread."""
        ended = self._ended
        return self._phase, ended[-1][1] if ended else self._last

    @property
    def recent(self) -> list[tuple[str, float, float]]:
        """The last spans: phase, begin, end (seconds of ``now``). May be asked for by another thread."""
        spans, last = list(self._recent), self._last
        for phase, end in list(self._ended):
            if phase != _LAP:
                spans.append((phase, last, end))
            last = end
        return spans[-(self._recent.maxlen or 0) :]

    def keep(self, spans: int) -> None:
        """How many spans ``recent`` has at least."""
        self._recent = deque(self._recent, maxlen=spans)

    @property
    def turns(self) -> int:
        """Boundaries so far: ranks that run the same loop have as many at the same place."""
        return self._summed + len(self._ended)

    @property
    def rest_cpu(self) -> float:
        """CPU seconds of the clock's own thread, up to the last mark, that no span covers: did it work there, or wait?

        Of quick laps some stand for all: asking costs as much as a span.
        """
        return self._rest_cpu

    @property
    def rest_cpu_wait(self) -> float | None:
        """Seconds of that same time in which the thread could have run and had no core; None: nobody counts."""
        return None if self._cpu_wait_since is None else self._rest_cpu_wait

    @property
    def cpu_wait(self) -> float | None:
        """Seconds in which the clock's own thread, which asks, had no core, without those of waiting; None: nobody counts."""
        if self._cpu_wait_since is None:
            return None
        return max(0.0, (runqueue_wait() or 0.0) - self._cpu_wait_since - self._cpu_wait_asleep)

    def turn(self, phase: str) -> None:
        """The rest of the open span belongs to another phase. From another thread only while the clock's own one waits for it."""
        self._end()
        self._phase = phase

    def _end(self) -> None:
        """A phase ends here."""
        self._ended.append((self._phase, self._now()))

    def _sum(self) -> None:
        last = self._last
        for phase, end in self._ended:
            if phase == _LAP:
                self._end_lap()
            else:
                self._recent.append((phase, last, end))
                self._add(phase, end - last)
                last = end
        self._summed += len(self._ended)
        self._ended, self._last = [], last

    def _add(self, phase: str, seconds: float) -> None:
        self._sums[phase] = self._sums.get(phase, 0.0) + seconds
        self._lap[phase] = self._lap.get(phase, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Seconds a phase since the last ``take``, ``other`` included; starts again from zero. Open spans stay open."""
        self._end()
        self._sum()
        sums, self._sums = self._sums, {}
        return sums

    def mark(self) -> float:
        """A lap ends here, outside of all spans: what it took is among the next ``laps``. Returns when that was."""
        self._end()
        at = self._ended[-1][1]
        self._ended.append((_LAP, at))
        self._unseen += 1
        if self._looks:
            self._rest_cpu += (self._rest_lap + time.thread_time() - self._rest_since) * self._unseen
            self._cpu_wait_asleep += self._cpu_wait_lap * self._unseen
            self._rest_cpu_wait += (
                self._rest_cpu_wait_lap + (runqueue_wait() or 0.0) - self._rest_cpu_wait_since
            ) * self._unseen
            self._rest_lap, self._cpu_wait_lap, self._unseen, self._next_look = 0.0, 0.0, 0, self._lap_began + SAMPLE_S
            self._rest_cpu_wait_lap = 0.0
        self._looks, self._lap_began = at >= self._next_look, at
        if self._looks:
            self._rest_since, self._rest_cpu_wait_since = time.thread_time(), runqueue_wait() or 0.0
        return at

    def _end_lap(self) -> None:
        self._laps.append(self._lap)
        self._lap = {}

    def laps(self) -> list[dict[str, float]]:
        """Seconds a phase of each lap that is over and was not given out yet, in order."""
        self._sum()
        laps, self._laps = self._laps, []
        return laps

    def forget(self) -> None:
        """Nobody asks for ``laps``: what is kept does not grow."""
        self._sum()

    def finish(self) -> None:
        """Nothing is left to come for ``laps`` afterwards."""


class _Span:
    """Has no state of its own: it may be open several times."""

    __slots__ = ("_clock", "_phase")

    def __init__(self, clock: Clock, phase: str) -> None:
        self._clock, self._phase = clock, phase

    def __enter__(self) -> None:
        clock = self._clock
        clock._end()
        if clock._looks and not clock._around:
            so_far = runqueue_wait() or 0.0
            clock._rest_lap += time.thread_time() - clock._rest_since
            clock._rest_cpu_wait_lap += so_far - clock._rest_cpu_wait_since
            if self._phase == WAIT:
                clock._cpu_wait_lap -= so_far
        clock._around.append(clock._phase)
        clock._phase = self._phase

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clock = self._clock
        clock._end()
        clock._phase = clock._around.pop()
        if clock._looks and not clock._around:
            clock._rest_since, clock._rest_cpu_wait_since = time.thread_time(), runqueue_wait() or 0.0
            if self._phase == WAIT:
                clock._cpu_wait_lap += clock._rest_cpu_wait_since


def shares(sums: dict[str, float]) -> dict[str, float]:
    """Each phase's share of the whole, 0 to 1; empty for no time at all."""
    whole = sum(sums.values())
    return {phase: seconds / whole for phase, seconds in sums.items()} if whole > 0 else {}
