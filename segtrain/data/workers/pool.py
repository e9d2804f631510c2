"""Worker pool of a rank: threads, or processes, each of which is supervised by one thread here.

All take single samples from one queue, in the order in which they are needed. A sample does not depend on its worker,
so workers may be added, removed, and die: a process that dies is replaced, and its samples are made again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from segtrain.data.stages import Cost, StageTotals
from segtrain.data.workers.batch import BatchTask, SampleTask, attempt
from segtrain.data.workers.process import WorkerProcess, pickled
from segtrain.errors import DataError
from segtrain.stacks import StackRequest

MAX_CRASHES = 3  # worker crashes at one sample, or consecutive workers that crash at their start


class WorkerPool:
    """``count`` workers of a kind, 'thread' or 'process'; with 0, the consumer's thread does the work while it waits.

    ``say`` gets a line for each worker process that died. Closing the pool ends its threads and processes.
    """

    def __init__(self, count: int, kind: str = "thread", say: Callable[[str], None] | None = None) -> None:
        self.count, self.kind = count, kind
        self.tally = StageTotals()
        self._say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # there are samples in the queue, or too many workers
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
                        target=self._threaded if self.kind == "thread" else self._watched, args=(number,), daemon=True,
                        name=f"segtrain-data-{number}",
                    )  # fmt: skip
                    self._threads[number] = thread
                    thread.start()
            self._work.notify_all()  # workers beyond the count exit

    def resize(self, count: int) -> None:
        self.count = count
        self.start()

    def begin(self, batch: BatchTask) -> None:
        """Append the samples of a batch to the queue. Raises ConfigError for a maker that does not pickle."""
        if not self.count:
            return
        if self.kind == "process":
            pickled(batch.maker)
        with self._lock:
            self._queue.extend(batch.samples)
            self._work.notify(len(batch.samples))

    def wait(self, batch: BatchTask) -> float:
        """Wait for a batch; returns the seconds waited. Raises the error of the first of its samples that failed."""
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
            self._queue = deque(sample for sample in self._queue if sample.batch not in batches)
            self._dropping = True
            while any(sample.batch in batches for sample in self._busy) and not self._closed:
                self._done.wait()
            self._dropping = False

    def cpu_s(self) -> float:
        """CPU seconds of the worker processes so far; threads count in this process's own time."""
        return self._cpu_of_the_gone + sum(process.cpu_s for process in list(self._processes.values()))

    def describe(self, least: int, most: int) -> str:
        """One line about the workers and the time per sample."""
        if not self.count:
            return "samples are made in the loop"
        plural = "" if self.count == 1 else "s" if self.kind == "thread" else "es"
        some = f"{self.count} {self.kind}{plural}"
        room = f" at first, {least} to {most} as needed" if least < most else ""
        made, seconds = self.tally.samples, self.tally.cost.seconds
        cost = f", {1000 * seconds / made:.1f} ms a sample" if made else ""
        return f"samples are made by {some}{room}{cost}"

    def pids(self) -> list[int]:
        return [process.pid for process in list(self._processes.values())]

    def sample_stacks(self, run: str, name: str, order: StackRequest) -> int:
        """Have each worker process sample its stacks from its next sample on; returns the number of processes.

        Threads appear in the rank's own stacks.
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

    def _finish(self, sample: SampleTask, number: int, error: Exception | None, began: float, cost: Cost) -> None:
        batch = sample.batch
        with self._lock:
            self._busy.discard(sample)
            self.tally.add(number, began, cost)
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
        flight: deque[SampleTask] = deque()  # sent, not answered; the second hides the round trip
        try:
            while not self._closed and not self._broken:
                try:
                    if process is None:
                        process = self._spawn(number)
                    sample = self._next(number, flight)
                    if sample is not None:
                        if not flight and process.dead():  # it died while it was idle
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
        """Start a process. Raises EOFError if it does not become ready, DataError if that happens repeatedly."""
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
        """A sample to make, besides those in ``flight``. None: wait for an answer first; with none in flight: exit."""
        with self._lock:
            while not self._queue and not flight and not self._retired(number):
                self._work.wait()
            if self._retired(number) and not flight:
                del self._threads[number]  # under the lock, so that ``start`` sees it gone
            if self._retired(number) or not self._queue:
                return None
            if flight and (len(flight) > 1 or len(self._queue) < self.count):
                return None  # the last samples are for idle workers
            sample = self._queue.popleft()
            self._busy.add(sample)
            return sample

    def _on_worker_death(self, number: int, process: WorkerProcess, flight: deque[SampleTask]) -> None:
        """Report a dead process, and put its samples back to the front of the queue."""
        self._close_worker(number, process)
        reason, then = process.exit_reason(), "a new worker replaces it and makes its samples again"
        files = flight[0].files() if flight else ""
        if flight:
            flight[0].crashes += 1
            if flight[0].crashes >= MAX_CRASHES:
                fix = "repair or remove the files (or give the host more memory, if it ran out)"
                says = f"{files}: {MAX_CRASHES} worker processes died on this sample (the last one {reason}): {fix}"
                error = DataError(says, code="sample-kills-workers", files=files, found=reason)
                self._finish(flight.popleft(), number, error, 0.0, Cost())
                then = "it is the third to die on this sample"
        at = f"at {files}" if files else "with nothing to do"
        self._say(f"warning: data worker {number} (pid {process.pid}) {reason} {at}: {then}")
        self._requeue(list(flight))
        flight.clear()

    def _requeue(self, samples: list[SampleTask]) -> None:
        """Put samples to the front of the queue, since they are needed first."""
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
