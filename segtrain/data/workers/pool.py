"""Worker pool of a rank: threads, or processes, each of which is supervised by a thread of the
rank.

All workers take single samples from one queue, in the order in which the samples are needed. A
sample is the same whichever worker makes it, so workers may be added or removed. A process that
dies is replaced, and its samples are made again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from segtrain.base.stacks import StackRequest
from segtrain.base.terminal import counted
from segtrain.data.stages import Cost, StageTotals
from segtrain.data.workers.batch import BatchTask, SampleTask, attempt
from segtrain.data.workers.made import SampleCounts
from segtrain.data.workers.process import WorkerProcess, pickled
from segtrain.errors import DataError

# this many crashes on one sample are an error, and so are this many failed starts in a row
MAX_CRASHES = 3


class WorkerPool:
    """``count`` workers of a kind, 'thread' or 'process'; with 0, the consumer's thread does the
    work while it waits.

    ``say`` gets a line for each worker process that died. Closing the pool ends its threads and
    processes.
    """

    def __init__(
        self, count: int, kind: str = "thread", say: Callable[[str], None] | None = None
    ) -> None:
        self.count, self.kind = count, kind
        self.tally = StageTotals()
        self._say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self._lock = threading.Lock()
        # there are samples in the queue, or too many workers
        self._work = threading.Condition(self._lock)
        self._done = threading.Condition(self._lock)  # a batch is done
        self._queue: deque[SampleTask] = deque()
        self._busy: set[SampleTask] = set()
        self._threads: dict[int, threading.Thread] = {}
        self._processes: dict[int, WorkerProcess] = {}
        self._cpu_of_the_gone = 0.0
        self._failed_starts = 0
        self._broken: Exception | None = None
        self._closed = self._dropping = False

    def start(self) -> None:
        """Start all workers; later calls bring their number to ``count``."""
        with self._lock:
            for number in range(self.count):
                if number not in self._threads and not self._closed:
                    thread = threading.Thread(
                        target=self._threaded if self.kind == "thread" else self._watched,
                        args=(number,),
                        daemon=True,
                        name=f"segtrain-data-{number}",
                    )
                    self._threads[number] = thread
                    thread.start()
            self._work.notify_all()  # workers beyond the count exit

    def resize(self, count: int) -> None:
        self.count = count
        self.start()

    def begin(self, batch: BatchTask) -> None:
        """Append the samples of a batch to the queue. Raises ConfigError for a maker that does not
        pickle.
        """
        if not self.count:
            return
        if self.kind == "process":
            pickled(batch.maker)
        with self._lock:
            self._queue.extend(batch.samples)
            self._work.notify(len(batch.samples))

    def wait(self, batch: BatchTask) -> float:
        """Wait for a batch; returns the seconds waited. Raises the error of the first of its
        samples that failed.
        """
        since = time.perf_counter()
        if not self.count:
            for sample in batch.samples:
                error, began, cost = attempt(sample)
                if error is not None:
                    raise error
                self.tally.add(0, began, cost)
            batch.left = 0
        with self._lock:
            while batch.left and not self._broken and not self._closed:
                self._done.wait()
            if batch.errors:
                raise batch.errors[min(batch.errors)]
            if self._broken:
                raise self._broken
        return time.perf_counter() - since

    def drop(self, batches: Sequence[BatchTask]) -> None:
        """Drop batches; returns when no worker writes into their blocks any more."""
        with self._lock:
            self._dropping = True
            while any(sample.batch in batches for sample in self._busy) and not self._closed:
                self._queue = deque(sample for sample in self._queue if sample.batch not in batches)
                self._done.wait()
            self._dropping = False
            self._queue = deque(sample for sample in self._queue if sample.batch not in batches)

    def cpu_s(self) -> float:
        """CPU seconds of the worker processes so far. Worker threads are part of this process's own
        CPU time.
        """
        return self._cpu_of_the_gone + sum(
            process.cpu_s for process in list(self._processes.values())
        )

    def describe(self, least: int, most: int) -> str:
        """One line about the workers and the time per sample."""
        if not self.count:
            return "samples are made in the loop"
        some = counted(self.count, self.kind)
        room = f" at first, {least} to {most} as needed" if least < most else ""
        made, seconds = self.tally.samples, self.tally.cost.seconds
        cost = f", {1000 * seconds / made:.1f} ms a sample" if made else ""
        return f"samples are made by {some}{room}{cost}"

    def made(self) -> SampleCounts | None:
        """Who made the training samples so far; None if there are no helpers."""
        return None

    def pids(self) -> list[int]:
        return [process.pid for process in list(self._processes.values())]

    def sample_stacks(self, run: str, name: str, order: StackRequest) -> int:
        """Make each worker process record its stacks, beginning with its next task; returns the
        number of processes.

        Worker threads appear in the rank's own stacks.
        """
        processes = sorted(self._processes.items())
        for number, process in processes:
            process.stacks = run, f"{name}-worker-{number:02d}", order
        return len(processes)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers: threads after their current sample, processes at once."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            for process in self._processes.values():
                process.kill()
            self._work.notify_all()
            self._done.notify_all()
            threads = list(self._threads.values())
        for thread in threads:
            thread.join()

    def _retired(self, number: int) -> bool:
        return self._closed or number >= self.count

    def _finish(
        self, sample: SampleTask, number: int, error: Exception | None, began: float, cost: Cost
    ) -> None:
        with self._lock:
            self.tally.add(number, began, cost)
            self._settle(sample, error)

    def _settle(self, sample: SampleTask, error: Exception | None) -> None:
        """A sample is in its batch, or has failed. With the lock."""
        batch = sample.batch
        self._busy.discard(sample)
        batch.left -= 1
        if error is not None:
            batch.errors[batch.samples.index(sample)] = error
        if not batch.left or self._dropping:
            self._done.notify_all()

    def _threaded(self, number: int) -> None:
        while (sample := self._next(number, ())) is not None:
            self._finish(sample, number, *attempt(sample))
            del sample  # its memory is not needed while this thread waits

    def _watched(self, number: int) -> None:
        """Supervise worker process ``number`` and its replacements."""
        process: WorkerProcess | None = None
        # sent, but not answered; a second one in flight hides the round trip
        flight: deque[SampleTask] = deque()
        try:
            while not self._closed and not self._broken:
                try:
                    if process is None:
                        process = self._spawn(number)
                    sample = self._next(number, flight)
                    if sample is not None:
                        if not flight and process.dead():  # the process died while it was idle
                            self._requeue([sample])
                            raise EOFError
                        flight.append(sample)
                        process.order(sample)
                    elif flight:
                        answer = process.answer()
                        self._finish(flight.popleft(), number, *answer)
                        self._failed_starts = 0
                    else:
                        return
                except (EOFError, OSError):
                    if self._closed:
                        return
                    if process is not None:
                        self._on_worker_death(number, process, flight)
                        process = None
        except Exception as error:  # no worker can be started at all
            self._give_up(error)
        finally:
            self._close_worker(number, process)
            with self._lock:
                if self._threads.get(number) is threading.current_thread():
                    del self._threads[number]
                self._busy.difference_update(flight)
                self._done.notify_all()

    def _spawn(self, number: int) -> WorkerProcess:
        """Start a process. Raises EOFError if it does not become ready, DataError if that happens
        repeatedly.
        """
        process, exit_reason = None, ""
        try:
            process = WorkerProcess()
            with self._lock:
                self._processes[number] = process
                if self._closed:
                    process.kill()
            process.meet()
            return process
        except (EOFError, OSError) as error:
            exit_reason = process.exit_reason() if process else str(error)
            self._close_worker(number, process)
        self._failed_starts += 1
        if self._failed_starts >= MAX_CRASHES:
            reason = f"data worker processes end before they are ready (the last one {exit_reason})"
            fix = "see their output above, or set data.worker_kind=thread"
            raise DataError(f"{reason}: {fix}", code="workers-cannot-start", found=exit_reason)
        raise EOFError

    def _next(self, number: int, flight: Collection[SampleTask]) -> SampleTask | None:
        """The next sample to make. None: first wait for those in ``flight``; if there are none, the
        worker exits.
        """
        with self._lock:
            while not self._queue and not flight and not self._retired(number):
                self._work.wait()
            if self._retired(number) and not flight:
                # under the lock, so that ``start`` can start a new thread ``number``
                del self._threads[number]
            if self._retired(number) or not self._queue:
                return None
            if flight and (len(flight) > 1 or len(self._queue) < self.count):
                return None  # leave the last samples to idle workers
            sample = self._queue.popleft()
            self._busy.add(sample)
            return sample

    def _on_worker_death(
        self, number: int, process: WorkerProcess, flight: deque[SampleTask]
    ) -> None:
        """Report a dead process, and put its samples back at the front of the queue."""
        self._close_worker(number, process)
        reason, then = process.exit_reason(), "a new worker replaces it and makes its samples again"
        files = flight[0].files() if flight else ""
        if flight:
            flight[0].crashes += 1
            if flight[0].crashes >= MAX_CRASHES:
                fix = "repair or remove the files (or give the host more memory, if it ran out)"
                message = (
                    f"{files}: {MAX_CRASHES} worker processes died on this sample (the "
                    f"last one {reason}): {fix}"
                )
                error = DataError(message, code="sample-kills-workers", files=files, found=reason)
                self._finish(flight.popleft(), number, error, 0.0, Cost())
                then = f"it is number {MAX_CRASHES} to die on this sample"
        at = f"at {files}" if files else "with nothing to do"
        self._say(f"warning: data worker {number} (pid {process.pid}) {reason} {at}: {then}")
        self._requeue(list(flight))
        flight.clear()

    def _requeue(self, samples: list[SampleTask]) -> None:
        """Put samples back at the front of the queue, since they are needed first."""
        with self._lock:
            self._busy.difference_update(samples)
            self._queue.extendleft(reversed(samples))
            self._work.notify(len(samples))
            if self._dropping:
                self._done.notify_all()

    def _close_worker(self, number: int, process: WorkerProcess | None) -> None:
        if process is not None:
            process.close()
            with self._lock:
                self._cpu_of_the_gone += process.cpu_s
                if self._processes.get(number) is process:
                    del self._processes[number]

    def _give_up(self, error: Exception) -> None:
        with self._lock:
            self._broken = error
            self._work.notify_all()
            self._done.notify_all()
