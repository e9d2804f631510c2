"""What does the making of a sample consist of? Seconds of its stages, counted by the thread that makes it.

    with READ: ...       the bytes come from storage      with DECODE: ...    pixels are made of them
    with AUGMENT: ...    geometry, colors, transforms    ASSEMBLE            all the rest: into its place in the batch

A stage inside a stage is charged to the inner one alone, so the stages of a sample add up to its time. The native decoder reads,
decodes, resizes and puts a crop in its place by one call: all that is DECODE. So is the wait for a disk below a mapped file.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple

from segtrain.cpu_wait import runqueue_wait


class Cost(NamedTuple):
    """Of samples: wall seconds of their stages, CPU seconds of the threads that made them, bytes read from storage.

    Of each single read its bytes and seconds, summed: how many, bytes squared, bytes times seconds. They tell what part of the
    time grows with size.
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
    cpu_wait_s: float = 0.0  # of the wall time: it could have run, and had no core; 0 where that is not counted

    def plus(self, other: Cost) -> Cost:
        return Cost(*(mine + more for mine, more in zip(self, other)))  # type: ignore[arg-type]

    @property
    def seconds(self) -> float:
        return self.read + self.decode + self.augment + self.assemble


_READ, _DECODE, _AUGMENT, _ASSEMBLE = range(4)


class _SampleStages(threading.local):
    """This thread's stage, when it began, those around it, and the sums since ``begin``."""

    stage, since, cpu, bytes, cpu_wait = _ASSEMBLE, 0.0, 0.0, 0, 0.0

    def __init__(self) -> None:
        self.around: list[int] = []
        self.sums = [0.0] * 4
        self.read = 0.0  # of the sums: by the end of the last single read
        self.moments = 0, 0.0, 0.0


_here = _SampleStages()


class Stage:
    """For ``with``; one object serves all threads."""

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
    """``count`` bytes were asked of storage, since the last ones."""
    here = _here
    here.bytes += count
    read = here.sums[_READ] + (time.perf_counter() - here.since if here.stage == _READ else 0.0)
    reads, bytes2, bytes_s = here.moments
    here.moments = reads + 1, bytes2 + count * count, bytes_s + count * (read - here.read)
    here.read = read


def begin() -> None:
    """This thread begins a sample."""
    here = _here
    here.sums, here.bytes, here.read, here.moments = [0.0] * 4, 0, 0.0, (0, 0.0, 0.0)
    here.cpu_wait, here.cpu, here.since = runqueue_wait() or 0.0, time.thread_time(), time.perf_counter()


def end() -> Cost:
    """What the sample has cost since ``begin``."""
    here = _here
    here.sums[here.stage] += time.perf_counter() - here.since
    read, decode, augment, assemble = here.sums
    cpu_s, cpu_wait_s = time.thread_time() - here.cpu, (runqueue_wait() or 0.0) - here.cpu_wait
    return Cost(read, decode, augment, assemble, cpu_s, here.bytes, *here.moments, cpu_wait_s)


class Made(NamedTuple):
    """A sample that was made, for a trace: by worker ``number``, from ``began`` on (time.perf_counter, of any process of the host)."""

    number: int
    began: float
    cost: Cost


class StageTotals:
    """What a pool's samples cost so far; while ``trace`` is a deque, each sample is put there as well."""

    def __init__(self) -> None:
        self.samples, self.cost = 0, Cost()
        self.trace: deque[Made] | None = None

    def add(self, number: int, began: float, cost: Cost) -> None:
        self.samples += 1
        self.cost = self.cost.plus(cost)
        if self.trace is not None and began:
            self.trace.append(Made(number, began, cost))
