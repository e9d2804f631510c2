"""Read-ahead: fetches samples from a bucket before they are needed, in the order in which the
loader makes them.

Threads fetch the byte ranges of the next samples into a table, and the decode workers take them
from it. A worker fetches a range itself if the table does not have it: for a sample that is made
again, or that is read in another order.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

from segtrain.bucket.client import Stopped
from segtrain.bucket.faults import died
from segtrain.data.bucket.merging import MergedRequest, Part, merged
from segtrain.data.bucket.readahead_window import ReadAheadWindow
from segtrain.data.storage import Range

Fetch = Callable[[Range, threading.Event], Any]

_MOST_THREADS = 128
# At most this many ranges that workers fetched themselves, before the read-ahead came to them, are
# remembered.
_MOST_EARLY = 4096
# Seconds that ``close`` waits for requests in flight. A slower thread ends later, after its
# request.
_PATIENCE = 1.0


class ReadAhead:
    """Fetches the ranges of ``samples`` in order, at most ``window`` samples ahead of the last
    sample taken.

    fetch: blocks and returns a buffer; raises SegtrainError. samples: the ranges of each sample.
    batch: samples per step. in_progress: samples that workers may hold at the same time.
    most_bytes: limit of bytes fetched but not taken. local: whether a range is on the local disk;
    workers then read it themselves, which costs less than a thread.

    The window is adapted during the pass, see ``ReadAheadWindow``. There are as many threads as
    requests were in flight at the same time, at most 128. If a worker waits for a request that is
    late, it sends its own. ``repeated`` is called for each such request.
    """

    def __init__(
        self,
        fetch: Fetch,
        samples: Iterator[Sequence[Range]],
        batch: int,
        in_progress: int,
        most_bytes: int,
        local: Callable[[Range], bool] = lambda wanted: False,
        repeated: Callable[[], None] = lambda: None,
    ) -> None:
        self._fetch, self._samples, self._local, self._repeated = fetch, samples, local, repeated
        batch = max(1, batch)
        self._slack, self._most_bytes = in_progress + 2 * batch, most_bytes
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)  # a request was answered
        self._table: dict[Range, Part] = {}
        # fetched by workers, before the read-ahead came to them
        self._taken_early: Counter[Range] = Counter()
        self._issued_order: deque[tuple[int, Range]] = deque()
        self._to_send: SimpleQueue[MergedRequest | None] = SimpleQueue()
        self._in_flight = 0  # requests that are not answered yet
        self._threads: list[threading.Thread] = []
        # numbers of samples: entered in the table, reached by workers
        self._issued = self._taken = 0
        self._window, self.held = ReadAheadWindow(batch), 0
        self.stop, self.closed = threading.Event(), False
        self._start_thread()
        self._ended = not self._threads  # the system allows no more threads
        with self._lock:
            self._fill()

    def take(self, wanted: Range) -> Any:
        """The bytes of a range, after waiting for them if they are in flight.

        None if they are not fetched ahead, or so late that the worker should fetch them itself.
        Raises the error of the request, or Stopped when the pass is closed.
        """
        with self._lock:
            if self.stop.is_set():
                raise Stopped(wanted.path)
            part = self._table.get(wanted)
            if part is None:
                self._taken_early[wanted] += 1
                if len(self._taken_early) > _MOST_EARLY:
                    self._taken_early.clear()
                return None
            place = part.places.popleft()
            self._release(wanted, part)
            if place >= self._taken:
                self._taken = place + 1
                self._forget_before(self._taken - self._slack)
                self._window.measure(self._taken)
            self._fill()
            request = part.request
            if request.local:
                return None
            while request.content is None and request.error is None:
                if self.stop.is_set():
                    raise Stopped(wanted.path)
                late = (
                    time.perf_counter()
                    - (request.sent or time.perf_counter())
                    - self._window.late_s
                )
                if late >= 0 and not request.late and self._window.may_repeat():
                    request.late = True
                    self._repeated()
                if request.late:
                    return None
                self._arrived.wait(-late if late < 0 else self._window.late_s)
        if request.error is not None:
            raise request.error
        content = memoryview(request.content)
        return content if wanted.length < 0 else content[part.at : part.at + wanted.length]

    def halt(self) -> None:
        """Stop fetching. Workers that wait in ``take``, or call it later, get the exception
        Stopped.
        """
        with self._lock:
            self.stop.set()
            self._ended = True
            for _ in self._threads:
                self._to_send.put(None)
            self._arrived.notify_all()

    def close(self) -> None:
        """End the threads and drop the fetched bytes. Call it when no worker makes samples of this
        pass any more.
        """
        self.halt()
        self.closed = True
        until = time.monotonic() + _PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            self._table.clear()
            self.held = 0

    def figures(self) -> dict[str, float]:
        """Figures for the journal: the window in samples, threads and held bytes with their limits,
        and ``first_s``.
        """
        return {
            "window": self._window.window,
            "threads": len(self._threads),
            "most_threads": _MOST_THREADS,
            "held": self.held,
            "most_held": self._most_bytes,
            "first_s": round(self._window.first_s, 5),
        }

    def _release(self, wanted: Range, part: Part) -> None:
        """Drop a range if no other sample needs it. With the last range of a request, its bytes are
        dropped, too.
        """
        if part.places:
            return
        del self._table[wanted]
        part.request.left -= 1
        if not part.request.left:
            self.held -= part.request.bytes

    def _start_thread(self) -> None:
        """Start one more thread, if the system and the limit allow it."""
        if len(self._threads) < _MOST_THREADS:
            name = f"segtrain-read-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return
            self._threads.append(thread)

    def _run(self) -> None:
        while (request := self._to_send.get()) is not None and not self.stop.is_set():
            self._send(request)
            # otherwise its bytes stay in memory while this thread waits for the next one
            del request

    def _send(self, request: MergedRequest) -> None:
        request.sent = time.perf_counter()
        content, error = None, None
        try:
            content = self._fetch(request.span, self.stop)
        # raised again in the worker; a panic in obstore is not an Exception
        except BaseException as failure:
            error = failure if isinstance(failure, Exception) else died(request.span.path, failure)
        with self._lock:
            self._in_flight -= 1
            self._window.answered(time.perf_counter() - request.sent)
            if content is not None and request.left:
                self.held += len(content) - request.bytes
                request.bytes = len(content)
            request.content, request.error = content, error
            self._arrived.notify_all()

    def _fill(self) -> None:
        """Issue samples while the window and the memory have room."""
        while not self._ended and self._issued - self._taken < self._window.window:
            if self.held and self.held >= self._most_bytes:
                return
            self._issue()

    def _issue(self) -> None:
        """Issue the next sample: enter its ranges into the table, and queue the requests for new
        ones.
        """
        try:
            ranges = next(self._samples, None)
        except Exception:  # the worker that needs that sample raises the same error
            ranges = None
        # A sample without ranges is in a RAM cache, and so are nearly all later samples: the
        # read-ahead ends.
        if not ranges:
            self._ended = True
            return
        place, self._issued = self._issued, self._issued + 1
        fresh = []
        for wanted in ranges:
            if self._taken_early[wanted] > 0:
                self._taken_early[wanted] -= 1
                self._taken = max(self._taken, place + 1)
                continue
            part = self._table.get(wanted)
            if part is None:
                fresh.append(wanted)
            else:
                part.places.append(place)
                self._issued_order.append((place, wanted))
        for request, parts in merged(fresh):
            for wanted, at in parts:
                part = self._table[wanted] = Part(request, at)
                part.places.append(place)
                self._issued_order.append((place, wanted))
            request.left = len(parts)
            if self._local(request.span):
                request.local, request.bytes = True, 0
                continue
            self.held += request.bytes
            self._in_flight += 1
            if self._in_flight > len(self._threads):
                self._start_thread()
            self._to_send.put(request)

    def _forget_before(self, place: int) -> None:
        """Drop ranges of samples before this position that no worker took, such as the mask of a
        damaged image.
        """
        while self._issued_order and self._issued_order[0][0] < place:
            old, wanted = self._issued_order.popleft()
            part = self._table.get(wanted)
            if part is not None and part.places and part.places[0] == old:
                part.places.popleft()
                self._release(wanted, part)
