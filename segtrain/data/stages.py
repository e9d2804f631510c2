"""Timing of the stages of a sample, by the thread that makes it.

    with READ: ...       bytes come from storage
    with DECODE: ...     bytes become pixels
    with AUGMENT: ...    geometry, colors, transforms
    ASSEMBLE             the rest, such as a copy into the batch

Time in a nested stage counts only for the inner one, so the stages of a sample add up to its time.
The native decoder decodes, resizes, and places a crop in one call, which counts as DECODE. If bytes
of a memory-mapped file are not in memory, this call also waits for the disk. Linux counts such page
faults. If a sample had page faults, the time in which its thread neither ran on a core nor waited
for one is moved from DECODE to READ.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple

from segtrain.base.cores import major_faults, runqueue_wait


class Cost(NamedTuple):
    """Sums over samples: wall seconds of the stages, CPU seconds of the threads, bytes read from
    storage.

    ``reads``, ``bytes2``, and ``bytes_s`` are sums over single reads: their number, bytes squared,
    and bytes times seconds. They show which part of the read time grows with size.
    """

    read: float = 0.0
    decode: float = 0.0
    augment: float = 0.0
    assemble: float = 0.0
    cpu_s: float = 0.0
    bytes: int = 0
    reads: int = 0
    bytes2: float = 0.0
    bytes_s: float = 0.0
    # run-queue wait, part of the wall time; 0 if the system does not count it
    cpu_wait_s: float = 0.0

    def plus(self, other: Cost) -> Cost:
        return Cost(*(mine + more for mine, more in zip(self, other)))  # type: ignore[arg-type]

    @property
    def seconds(self) -> float:
        return self.read + self.decode + self.augment + self.assemble


_READ, _DECODE, _AUGMENT, _ASSEMBLE = range(4)


class _SampleStages(threading.local):
    """This thread's stage, its start, the enclosing stages, and the sums since ``begin``."""

    stage, since, cpu, bytes, cpu_wait, faults = _ASSEMBLE, 0.0, 0.0, 0, 0.0, 0

    def __init__(self) -> None:
        self.around: list[int] = []
        self.sums = [0.0] * 4
        self.read = 0.0  # seconds of READ up to the end of the last single read
        self.moments = 0, 0.0, 0.0  # ``reads``, ``bytes2``, and ``bytes_s`` of Cost


_here = _SampleStages()


class Stage:
    """A context manager that times one stage; one object serves all threads."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        here, now = _here, time.perf_counter()
        here.sums[here.stage] += now - here.since
        here.around.append(here.stage)
        here.stage, here.since = self._number, now

    def __exit__(self, *_: object) -> None:
        here, now = _here, time.perf_counter()
        here.sums[here.stage] += now - here.since
        here.stage, here.since = here.around.pop(), now


READ, DECODE, AUGMENT = Stage(_READ), Stage(_DECODE), Stage(_AUGMENT)


def took(count: int) -> None:
    """Count one read of ``count`` bytes from storage."""
    here = _here
    here.bytes += count
    read = here.sums[_READ] + (time.perf_counter() - here.since if here.stage == _READ else 0.0)
    reads, bytes2, bytes_s = here.moments
    here.moments = reads + 1, bytes2 + count * count, bytes_s + count * (read - here.read)
    here.read = read


def waited(seconds: float) -> None:
    """Count ``seconds`` for which another process waited for the bytes of this thread's sample."""
    _here.sums[_READ] += seconds


def begin() -> None:
    """Start a sample in this thread."""
    here = _here
    here.sums, here.bytes, here.read, here.moments = [0.0] * 4, 0, 0.0, (0, 0.0, 0.0)
    here.faults = major_faults()
    here.cpu_wait, here.cpu, here.since = (
        runqueue_wait() or 0.0,
        time.thread_time(),
        time.perf_counter(),
    )


def end() -> Cost:
    """The cost of the sample since ``begin``."""
    here = _here
    here.sums[here.stage] += time.perf_counter() - here.since
    read, decode, augment, assemble = here.sums
    cpu_s, late = time.thread_time() - here.cpu, runqueue_wait()
    cpu_wait_s, moments = (late or 0.0) - here.cpu_wait, here.moments
    if late is not None and major_faults() > here.faults:
        disk = min(decode, max(0.0, sum(here.sums) - cpu_s - cpu_wait_s - read))
        read, decode = read + disk, decode - disk
        reads, bytes2, bytes_s = moments
        # It is not known which of several reads waited, so the wait is shared equally.
        moments = reads, bytes2, bytes_s + disk * here.bytes / max(1, reads)
    return Cost(read, decode, augment, assemble, cpu_s, here.bytes, *moments, cpu_wait_s)


class TracedSample(NamedTuple):
    """A finished sample for a trace: its worker, its start, and its cost.

    The start is a time.perf_counter, a clock that all processes of a host share.
    """

    number: int
    began: float
    cost: Cost


class StageTotals:
    """Total cost of a pool's samples; while ``trace`` is a deque, each sample is also appended to
    it.
    """

    def __init__(self) -> None:
        self.samples, self.cost = 0, Cost()
        self.trace: deque[TracedSample] | None = None

    def add(self, number: int, began: float, cost: Cost) -> None:
        self.samples += 1
        self.cost = self.cost.plus(cost)
        if self.trace is not None and began:
            self.trace.append(TracedSample(number, began, cost))
