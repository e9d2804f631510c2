"""A rank reads bytes ahead, and sends them to the worker process that makes their sample.

A worker process that fetched by itself would wait for the bucket at each sample. So the rank
fetches for all of its worker processes. When a task is sent, the bytes of its sample are taken from
the read-ahead and sent with it.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from segtrain.data import stages
from segtrain.data.bucket.ahead import ReadAhead
from segtrain.data.bucket.store import BucketStore
from segtrain.data.storage import Range
from segtrain.data.workers.batch import BatchTask, Maker, SampleTask
from segtrain.errors import SegtrainError


class PrefetchedTask:
    """A task in the rank. Pickling it waits for the bytes of its sample; unpickling it gives a
    ``Received``.
    """

    def __init__(self, task: Any, ranges: Sequence[Range], ahead: ReadAhead) -> None:
        self.task, self.ranges, self.ahead = task, ranges, ahead

    def __reduce__(self) -> tuple[Any, ...]:
        began, parts, error = time.perf_counter(), dict[Range, bytes](), None
        try:
            for wanted in self.ranges:
                content = self.ahead.take(wanted)
                if content is not None:
                    parts[wanted] = bytes(content)
        # raised in the worker process, like every other error of a sample
        except SegtrainError as failure:
            error = failure
        return Received, (self.task, parts, error, time.perf_counter() - began)


class Received:
    """A task in a worker process, which itself fetches the ranges that are not in ``parts``."""

    def __init__(
        self, task: Any, parts: dict[Range, bytes], error: SegtrainError | None, waited: float
    ) -> None:
        self.task, self.parts, self.error, self.waited = task, parts, error, waited


class Unpacking:
    """Wraps a maker of samples, so that it takes ``Received`` tasks."""

    def __init__(self, maker: Maker, store: BucketStore) -> None:
        self.maker, self.store = maker, store

    def __call__(self, received: Received, *areas: np.ndarray) -> None:
        stages.waited(received.waited)
        if received.error is not None:
            raise received.error
        self.store.prefetched = received.parts
        try:
            self.maker(received.task, *areas)
        finally:
            self.store.prefetched = {}


def maker_of(batch: BatchTask) -> Any:
    """The maker of a batch, without ``Unpacking``."""
    return batch.maker.maker if isinstance(batch.maker, Unpacking) else batch.maker


def task_of(sample: SampleTask) -> Any:
    """The task of a sample, without ``PrefetchedTask``."""
    return sample.task.task if isinstance(sample.task, PrefetchedTask) else sample.task


def with_bytes(
    batches: Generator[BatchTask, None, None], dataset: Any, ahead: ReadAhead
) -> Generator[BatchTask, None, None]:
    """The same batches for worker processes, which get the bytes of each sample with its task."""
    unpacking: Unpacking | None = None
    for batch in batches:
        if unpacking is None or unpacking.maker is not batch.maker:
            unpacking = Unpacking(batch.maker, dataset.store)
        batch.maker = unpacking
        for sample in batch.samples:
            # A training task has the attribute ``index``; an evaluation task is the index itself.
            index = int(getattr(sample.task, "index", sample.task))
            sample.task = PrefetchedTask(sample.task, dataset.ranges(index), ahead)
        yield batch
