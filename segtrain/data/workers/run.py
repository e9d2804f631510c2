"""How do batches come out in order, ahead of their consumer and in bounded memory? At most ``ahead`` are begun and not given out."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from segtrain.data.workers.autoscaler import Autoscaler
from segtrain.data.workers.memory import Ring
from segtrain.data.workers.pool import WorkerPool
from segtrain.data.workers.tasks import BatchTask
from segtrain.errors import SegtrainError


class BatchRun:
    """Iterates over the results of ``batches(ring)``. ``own``: the pool ends with the run. A result's block lives until the next is asked for."""

    def __init__(
        self,
        batches: Callable[[Ring], Generator[BatchTask, None, None]],
        pin_memory: bool,
        pool: WorkerPool,
        own: bool,
        ahead: int,
        autoscaler: Autoscaler | None,
    ) -> None:
        self.pool, self.own, self.ahead, self.autoscaler = pool, own, ahead, autoscaler
        self.ring = Ring(shared=pool.kind == "process" and pool.count > 0, pin=pin_memory)
        self.source = batches(self.ring)
        self.waiting: deque[BatchTask | Exception] = deque()
        self.given: BatchTask | None = None
        self.open = True
        self.asked, self.ready_sum = 0, 0  # for batches; how many were done then, summed
        pool.start()
        self._top_up()

    def __iter__(self) -> BatchRun:
        return self

    def __next__(self) -> Any:
        if not self.open:
            raise StopIteration
        try:
            if self.given is not None:  # its time is over
                self.ring.give(self.given.block)
                self.given.samples.clear()
                self.given = None
            if not self.waiting:
                raise StopIteration
            batch = self.waiting[0]
            if isinstance(batch, Exception):
                raise batch
            self.asked += 1
            self.ready_sum += sum(isinstance(one, BatchTask) and not one.left for one in self.waiting)
            waited = self.pool.wait(batch)
            self.given = batch
            self.waiting.popleft()
            self._top_up()
            if self.autoscaler is not None:
                count = self.autoscaler.next(time.perf_counter(), waited, self.pool.seconds)
                if count != self.pool.count:
                    self.pool.resize(count)
            return batch.result
        except BaseException:
            self.close()
            raise

    def ready(self) -> bool:
        """Whether the next batch is done, so that asking for it waits for nobody."""
        batch = self.waiting[0] if self.waiting else None
        return isinstance(batch, BatchTask) and not batch.left and not batch.errors

    def first(self) -> None:
        """Wait for the next batch, but leave it where it is. What went wrong with it is raised when it is asked for."""
        batch = self.waiting[0] if self.waiting else None
        if isinstance(batch, BatchTask) and self.pool.count:
            with contextlib.suppress(SegtrainError):
                self.pool.wait(batch)

    def _top_up(self) -> None:
        while len(self.waiting) < self.ahead and not (self.waiting and isinstance(self.waiting[-1], Exception)):
            try:
                batch = next(self.source, None)
                if batch is None:
                    return
                self.pool.begin(batch)
                self.waiting.append(batch)
            except Exception as error:  # to be raised in its turn
                self.waiting.append(error)

    def close(self) -> None:
        if self.open:
            self.open = False
            if self.own:
                self.pool.close()
            batches = [batch for batch in (self.given, *self.waiting) if isinstance(batch, BatchTask)]
            self.pool.drop(batches)
            for batch in batches:
                batch.samples.clear()  # they know each other: without this their memory waits for the garbage collector
            self.given = None
            self.waiting.clear()
            self.source.close()
            self.ring.close()
