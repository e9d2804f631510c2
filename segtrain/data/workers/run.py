"""How do jobs come out in order, ahead of their consumer and in bounded memory? At most ``ahead`` are begun and not given out."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from segtrain.data.workers.autoscaler import Autoscaler
from segtrain.data.workers.job import BatchTask
from segtrain.data.workers.memory import Ring
from segtrain.data.workers.pool import WorkerPool
from segtrain.errors import SegtrainError


class BatchRun:
    """Iterates over the results of ``jobs(ring)``. ``own``: the crew ends with the run. A result's block lives until the next is asked for."""

    def __init__(
        self,
        jobs: Callable[[Ring], Generator[BatchTask, None, None]],
        pin_memory: bool,
        crew: WorkerPool,
        own: bool,
        ahead: int,
        pace: Autoscaler | None,
    ) -> None:
        self.crew, self.own, self.ahead, self.pace = crew, own, ahead, pace
        self.ring = Ring(shared=crew.kind == "process" and crew.count > 0, pin=pin_memory)
        self.source = jobs(self.ring)
        self.waiting: deque[BatchTask | Exception] = deque()
        self.given: BatchTask | None = None
        self.open = True
        self.asked, self.lay_ready = 0, 0  # for jobs; how many were done then, summed
        crew.start()
        self._top_up()

    def __iter__(self) -> BatchRun:
        return self

    def __next__(self) -> Any:
        if not self.open:
            raise StopIteration
        try:
            if self.given is not None:  # its time is over
                self.ring.give(self.given.block)
                self.given.pieces.clear()
                self.given = None
            if not self.waiting:
                raise StopIteration
            job = self.waiting[0]
            if isinstance(job, Exception):
                raise job
            self.asked += 1
            self.lay_ready += sum(isinstance(one, BatchTask) and not one.left for one in self.waiting)
            waited = self.crew.wait(job)
            self.given = job
            self.waiting.popleft()
            self._top_up()
            if self.pace is not None:
                count = self.pace.next(time.perf_counter(), waited, self.crew.seconds)
                if count != self.crew.count:
                    self.crew.resize(count)
            return job.result
        except BaseException:
            self.close()
            raise

    def ready(self) -> bool:
        """Whether the next job is done, so that asking for it waits for nobody."""
        job = self.waiting[0] if self.waiting else None
        return isinstance(job, BatchTask) and not job.left and not job.errors

    def first(self) -> None:
        """Wait for the next job, but leave it where it is. What went wrong with it is raised when it is asked for."""
        job = self.waiting[0] if self.waiting else None
        if isinstance(job, BatchTask) and self.crew.count:
            with contextlib.suppress(SegtrainError):
                self.crew.wait(job)

    def _top_up(self) -> None:
        while len(self.waiting) < self.ahead and not (self.waiting and isinstance(self.waiting[-1], Exception)):
            try:
                job = next(self.source, None)
                if job is None:
                    return
                self.crew.begin(job)
                self.waiting.append(job)
            except Exception as error:  # to be raised in its turn
                self.waiting.append(error)

    def close(self) -> None:
        if self.open:
            self.open = False
            if self.own:
                self.crew.close()
            jobs = [job for job in (self.given, *self.waiting) if isinstance(job, BatchTask)]
            self.crew.drop(jobs)
            for job in jobs:
                job.pieces.clear()  # they know each other: without this their memory waits for the garbage collector
            self.given = None
            self.waiting.clear()
            self.source.close()
            self.ring.close()
