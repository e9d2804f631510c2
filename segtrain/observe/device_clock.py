"""Clock of the phases of a step on a GPU. It records events on the GPU's stream, because the GPU
lags behind the host.

Each boundary between two phases records an event. The time of a phase is the time on the device
between its two events, so a wait of the host for data does not count while the device is still
busy. The host never waits for an event: it reads the events of a lap (from one call of ``mark`` to
the next) after the last of them has completed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from segtrain.observe.clock import Clock


class DeviceEvent(Protocol):
    """``torch.cuda.Event(enable_timing=True)``, or a stand-in."""

    def record(self) -> Any: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end_event: Any) -> float: ...  # milliseconds
    def synchronize(self) -> None: ...


class DeviceClock(Clock):
    """A Clock that measures phases on the device; ``recent`` and ``pending`` give the times on the
    host.

    ``take`` returns the times of the phases that the device has finished. If the host has just
    synchronized with the device, these are all earlier phases.
    """

    def __init__(
        self, event: Callable[[], DeviceEvent], now: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(now)
        self._event, self._free = event, [event()]
        self._before = self._recorded()
        # events not yet read, each with the phase that it ends
        self._ahead: deque[tuple[str, DeviceEvent]] = deque()
        # For each lap that is not yet read: the number of events up to its end, and its last event.
        self._ends: deque[tuple[int, DeviceEvent]] = deque()
        self._count = self._read = 0

    def _recorded(self) -> DeviceEvent:
        event = self._free.pop() if self._free else self._event()
        event.record()
        return event

    def _end(self) -> None:
        super()._end()
        self._ahead.append((self._phase, self._recorded()))
        self._count += 1

    def mark(self) -> float:
        at = super().mark()
        self._ends.append((self._count, self._ahead[-1][1]))
        self.sum_up()
        self._read_laps()
        return at

    def sum_up(self) -> None:
        """Move the host's times of ended phases to ``recent``. The sums come from the events of the
        device instead.
        """
        last = self._last
        for phase, end in self._ended:
            if phase:
                self._recent.append((phase, last, end))
            last = end
        self._summed += len(self._ended)
        self._ended, self._last = [], last

    def _read_event(self) -> None:
        phase, event = self._ahead.popleft()
        self._add(phase, self._before.elapsed_time(event) / 1000)
        self._free.append(self._before)
        self._before = event
        self._read += 1

    def _close_laps(self) -> None:
        while self._ends and self._ends[0][0] == self._read:
            self._ends.popleft()
            self._end_lap()

    def take(self) -> dict[str, float]:
        self.sum_up()
        self._read_laps()
        while self._ahead and self._ahead[0][1].query():
            self._read_event()
            self._close_laps()
        sums, self._sums = self._sums, {}
        return sums

    def _read_laps(self) -> None:
        """Read all events of the laps whose last event has passed, with one query per lap."""
        while self._ends and self._ends[0][1].query():
            while self._read < self._ends[0][0]:
                self._read_event()
            self._close_laps()

    def laps(self) -> list[dict[str, float]]:
        self._read_laps()
        return super().laps()

    def finish(self) -> None:
        if self._ahead:
            self._ahead[-1][1].synchronize()
