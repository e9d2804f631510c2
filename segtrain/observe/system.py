"""Sampler of a host: a small process beside its first rank that reads the counters of the host twice per second.

In its own process, no sample waits for the Python lock of the rank. It imports no torch, and ends with the process that
started it. It writes the readings (profile_format.py) and its state, ``algo-N.state.json``, and reads requests from
``control.json``: ``on``, ``ms``, and ``asked``, a number that the state repeats.
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

from segtrain.errors import SegtrainError
from segtrain.json_text import read_json, write_json
from segtrain.observe.counters import Look, open_counters, rates
from segtrain.observe.gpus import open_gpus
from segtrain.observe.journal import say_on_stderr
from segtrain.observe.profile_format import ProfileWriter, Value

CONTROL = "control.json"
DEFAULT_MS = 500
LEAST_MS, MOST_MS = 100, 60_000
WIDEN_BYTES = 128 << 20  # written, after which the time between samples doubles: weeks take about a gigabyte
SHORTEST_S = 0.05  # The kernel counts the time of cores in steps of 10 ms.
TICK_S = 0.5  # longest delay of the answer to a request, a signal, or the end of the parent


@dataclass(frozen=True)
class SamplerRequest:
    """What a sampler should do. ``asked``: the number of the request; 0 for the command line or a signal."""

    on: bool
    ms: int
    asked: float = 0.0


def state_file(folder: Path, node: str) -> Path:
    return folder / f"{node}.state.json"


class Requests:
    """Requests from the control file, if they are newer than this process, and from SIGUSR2, which toggles."""

    def __init__(self, path: Path) -> None:
        self._path, self._toggles, self._obeyed = path, 0, 0
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
            asked = read_json(self._path)
            on, ms = asked.get("on"), asked.get("ms", now.ms)
            if isinstance(on, bool) and isinstance(ms, int) and LEAST_MS <= ms <= MOST_MS:
                now = SamplerRequest(on, ms, asked.get("asked", 0.0))
            else:
                say_on_stderr(f'warning: {self._path} is not a request: {{"on": true, "ms": {LEAST_MS} to {MOST_MS}}}')
        return now


class HostSampler:
    """Samples the host and writes. ``written``: bytes since the interval was set."""

    def __init__(
        self, writer: ProfileWriter, say: Callable[[str], None], opens: Callable[[], Look] = open_counters
    ) -> None:
        self._writer, self._say, self._opens = writer, say, opens
        self._look: Look | None = None
        self._gpus: Callable[[], list[Value]] = lambda: []
        self._before: Any = None
        self._failed = False
        self.written = 0

    def rest(self) -> None:
        """Stop: forget the last counters and close the file."""
        self._before = None
        self._writer.close()

    def last(self) -> None:
        """Sample the time since the last sample, if sampling is on."""
        if self._before is not None:
            self.sample()

    def sample(self) -> None:
        if self._look is None:
            self._look, self._gpus = self._opens(), open_gpus(self._say)
        after, before = self._look(), self._before
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
                self._say(f"warning: the system profile in {folder} has a gap: {error}; training continues")
            self._failed = True


def keep_sampling(
    sampler: HostSampler,
    order: SamplerRequest,
    requests: Requests,
    tell: Callable[[SamplerRequest], None],
    parent: int,
    say: Callable[[str], None] = say_on_stderr,
) -> None:
    """Sample until the process ``parent`` is gone, or until SIGTERM, after which the rest is sampled.

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
                # Whole slots of the clock: none is sampled twice.
                time.sleep(min(TICK_S, max(0.0, (slot + 1) * order.ms / 1000 - time.time())))
                before, slot = slot, int(time.time() * 1000) // order.ms
                if slot != before:
                    sampler.sample()
                if sampler.written >= WIDEN_BYTES and order.ms < MOST_MS:
                    order, sampler.written = replace(order, ms=min(2 * order.ms, MOST_MS)), 0
                    tell(order)
                    grown = f"the system profile has grown by {WIDEN_BYTES >> 20} MB"
                    say(f"{grown}: from now on a sample every {order.ms} ms")
            else:
                time.sleep(TICK_S)
    except _Ended:
        sampler.last()


class _Ended(Exception):
    """SIGTERM, raised to end any sleep."""


def _end(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


def run(folder: Path, ms: int, node: str, parent: int) -> None:
    """Profile this host until the process ``parent`` is gone. ``ms`` 0: wait for a request."""

    def tell(order: SamplerRequest) -> None:
        state = {"node": node, "host": socket.gethostname(), "pid": os.getpid(), "on": order.on, "ms": order.ms}
        write_json(state_file(folder, node), {**state, "since": time.time(), "asked": order.asked})

    try:
        folder.mkdir(parents=True, exist_ok=True)
        requests = Requests(folder / CONTROL)
        sampler = HostSampler(ProfileWriter(folder, node), say_on_stderr)
        before = sum(path.stat().st_size for path in folder.glob(f"system/incremental/*/*.{node}.json"))
        sampler.written = before % WIDEN_BYTES  # A resumed run keeps the interval.
        interval = min((ms or DEFAULT_MS) * 2 ** (before // WIDEN_BYTES), MOST_MS)
        keep_sampling(sampler, SamplerRequest(ms > 0, interval), requests, tell, parent)
    except (OSError, SegtrainError) as error:
        say_on_stderr(f"warning: the run has no system profile in {folder}: {error}; training continues")
