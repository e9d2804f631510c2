"""Iteration over batches in order, ahead of the consumer and in bounded memory: at most ``ahead`` are in progress."""

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
    """Iterates over the results of ``batches(ring)``. A result's memory is reused when the next result is requested.

    ``own``: closing the run closes the pool.
    """

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
        self.asked, self.ready_sum = 0, 0  # requests, and the sum of the batches that were ready then
        pool.start()
        self._top_up()

    def __iter__(self) -> BatchRun:
        return self

    def __next__(self) -> Any:
        if not self.open:
            raise StopIteration
        try:
            if self.given is not None:
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
        """Whether the next batch is done, so that requesting it does not wait."""
        batch = self.waiting[0] if self.waiting else None
        return isinstance(batch, BatchTask) and not batch.left and not batch.errors

    def first(self) -> None:
        """Wait for the next batch without taking it. Its error is raised when it is requested."""
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
            except Exception as error:  # raised when its turn comes
                self.waiting.append(error)

    def close(self) -> None:
        if self.open:
            self.open = False
            if self.own:
                self.pool.close()
            batches = [batch for batch in (self.given, *self.waiting) if isinstance(batch, BatchTask)]
            self.pool.drop(batches)
            for batch in batches:
                batch.samples.clear()  # breaks a reference cycle that would keep their memory
            self.given = None
            self.waiting.clear()
            self.source.close()
            self.ring.close()
