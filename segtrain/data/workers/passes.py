"""Base class of the loaders: passes over batches, which workers make (and a bucket delivers) ahead
of the consumer.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from segtrain.data.dataset import SampleSource
from segtrain.data.workers.autoscaler import Autoscaler
from segtrain.data.workers.batch import BatchTask
from segtrain.data.workers.memory import Ring
from segtrain.data.workers.pool import WorkerPool
from segtrain.errors import SegtrainError

if TYPE_CHECKING:
    from typing_extensions import Self

    from segtrain.data.bucket.ahead import ReadAhead


class Loader:
    """Iterates over the results of ``_batches``, one pass at a time. At most ``ahead`` batches are
    in progress.

    The memory of a result is reused when the next result is requested; if ``lends`` is set, when
    its tensors are gone. Closing ends the pass. It also ends the workers,
    except those of a given ``pool``. A pass whose iterator is dropped is closed.
    """

    dataset: SampleSource
    lends = False

    def __init__(
        self,
        workers: int,
        kind: str,
        pool: WorkerPool | None,
        ahead: int,
        pin_memory: bool,
        autoscaler: Autoscaler | None = None,
    ) -> None:
        self.workers, self.kind, self.ahead, self.pin_memory = workers, kind, ahead, pin_memory
        self.autoscaler, self._shared_pool = autoscaler, pool
        self._open = False
        self._reading: ReadAhead | None = None
        self._given: BatchTask | None = None
        self._waiting: deque[BatchTask | Exception] = deque()
        self._asked, self._ready_sum = 0, 0

    def _batches(self, ring: Ring) -> Generator[BatchTask, None, None]:
        raise NotImplementedError

    def _order(self) -> Iterator[Sequence[int] | np.ndarray]:
        """The samples of each step of a pass, in the order in which they are made."""
        raise NotImplementedError

    def _read_ahead(self) -> ReadAhead | None:
        """Begin to fetch the samples of a pass from a bucket; None for a local disk."""
        if self.dataset.store.local:
            return None
        batch = len(next(self._order(), ()))
        wanted = (self.dataset.ranges(int(index)) for step in self._order() for index in step)
        return self.dataset.store.read_ahead(wanted, batch, batch * self.ahead)

    def __iter__(self) -> Iterator[Any]:
        self.close()
        # OpenCV's own threads would compete with the workers and with the model.
        cv2.setNumThreads(1)
        self._pool = self._shared_pool or WorkerPool(self.workers, self.kind)
        self._ring = Ring(
            shared=self._pool.kind == "process" and self._pool.count > 0, pin=self.pin_memory
        )
        self._reading, self._source = self._read_ahead(), self._batches(self._ring)
        if self._reading is not None and self._ring.shared:
            from segtrain.data.bucket.prefetched import with_bytes

            self._source = with_bytes(self._source, self.dataset, self._reading)
        self._asked, self._ready_sum, self._open = 0, 0, True
        self._pool.start()
        self._top_up()
        return self._results(self._source)

    def _results(self, source: Generator[BatchTask, None, None]) -> Iterator[Any]:
        try:
            while source is self._source and (batch := self._request()) is not None:
                yield batch.result
        finally:  # also if the consumer leaves its loop early
            if source is self._source:
                self.close()

    def _request(self) -> BatchTask | None:
        """Wait for the next batch; None after the last one."""
        try:
            if self._given is not None:
                if not self.lends:
                    self._ring.give(self._given.block)
                # A worker may still refer to its last sample, and thus to the batch.
                self._given.samples.clear()
                self._given.result = None
                self._given = None
            if not self._waiting:
                self.close()
                return None
            batch = self._waiting[0]
            if isinstance(batch, Exception):
                raise batch
            self._asked += 1
            self._ready_sum += sum(
                isinstance(one, BatchTask) and not one.left for one in self._waiting
            )
            waited = self._pool.wait(batch)
            self._given = batch
            self._waiting.popleft()
            self._top_up()
            if not self._waiting and self._reading is not None:
                # the last batch is made, and the consumer might never request another
                self._reading.close()
            if self.autoscaler is not None:
                count = self.autoscaler.next(
                    time.perf_counter(), waited, self._pool.tally.cost.seconds
                )
                if count != self._pool.count:
                    self._pool.resize(count)
            return batch
        except BaseException:
            self.close()
            raise

    def _top_up(self) -> None:
        while len(self._waiting) < self.ahead and not (
            self._waiting and isinstance(self._waiting[-1], Exception)
        ):
            try:
                batch = next(self._source, None)
                if batch is None:
                    return
                self._pool.begin(batch)
                self._waiting.append(batch)
            except Exception as error:  # raised later, when this batch is requested
                self._waiting.append(error)

    def ready(self) -> bool:
        """Whether the next item is ready, so that requesting it does not wait."""
        batch = self._waiting[0] if self._waiting else None
        return isinstance(batch, BatchTask) and not batch.left and not batch.errors

    def first(self) -> None:
        """Block until the next batch is ready. Call this before a measurement of time.

        If the batch fails, its error is raised only when the batch is requested.
        """
        batch = self._waiting[0] if self._waiting else None
        if isinstance(batch, BatchTask) and self._pool.count:
            with contextlib.suppress(SegtrainError):
                self._pool.wait(batch)

    def queue(self) -> tuple[int, int]:
        """How many batches this pass has requested, and how many batches were ready at each
        request, summed up.
        """
        return self._asked, self._ready_sum

    def reading(self) -> dict[str, float]:
        """Figures of the read-ahead of this pass; empty if nothing is read from a bucket."""
        return self._reading.figures() if self._reading is not None else {}

    def close(self) -> None:
        """End the pass and drop what was read ahead."""
        if not self._open:
            return
        self._open = False
        if self._reading is not None:
            self._reading.halt()  # first, because workers may be waiting for it
        if self._shared_pool is None:
            self._pool.close()
        batches = [batch for batch in (self._given, *self._waiting) if isinstance(batch, BatchTask)]
        self._pool.drop(batches)
        if self._reading is not None:
            self._reading.close()
        for batch in batches:
            batch.samples.clear()  # breaks a reference cycle that would keep their memory
        self._given = None
        self._waiting.clear()
        self._source.close()
        self._ring.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
