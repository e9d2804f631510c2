"""Batches in progress: the samples to make, and iteration over batches in order, ahead of the consumer.

At most ``ahead`` batches are in progress, which bounds memory.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from segtrain.data.stages import Cost, begin, end
from segtrain.data.workers.autoscaler import Autoscaler
from segtrain.data.workers.memory import Ring, SharedBlock
from segtrain.errors import DataError, SegtrainError

if TYPE_CHECKING:
    from segtrain.data.workers.pool import WorkerPool

Maker = Callable[..., None]  # (task, image_out, mask_out, perhaps colors_out)
Area = tuple[int, tuple[int, ...]]  # offset in a block, shape


@dataclass(eq=False)
class SampleTask:
    """One sample to make."""

    batch: BatchTask
    task: Any
    areas: tuple[Area, ...]  # where the image, the mask, and perhaps the colors are written
    files: Callable[[], str]  # for messages
    crashes: int = 0


@dataclass(eq=False)
class BatchTask:
    """Samples that share a block and are awaited together."""

    maker: Maker
    block: SharedBlock
    result: Any = None
    samples: list[SampleTask] = field(default_factory=list)
    left: int = 0
    errors: dict[int, Exception] = field(default_factory=dict)  # by place among the samples

    def add(self, task: Any, areas: tuple[Area, ...], files: Callable[[], str]) -> None:
        self.samples.append(SampleTask(self, task, areas, files))
        self.left += 1

    def make(self, sample: SampleTask) -> None:
        self.maker(sample.task, *(self.block.part(*area) for area in sample.areas))


def attempt(sample: SampleTask) -> tuple[Exception | None, float, Cost]:
    """Make a sample; returns its error, start time (time.perf_counter), and cost."""
    began = time.perf_counter()
    begin()
    try:
        sample.batch.make(sample)
    except Exception as error:
        return error, began, end()
    except BaseException as error:
        if threading.current_thread() is threading.main_thread():  # Ctrl-C
            raise
        # If the worker thread ended here, the batch would wait for it forever.
        files, reason = sample.files(), f"{type(error).__name__}: {error}"
        message = f"{files}: {reason}: a sample cannot end the run"
        return DataError(message, code="sample-failed", files=files, found=reason), began, end()
    return None, began, end()


class BatchRun:
    """Iterates over the results of ``batches(ring)``. A result's memory is reused when the next result is requested.

    ``own``: whether closing the run closes the pool.
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
        self.asked, self.ready_sum = 0, 0  # requests, and the sum of the batches that were ready at each
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
                count = self.autoscaler.next(time.perf_counter(), waited, self.pool.tally.cost.seconds)
                if count != self.pool.count:
                    self.pool.resize(count)
            return batch.result
        except BaseException:
            self.close()
            raise

    def ready(self) -> bool:
        """Whether the next batch is done, so that requesting it does not wait."""
        batch = self._next_batch()
        return batch is not None and not batch.left and not batch.errors

    def first(self) -> None:
        """Wait for the next batch without taking it. Its error is raised when it is requested."""
        batch = self._next_batch()
        if batch is not None and self.pool.count:
            with contextlib.suppress(SegtrainError):
                self.pool.wait(batch)

    def _next_batch(self) -> BatchTask | None:
        batch = self.waiting[0] if self.waiting else None
        return batch if isinstance(batch, BatchTask) else None

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
