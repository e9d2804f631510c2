"""Worker pool of a rank with helpers: cores of other hosts that make samples too.

Local workers take samples from the front of the queue. A helper gets samples that the local workers
would reach later than its answer arrives, and only while they alone are too slow for the loop. Its
answer is written straight into the batch. Every area of a batch has one writer at a time: a sample
that a local worker has begun is no longer taken from a helper, and nothing is written into a batch
that was handed out or dropped. So a helper that is slow, hangs, or dies costs speed and nothing
else.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from segtrain.base.terminal import Say
from segtrain.data.bucket.prefetched import maker_of, task_of
from segtrain.data.sample import SampleMaker, Task
from segtrain.data.stages import Cost
from segtrain.data.workers.batch import BatchTask, SampleTask
from segtrain.data.workers.made import SampleCounts
from segtrain.data.workers.pool import WorkerPool
from segtrain.platforms.ray.helpers import wire
from segtrain.platforms.ray.helpers.balance import Balance
from segtrain.platforms.ray.helpers.manager import Manager
from segtrain.platforms.ray.helpers.need import SampleDemand
from segtrain.platforms.ray.helpers.protocols import Engine, HelperSlot
from segtrain.platforms.ray.helpers.remote_helper import Ordered, RemoteHelper

# a sample that is out longer than this, and than so many turnarounds, is made here as well
TWICE_S, TWICE = 1.0, 4
# An order takes a helper about this long, and at most a quarter of the time that the queue lasts. A
# second order hides the way there and back.
AHEAD_S, QUARTER = 0.2, 4
WAIT_S = 0.1


@dataclass(frozen=True)
class Example:
    """A training sample as the loader orders it: its maker, its task, and the shapes of its
    parts.
    """

    maker: SampleMaker
    task: Task
    shapes: tuple[tuple[int, ...], ...]


class HelpedPool(WorkerPool):
    """``count`` local workers (at least one) of a kind, and the helpers that ``engine`` places.

    ``limit_s``: seconds without a sign of life after which a helper is given up. ``note`` gets what
    happens to helpers, as fields for the journal.
    """

    def __init__(
        self,
        count: int,
        kind: str,
        engine: Engine,
        *,
        limit_s: float = 2.0,
        say: Say | None = None,
        note: Callable[..., None] = lambda **fields: None,
    ) -> None:
        super().__init__(count, kind, say)
        self.engine, self.limit_s, self._note = engine, limit_s, note
        self.helped: Counter[str] = Counter()  # samples in batches, by host of their helper
        self._trained = 0  # samples of training, made here or by helpers
        self._gave: set[HelperSlot] = set()  # whose helper has made a sample
        self.again = 0  # samples that were ordered from a helper and not received
        self.balance = Balance()
        self._orders = threading.Condition(self._lock)  # a batch has begun, or the pool is closed
        # ordered from helpers, and neither made here nor received
        self._out: set[SampleTask] = set()
        self._manager: Manager | None = None
        self._example: Example | None = None
        self._packed: dict[int, tuple[Any, tuple[bytes, bytes]]] = {}
        self._probed: tuple[Example, list[tuple[Task, list[np.ndarray]]]] | None = None
        self._probing = threading.Lock()
        self._need = SampleDemand()

    def start(self) -> None:
        super().start()
        if self._manager is None and not self._closed:
            self._manager = Manager(self, self._say, self._note)

    def begin(self, batch: BatchTask) -> None:
        super().begin(batch)
        with self._lock:
            if batch.samples and _of_training(batch):
                first = batch.samples[0]
                self._example = Example(
                    maker_of(batch), task_of(first), tuple(shape for _, shape in first.areas)
                )
            self._orders.notify_all()

    def wait(self, batch: BatchTask) -> float:
        waited = super().wait(batch)
        if _of_training(batch):
            self._need.taken(time.monotonic(), len(batch.samples))
        return waited

    def drop(self, batches: Sequence[BatchTask]) -> None:
        with self._lock:
            self._out = {sample for sample in self._out if sample.batch not in batches}
        super().drop(batches)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._orders.notify_all()
        self.engine.stop()
        if self._manager is not None:
            self._manager.close()
        super().close()
        self.engine.close()

    def describe(self, least: int, most: int) -> str:
        return f"{super().describe(least, most)}; helpers make what these cannot"

    def made(self) -> SampleCounts:
        with self._lock:
            local = self._trained - sum(self.helped.values())
            cores, balance = len(self._gave), self.balance
            return SampleCounts(
                self.count,
                self.kind,
                local,
                dict(self.helped),
                cores,
                self.again,
                balance.made,
                balance.received,
            )

    # The rest is for the threads of the helpers (remote_helper.py).

    def example(self) -> Example:
        """A training sample, after waiting for the first one."""
        with self._lock:
            while self._example is None and not self._closed:
                self._orders.wait()
            if self._example is None:
                raise EOFError
            return self._example

    def packed(self, maker: Any) -> tuple[bytes, bytes]:
        with self._probing:
            if id(maker) not in self._packed:
                self._packed = {id(maker): (maker, wire.packed(maker))}
            return self._packed[id(maker)][1]

    def probes(self, example: Example) -> list[tuple[Task, list[np.ndarray]]]:
        """The first and the last sample as they are made here, to compare a helper's with."""
        with self._probing:
            if self._probed is None or self._probed[0].maker is not example.maker:
                count = len(example.maker.source)
                samples = []
                for index in sorted({0, count - 1}):
                    task = Task(index, 0, example.task.crop, example.task.scale)
                    parts = [np.zeros(shape, np.uint8) for shape in example.shapes]
                    example.maker(task, *parts)
                    samples.append((task, parts))
                self._probed = example, samples
            return self._probed[1]

    def take(self, helper: RemoteHelper, helpers: int) -> list[SampleTask]:
        """Samples to order from a helper now. Possibly none: it has enough, or the local workers
        are fast enough.

        ``helpers``: how many of them work now.
        """
        with self._lock:
            rate, now, waiting = self._rate(), time.monotonic(), len(self._queue)
            if self._closed or not waiting or not self._need.more_than(rate, now):
                return []
            # made here before the helper would answer
            soon = min(int(rate * helper.turnaround), -(-waiting // 2))
            free = [
                sample
                for sample in list(self._queue)[soon:]
                if not sample.only_here and sample not in self._out and _of_training(sample.batch)
            ]
            if not free:
                return []
            first = free[0]
            fair = -(-len(free) // max(1, helpers))
            ahead_s = min(AHEAD_S, waiting / QUARTER / max(1e-9, self._need.rate(now)))
            chosen = [
                sample
                for sample in free[: min(fair, helper.wants(_size(first), ahead_s))]
                if sample.batch.maker is first.batch.maker
            ]
            self._queue = deque(sample for sample in self._queue if sample not in set(chosen))
            self._out.update(chosen)
            helper.flight.extend(Ordered(sample, time.monotonic()) for sample in chosen)
            return chosen

    def wait_for_work(self) -> None:
        with self._lock:
            if not self._closed:
                self._orders.wait(WAIT_S)

    def claim(self, sample: SampleTask) -> bool:
        """Whether the caller may write the sample into its batch now. If so, it calls ``received``
        or ``unclaim``.
        """
        with self._lock:
            if sample not in self._out or sample in self._busy or self._closed:
                return False
            if sample in self._queue:
                self._queue.remove(sample)
            self._out.discard(sample)
            self._busy.add(sample)
            return True

    def unclaim(self, sample: SampleTask) -> None:
        with self._lock:
            self._out.add(sample)
        self._requeue([sample])

    def received(self, helper: RemoteHelper, sample: SampleTask) -> None:
        with self._lock:
            self.balance.received = self.balance.received.plus(0.0, 1, _size(sample))
            self.helped[helper.slot.host] += 1
            self._gave.add(helper.slot)
            self._settle(sample, None)

    def paid(self, seconds: float) -> None:
        """Count CPU seconds of this rank for ordering samples from helpers and receiving them."""
        with self._lock:
            self.balance.received = self.balance.received.plus(seconds, 0, 0)

    def worth_changed(self) -> bool:
        """Whether helpers have just been given up, or are asked again."""
        with self._lock:
            return self.balance.changed()

    def not_made(self, sample: SampleTask) -> None:
        """A helper could not make a sample: a local worker makes it, or finds the same error."""
        sample.only_here = True
        with self._lock:
            again = self._back([sample])
        self._requeue(again)

    def give_back(self, helper: RemoteHelper) -> int:
        """The samples that a helper has not delivered are made again. Returns how many it had."""
        with self._lock:
            samples = [ordered.sample for ordered in helper.flight]
            helper.flight.clear()
            self.again += len(samples)
            again = self._back(samples)
        self._requeue(again)
        return len(samples)

    def _back(self, samples: Sequence[SampleTask]) -> list[SampleTask]:
        """Those of ``samples`` that are out, and that no local worker has or will take. With the
        lock.
        """
        again = [
            sample
            for sample in samples
            if sample in self._out and sample not in self._busy and sample not in self._queue
        ]
        self._out.difference_update(samples)
        return again

    def _finish(
        self, sample: SampleTask, number: int, error: Exception | None, began: float, cost: Cost
    ) -> None:
        if error is None and _of_training(sample.batch):
            with self._lock:
                self.balance.made = self.balance.made.plus(cost.cpu_s, 1, _size(sample))
        super()._finish(sample, number, error, began, cost)

    def _settle(self, sample: SampleTask, error: Exception | None) -> None:
        self._out.discard(sample)
        self._trained += _of_training(sample.batch)
        super()._settle(sample, error)

    def _rate(self) -> float:
        """Samples per second that the local workers can make; 0: not known."""
        tally = self.tally
        return self.count * tally.samples / tally.cost.seconds if tally.cost.seconds else 0.0

    def make_late_ones_here(self, now: float, helping: Sequence[RemoteHelper]) -> None:
        """Put samples that helpers are late with into the queue of the local workers as well.

        Those of a helper without a sign of life are late after half the time after which it is
        given up: making them takes time too.
        """
        with self._lock:
            late = [
                ordered
                for helper in helping
                for ordered in helper.flight
                if not ordered.twice
                and (
                    now - ordered.since > max(TWICE_S, TWICE * helper.turnaround)
                    or helper.silent_s(ordered, now) > self.limit_s / 2
                )
            ]
            for ordered in late:
                ordered.twice = True
            again = [
                ordered.sample
                for ordered in late
                if ordered.sample in self._out and ordered.sample not in self._busy
            ]
            self._queue.extendleft(reversed(again))
            self._work.notify(len(again))


def _of_training(batch: BatchTask) -> bool:
    return isinstance(maker_of(batch), SampleMaker)


def _size(sample: SampleTask) -> int:
    """Bytes of a finished sample."""
    return sum(int(np.prod(shape)) for _, shape in sample.areas)
