"""Traces of a few steps, and samples of Python stacks, which a rank writes on request by a file in
the run folder.

See observe/trace.py for the requests and the files.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from segtrain.base.json_text import write_json
from segtrain.base.stacks import StackRequest, StackSampler, read_order
from segtrain.data.stages import StageTotals
from segtrain.data.workers.pool import WorkerPool
from segtrain.errors import SegtrainError
from segtrain.observe import trace
from segtrain.observe.clock import RECENT, Clock
from segtrain.observe.journal import say_on_stderr

CHECK_S = 0.5  # seconds between two checks for a request
SPANS = 200  # most spans of one step
MARKS = 5  # events at the start of a trace that align the clocks of the profiler and of the spans

R = TypeVar("R", bound=trace.TraceRequest | StackRequest)


class _Requests(Generic[R]):
    """New requests in a file that ``read`` reads. A request from before the start is ignored."""

    def __init__(self, read: Callable[[Path], R | None], run: Path) -> None:
        self._read = read
        self._run = run
        self._next_check = 0.0
        self._last = read(run)

    def new(self) -> R | None:
        """A request that was not returned before. The file is read at most every LOOK_S seconds."""
        now = time.perf_counter()
        if now < self._next_check:
            return None
        self._next_check = now + CHECK_S
        request = self._read(self._run)
        if request is None or request == self._last:
            return None
        self._last = request
        return request


class Tracer:
    """Writes traces. Call ``step`` after each step."""

    def __init__(self, run: Path, rank: int, clock: Clock, tally: StageTotals) -> None:
        self._run = run
        self._rank = rank
        self._clock = clock
        self._tally = tally
        self._requests = _Requests(trace.read_order, run)
        self._order: trace.TraceRequest | None = None  # a request whose trace has not begun
        self._open: _OpenTrace | None = None

    def step(self, done: int) -> None:
        """``done``: steps so far."""
        if self._open is not None:
            if done < self._open.last:
                self._open.mark(done + 1)
                return
            self._write(self._open)
            self._open = None
            return
        self._order = self._requests.new() or self._order
        if self._order is not None and done + 1 >= self._order.first:
            steps, self._order = self._order.steps, None
            self._open = self._begin(done + 1, steps)

    def _begin(self, first: int, steps: int) -> _OpenTrace | None:
        try:
            opened = _OpenTrace(first, first + steps - 1)
        except RuntimeError as error:  # another profiler is active
            say_on_stderr(f"warning: no trace of step {first}: {error}; training goes on")
            return None
        self._clock.keep(SPANS * steps)
        self._tally.trace = deque()
        return opened

    def close(self) -> None:
        """At the end of the run: write an unfinished trace."""
        if self._open is not None:
            self._write(self._open)
            self._open = None

    def _write(self, open_: _OpenTrace) -> None:
        path = trace.file_of(self._run, self._rank, open_.first)
        samples, self._tally.trace = self._tally.trace or (), None
        spans = [span for span in self._clock.recent if span[2] > open_.marks[0]]
        self._clock.keep(RECENT)
        try:
            open_.stop()
            path.parent.mkdir(exist_ok=True)
            alone = path.with_suffix(".pt.trace.json")
            open_.profiler.export_chrome_trace(str(alone))
            whole = json.loads(alone.read_text(encoding="utf-8"))
            offset = trace.offset_us(whole, open_.marks)
            stages = ("read", "decode", "augment", "assemble")
            made = [
                (sample.number, sample.began, {name: getattr(sample.cost, name) for name in stages})
                for sample in list(samples)
            ]
            whole["traceEvents"] += trace.events(
                self._rank, socket.gethostname(), spans, made, offset
            )
            write_json(path, whole)
        except (OSError, ValueError, RuntimeError, SegtrainError) as error:
            say_on_stderr(f"warning: no trace {path}: {error}; training goes on")


class _OpenTrace:
    """An unfinished trace of the steps ``first`` to ``last``. ``marks``: time.perf_counter of its
    first events.
    """

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        self.profiler = profile(activities=activities)
        self.profiler.start()
        self.marks = []
        for _ in range(MARKS):
            self.marks.append(time.perf_counter())
            with record_function(trace.MARK):
                pass
        self._step = contextlib.ExitStack()
        self.mark(first)

    def mark(self, step: int) -> None:
        """Begin a step, under the name that TensorBoard's plugin knows."""
        self._step.close()
        self._step.enter_context(record_function(f"ProfilerStep#{step}"))

    def stop(self) -> None:
        self._step.close()
        self.profiler.stop()


class Stacker:
    """Samples stacks. Call ``step`` after each step."""

    def __init__(self, run: Path, rank: int, pool: WorkerPool) -> None:
        self._run = run
        self._rank = rank
        self._pool = pool
        self._requests = _Requests(read_order, run)
        self._open: StackSampler | None = None

    def step(self) -> None:
        order = self._requests.new()
        if order is None:
            return
        self.close()
        name, host = f"rank-{self._rank:05d}", socket.gethostname()
        workers = self._pool.sample_stacks(str(self._run.absolute()), name, order)
        self._open = StackSampler(self._run, name, order, host=host, workers=workers)

    def close(self) -> None:
        """At the end of the run: write the samples of an unfinished request."""
        if self._open is not None:
            self._open.stop()
            self._open = None
