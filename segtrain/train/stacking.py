"""A rank samples the Python stacks of its threads and worker processes when it is asked to. See observe/trace.py for the request."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from segtrain.data.workers.pool import WorkerPool
from segtrain.stacks import StackSampler, read_order

LOOK_S = 0.5  # between two looks at the request


class Stacker:
    """Call ``step`` after each step. A request that lies there already is of an earlier process."""

    def __init__(self, run: Path, rank: int, pool: WorkerPool) -> None:
        self._run, self._rank, self._pool = run, rank, pool
        old = read_order(run)
        self._answered = old.asked if old else 0.0
        self._next_look = 0.0
        self._open: StackSampler | None = None

    def step(self) -> None:
        now = time.perf_counter()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        order = read_order(self._run)
        if order is None or order.asked == self._answered:
            return
        self._answered = order.asked
        self.close()
        name, host = f"rank-{self._rank:05d}", socket.gethostname()
        workers = self._pool.sample_stacks(str(self._run.absolute()), name, order)
        self._open = StackSampler(self._run, name, order, host=host, workers=workers)

    def close(self) -> None:
        """The run ends: what there is of a request."""
        if self._open is not None:
            self._open.stop()
            self._open = None
