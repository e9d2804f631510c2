"""Clock that splits the time of a thread into phases, which add up to the whole.

``Clock(time.process_time)`` splits process time (all threads) in the same way. Neither clock waits
for a GPU: on a GPU, a phase is the time in which the loop launched its kernels. device_clock.py
measures the time on the GPU.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from segtrain.base.cores import runqueue_wait

REST = "other"  # time outside of all spans
# phase in which the loop waits for a batch; ``cpu_wait`` leaves out the run-queue wait in this
# phase
WAIT = "wait"
_LAP = ""
# minimum seconds between two laps in which system calls measure the time outside of spans
SAMPLE_S = 0.05
RECENT = 200  # spans in ``recent``


class Clock:
    """``with clock("wait"): ...`` charges time to a phase. One clock belongs to one thread.

    Time in a nested span counts only for the inner phase. A span only appends two entries to a
    list, which are summed up later. Between heavy operations, a line of Python takes many times
    longer than in a tight loop.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._phase = REST
        self._around: list[str] = []
        self._spans: dict[str, _Span] = {}
        # Phases that are not summed yet, each with its end time; _LAP marks the end of a lap.
        self._ended: list[tuple[str, float]] = []
        self._summed = 0
        self._sums: dict[str, float] = {}  # since the last ``take``
        self._lap: dict[str, float] = {}  # since the last ``mark``
        self._laps: list[dict[str, float]] = []
        self._last = now()
        self._rest_cpu, self._rest_since, self._sampled = 0.0, time.thread_time(), True
        self._rest_lap = 0.0
        self._unseen = 0
        self._next_sample = 0.0
        self._cpu_wait_since, self._cpu_wait_asleep, self._cpu_wait_lap = runqueue_wait(), 0.0, 0.0
        self._lap_began = self._last
        self._rest_cpu_wait, self._rest_cpu_wait_lap, self._rest_cpu_wait_since = (
            0.0,
            0.0,
            self._cpu_wait_since or 0.0,
        )
        self._recent: deque[tuple[str, float, float]] = deque(maxlen=RECENT)

    def __call__(self, phase: str) -> _Span:
        span = self._spans.get(phase)
        if span is None:
            span = self._spans[phase] = _Span(self, phase)
        return span

    @property
    def pending(self) -> tuple[str, float]:
        """The current phase and its start (seconds of ``now``). May be read by another thread."""
        ended = self._ended
        return self._phase, ended[-1][1] if ended else self._last

    @property
    def recent(self) -> list[tuple[str, float, float]]:
        """The last spans: phase, begin, end (seconds of ``now``). May be read by another thread."""
        spans, last = list(self._recent), self._last
        for phase, end in list(self._ended):
            if phase != _LAP:
                spans.append((phase, last, end))
            last = end
        return spans[-(self._recent.maxlen or 0) :]

    def keep(self, spans: int) -> None:
        """Keep this number of ``recent`` spans."""
        self._recent = deque(self._recent, maxlen=spans)

    @property
    def turns(self) -> int:
        """Number of phase boundaries so far. All ranks have the same number at the same place of
        the loop.
        """
        return self._summed + len(self._ended)

    @property
    def rest_cpu(self) -> float:
        """CPU seconds of the clock's thread outside of all spans, up to the last mark.

        If laps are short, only some are measured and stand for the others: a measurement costs as
        much as a span.
        """
        return self._rest_cpu

    @property
    def rest_cpu_wait(self) -> float | None:
        """Run-queue wait (see ``runqueue_wait``) in seconds outside of all spans, up to the last
        mark.

        None if the system does not count it.
        """
        return None if self._cpu_wait_since is None else self._rest_cpu_wait

    @property
    def cpu_wait(self) -> float | None:
        """Run-queue wait of the calling thread, without the phase ``wait``; None if the system does
        not count it.
        """
        if self._cpu_wait_since is None:
            return None
        return max(0.0, (runqueue_wait() or 0.0) - self._cpu_wait_since - self._cpu_wait_asleep)

    def turn(self, phase: str) -> None:
        """Charge the rest of the open span to another phase.

        Another thread may call this method while the thread of the clock waits.
        """
        self._end()
        self._phase = phase

    def _end(self) -> None:
        """End the current phase."""
        self._ended.append((self._phase, self._now()))

    def sum_up(self) -> None:
        """Sum up the spans, so that their list does not grow while nothing reads ``laps``."""
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
        """Seconds of each phase since the last ``take``, including ``other``. Open spans stay
        open.
        """
        self._end()
        self.sum_up()
        sums, self._sums = self._sums, {}
        return sums

    def mark(self) -> float:
        """End a lap, and return the time. Call it outside of all spans."""
        self._end()
        at = self._ended[-1][1]
        self._ended.append((_LAP, at))
        self._unseen += 1
        if self._sampled:
            self._rest_cpu += (
                self._rest_lap + time.thread_time() - self._rest_since
            ) * self._unseen
            self._cpu_wait_asleep += self._cpu_wait_lap * self._unseen
            waited = self._rest_cpu_wait_lap + (runqueue_wait() or 0.0) - self._rest_cpu_wait_since
            self._rest_cpu_wait += waited * self._unseen
            self._rest_lap, self._cpu_wait_lap, self._unseen, self._next_sample = (
                0.0,
                0.0,
                0,
                self._lap_began + SAMPLE_S,
            )
            self._rest_cpu_wait_lap = 0.0
        self._sampled, self._lap_began = at >= self._next_sample, at
        if self._sampled:
            self._rest_since, self._rest_cpu_wait_since = time.thread_time(), runqueue_wait() or 0.0
        return at

    def _end_lap(self) -> None:
        self._laps.append(self._lap)
        self._lap = {}

    def laps(self) -> list[dict[str, float]]:
        """Seconds of each phase for each lap that ended since the last call."""
        self.sum_up()
        laps, self._laps = self._laps, []
        return laps

    def finish(self) -> None:
        """Wait until the times of all laps are known. Here they always are. The clock of a GPU
        overrides this.
        """


class _Span:
    """A context manager without state of its own, so it may be entered again while it is open."""

    __slots__ = ("_clock", "_phase")

    def __init__(self, clock: Clock, phase: str) -> None:
        self._clock, self._phase = clock, phase

    def __enter__(self) -> None:
        clock = self._clock
        clock._end()
        if clock._sampled and not clock._around:
            so_far = runqueue_wait() or 0.0
            clock._rest_lap += time.thread_time() - clock._rest_since
            clock._rest_cpu_wait_lap += so_far - clock._rest_cpu_wait_since
            if self._phase == WAIT:
                clock._cpu_wait_lap -= so_far
        clock._around.append(clock._phase)
        clock._phase = self._phase

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        clock = self._clock
        clock._end()
        clock._phase = clock._around.pop()
        if clock._sampled and not clock._around:
            clock._rest_since, clock._rest_cpu_wait_since = (
                time.thread_time(),
                runqueue_wait() or 0.0,
            )
            if self._phase == WAIT:
                clock._cpu_wait_lap += clock._rest_cpu_wait_since
