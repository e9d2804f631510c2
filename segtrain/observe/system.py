"""Sampler of a host: a small process beside the host's first rank that reads the host's counters
twice per second.

As a separate process, it never waits for the GIL of the rank. It imports no torch, and ends with
the process that started it. It writes the readings (profile_format.py) and its state,
``algo-N.state.json``. It reads requests from ``control.json``, with the keys ``on``, ``ms``, and
``asked``. The number ``asked`` identifies the request. The sampler copies it into its state as an
answer.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segtrain.base.json_text import read_json, write_json
from segtrain.errors import SegtrainError
from segtrain.observe.counters import ReadCounters, open_counters, rates
from segtrain.observe.gpus import open_gpus
from segtrain.observe.journal import say_on_stderr
from segtrain.observe.profile_format import ProfileWriter, Value

CONTROL = "control.json"
DEFAULT_MS = 500
LEAST_MS, MOST_MS = 100, 60_000
# Each time that this many bytes have been written, the interval doubles, so weeks of readings take
# about a gigabyte.
WIDEN_BYTES = 128 << 20
# shortest time between two samples, because the kernel counts CPU time in steps of 10 ms
SHORTEST_S = 0.05
# longest delay until the sampler reacts to a request, a signal, or the end of its parent
TICK_S = 0.5


@dataclass(frozen=True)
class SamplerRequest:
    """What a sampler should do. ``number``: the number of the request; 0 for the command line or a
    signal.
    """

    on: bool
    ms: int
    number: float = 0.0


def state_file(folder: Path, node: str) -> Path:
    return folder / f"{node}.state.json"


class ControlRequests:
    """Requests from the control file, if newer than this process, and from SIGUSR2, which turns
    sampling on or off.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._toggles = 0
        self._obeyed = 0
        self._seen = self._identity()
        signal.signal(signal.SIGUSR2, self._toggle)

    def _toggle(self, number: int, frame: Any) -> None:
        self._toggles += 1

    def _identity(self) -> tuple[int, int]:
        try:
            status = os.stat(self._path)
        except OSError:
            return (0, 0)
        return status.st_mtime_ns, status.st_ino

    def order(self, now: SamplerRequest) -> SamplerRequest:
        """The newest request; ``now`` if there is no new one."""
        identity, toggles = self._identity(), self._toggles
        if (toggles - self._obeyed) % 2:
            now = SamplerRequest(not now.on, now.ms)
        self._obeyed = toggles
        if identity != self._seen:
            self._seen = identity
            request = read_json(self._path)
            on, ms = request.get("on"), request.get("ms", now.ms)
            if isinstance(on, bool) and isinstance(ms, int) and LEAST_MS <= ms <= MOST_MS:
                now = SamplerRequest(on, ms, request.get("asked", 0.0))
            else:
                say_on_stderr(
                    f'warning: {self._path} must be {{"on": true or false, "ms": {LEAST_MS} to '
                    f"{MOST_MS}}}"
                )
        return now


class HostSampler:
    """Samples the host and writes the readings. ``written``: bytes written since the interval was
    set.
    """

    def __init__(self, writer: ProfileWriter) -> None:
        self._writer = writer
        self._read_counters: ReadCounters | None = None
        self._gpus: Callable[[], list[Value]] = list
        self._before: Any = None
        self._failed = False
        self.written = 0

    def rest(self) -> None:
        """Stop: forget the last counters and close the file."""
        self._before = None
        self._writer.close()

    def last(self) -> None:
        """Take one more sample, for the time since the previous one, if sampling is on."""
        if self._before is not None:
            self.sample()

    def sample(self) -> None:
        if self._read_counters is None:
            self._read_counters, self._gpus = open_counters(), open_gpus()
        after, before = self._read_counters(), self._before
        if before is not None and after.at - before.at < SHORTEST_S:
            return
        self._before = after
        if before is None:
            return
        try:
            self.written += self._writer.write(time.time(), [*rates(before, after), *self._gpus()])
        except OSError as error:
            self._writer.close()
            if not self._failed:
                folder = self._writer.folder
                say_on_stderr(
                    f"warning: the system profile in {folder} has a gap: {error}; training "
                    "continues"
                )
            self._failed = True


def keep_sampling(
    sampler: HostSampler,
    order: SamplerRequest,
    requests: ControlRequests,
    tell: Callable[[SamplerRequest], None],
    parent: int,
) -> None:
    """Sample until the process ``parent`` is gone, or until SIGTERM, on which one last sample is
    taken.

    Samples are taken at multiples of the interval, and so at the same moments on all hosts.
    """
    signal.signal(signal.SIGTERM, _end)
    try:
        tell(order)
        slot = 0
        while os.getppid() == parent:
            new = requests.order(order)
            if new != order:
                order = new
                sampler.written = 0
                sampler.rest()
                tell(order)
            if order.on:
                # A slot is one interval of the wall clock. Each slot gets at most one sample.
                time.sleep(min(TICK_S, max(0.0, (slot + 1) * order.ms / 1000 - time.time())))
                before, slot = slot, int(time.time() * 1000) // order.ms
                if slot != before:
                    sampler.sample()
                if sampler.written >= WIDEN_BYTES and order.ms < MOST_MS:
                    order, sampler.written = replace(order, ms=min(2 * order.ms, MOST_MS)), 0
                    tell(order)
                    grown = f"the system profile has grown by {WIDEN_BYTES >> 20} MB"
                    say_on_stderr(f"{grown}: from now on a sample every {order.ms} ms")
            else:
                time.sleep(TICK_S)
    except _Ended:
        sampler.last()


class _Ended(Exception):
    """Raised by the SIGTERM handler, so that it interrupts a sleep."""


def _end(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


def run(folder: Path, ms: int, node: str, parent: int) -> None:
    """Profile this host until the process ``parent`` is gone. ``ms`` 0: wait for a request."""

    def tell(order: SamplerRequest) -> None:
        state = {
            "node": node,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "on": order.on,
            "ms": order.ms,
        }
        write_json(state_file(folder, node), {**state, "since": time.time(), "asked": order.number})

    try:
        folder.mkdir(parents=True, exist_ok=True)
        requests = ControlRequests(folder / CONTROL)
        sampler = HostSampler(ProfileWriter(folder, node))
        before = sum(
            path.stat().st_size for path in folder.glob(f"system/incremental/*/*.{node}.json")
        )
        sampler.written = before % WIDEN_BYTES  # A resumed run keeps the interval.
        interval = min((ms or DEFAULT_MS) * 2 ** (before // WIDEN_BYTES), MOST_MS)
        keep_sampling(sampler, SamplerRequest(ms > 0, interval), requests, tell, parent)
    except (OSError, SegtrainError) as error:
        say_on_stderr(
            f"warning: the run has no system profile in {folder}: {error}; training continues"
        )
