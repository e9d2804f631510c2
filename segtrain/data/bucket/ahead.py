"""Read-ahead: fetches samples from a bucket before they are needed, in the order in which the loader makes them.

Threads fetch the byte ranges of the next samples into a table, and the decode workers take them from it. A worker
fetches a range itself if the table does not have it: for a sample that is made again, or that is read in another order.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from segtrain.bucket.client import Stopped
from segtrain.bucket.faults import died
from segtrain.data.bucket.merging import Part, Request, merged
from segtrain.data.bucket.pace import Pace
from segtrain.data.storage import Range

Fetch = Callable[[Range, threading.Event], Any]

_MOST_THREADS = 128
# At most this many ranges that workers fetched themselves, before the read-ahead came to them, are remembered.
_MOST_EARLY = 4096
# Seconds that ``close`` waits for requests in flight. A slower thread ends later, after its request.
_PATIENCE = 1.0


class ReadAhead:
    """Fetches the ranges of ``samples`` in order, at most ``window`` samples ahead of the last sample taken.

    fetch: blocks and returns a buffer; raises SegtrainError. samples: the ranges of each sample. batch: samples per
    step. in_progress: samples that workers may hold at the same time. most_bytes: limit of bytes fetched but not taken.
    local: whether a range is on the local disk; workers then read it themselves, which costs less than a thread.

    The window is adapted during the pass, see ``Pace``. There are as many threads as requests in the window, at most
    128. If a worker waits for a request that is late, the request is sent a second time, and the first of the two
    answers is used. ``repeated`` is called for each second request.
    """

    def __init__(
        self,
        fetch: Fetch,
        samples: Iterator[Sequence[Range]],
        batch: int,
        in_progress: int,
        most_bytes: int,
        local: Callable[[Range], bool] | None = None,
        repeated: Callable[[], None] | None = None,
    ) -> None:
        self._local, self._local_in_row, self._repeated = local, 0, repeated
        self._fetch, self._samples, self._batch = fetch, samples, max(1, batch)
        self._slack, self._most_bytes = in_progress + 2 * self._batch, most_bytes
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)  # there is a request to send, or room for another sample
        self._arrived = threading.Condition(self._lock)  # a request was answered
        self._table: dict[Range, Part] = {}
        self._taken_early: Counter[Range] = Counter()  # fetched by workers, before the read-ahead came to them
        self._issued_order: deque[tuple[int, Range]] = deque()
        self._to_send: deque[Request] = deque()
        self._threads: list[threading.Thread] = []
        self._again: list[threading.Thread] = []  # each repeats one request
        self._issued = self._taken = 0  # numbers of samples: entered in the table, reached by workers
        self._pace, self.held, self.most_held = Pace(self._batch), 0, 0
        self._per_sample = 1.0  # requests, a running mean
        self._ended = False
        self.stop, self.closed = threading.Event(), False
        with self._lock:
            self._add_threads()

    def take(self, wanted: Range) -> Any:
        """The bytes of a range, after waiting for them if they are in flight; None if they are not fetched ahead.

        Raises the error of the request, or Stopped when the pass is closed.
        """
        with self._lock:
            if self.stop.is_set():
                raise Stopped(wanted.path)
            part = self._table.get(wanted) or self._entered(wanted)
            if part is None:
                self._taken_early[wanted] += 1
                if len(self._taken_early) > _MOST_EARLY:
                    self._taken_early.clear()
                return None
            place = part.places.popleft()
            self._release(wanted, part)
            if place >= self._taken:
                room, self._taken = self._taken + self._pace.window, place + 1
                self._forget_before(self._taken - self._slack)
                if self._pace.measure(self._taken):
                    self._add_threads()
                # Wake threads for the new room; a thread that issues several requests wakes others for them. After many
                # local samples, which need no request, wake threads only when half of the window is used up.
                if self._local_in_row <= self._pace.window or self._issued - self._taken <= self._pace.window // 2:
                    self._room.notify(max(0, self._taken + self._pace.window - room))
            request = part.request
            if request.local:
                return None
            while request.content is None and request.error is None:
                if self.stop.is_set():
                    raise Stopped(wanted.path)
                self._arrived.wait(self._patience(request))
        if request.error is not None:
            raise request.error
        content = memoryview(request.content)
        return content if wanted.length < 0 else content[part.at : part.at + wanted.length]

    def _entered(self, wanted: Range) -> Part | None:
        """Issue samples up to the one that needs this range, for a worker that is faster than the threads.

        None if there is no such sample within the window.
        """
        while not self._ended and self._may_issue():
            self._issue()
            if self._to_send:
                self._room.notify()
            if wanted in self._table:
                return self._table[wanted]
        return None

    def halt(self) -> None:
        """Stop fetching. Workers that wait in ``take``, or call it later, get the exception Stopped."""
        with self._lock:
            self.stop.set()
            self._ended = True
            self._room.notify_all()
            self._arrived.notify_all()

    def close(self) -> None:
        """End the threads and drop the fetched bytes. Call it when no worker makes samples of this pass any more."""
        self.halt()
        with self._lock:
            self.closed = True
            threads = [*self._threads, *self._again]
        until = time.monotonic() + _PATIENCE
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            self._table.clear()
            self._to_send.clear()
            self.held = 0

    @property
    def threads(self) -> int:
        """The number of threads that have not ended."""
        return sum(thread.is_alive() for thread in (*self._threads, *self._again))

    def figures(self) -> dict[str, float]:
        """Figures for the journal: the window in samples, threads and held bytes with their limits, and ``first_s``."""
        return {
            "window": self._pace.window, "threads": len(self._threads), "most_threads": _MOST_THREADS,
            "held": self.held, "most_held": self._most_bytes, "first_s": round(self._pace.first_s, 5),
        }  # fmt: skip

    def _release(self, wanted: Range, part: Part) -> None:
        """Drop a range if no other sample needs it. With the last range of a request, its bytes are dropped, too."""
        if part.places:
            return
        del self._table[wanted]
        part.request.left -= 1
        if not part.request.left:
            full = self.held >= self._most_bytes
            self.held -= part.request.bytes
            if full:
                self._room.notify()

    def _patience(self, request: Request) -> float | None:
        """Send a request a second time if it is late. Returns the seconds until the next test; None: test no more."""
        if request.again:
            return None
        now = time.perf_counter()
        left = (request.sent or now) + self._pace.late_s - now
        if left > 0 or not self._pace.may_repeat():
            return left if left > 0 else self._pace.late_s
        request.again = True
        # A thread of its own, because all others may be busy, or have ended at the end of the pass.
        if thread := self._started("segtrain-read-again", self._send, request):
            request.pending += 1
            self._again = [other for other in self._again if other.is_alive()] + [thread]
            if self._repeated is not None:
                self._repeated()
        return None

    def _add_threads(self) -> None:
        wanted = min(_MOST_THREADS, math.ceil(self._pace.window * self._per_sample))
        while not self._ended and len(self._threads) < wanted:
            thread = self._started(f"segtrain-read-{len(self._threads)}", self._run)
            if thread is None:
                self._ended = not self._threads
                return
            self._threads.append(thread)

    def _started(self, name: str, run: Callable[..., None], *words: Any) -> threading.Thread | None:
        """A new thread; None if the system allows no more threads."""
        thread = threading.Thread(target=run, args=words, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return None
        return thread

    def _run(self) -> None:
        while (request := self._next()) is not None:
            self._send(request)
            del request  # otherwise its bytes stay in memory while this thread waits for the next one

    def _send(self, request: Request) -> None:
        content, error = None, None
        try:
            content = self._fetch(request.span, self.stop)
        except BaseException as failure:  # raised again in the worker; a panic in obstore is not an Exception
            error = failure if isinstance(failure, Exception) else died(request.span.path, failure)
        with self._lock:
            request.pending -= 1
            # The second of two answers is dropped, and so is an error if the other answer may still arrive.
            if request.content is not None or (content is None and request.pending):
                return
            self._pace.answered(time.perf_counter() - request.sent)
            if content is not None and request.left:
                self._hold(len(content) - request.bytes)
                request.bytes = len(content)
            request.content, request.error = content, error
            self._arrived.notify_all()

    def _hold(self, more: int) -> None:
        self.held += more
        self.most_held = max(self.most_held, self.held)

    def _next(self) -> Request | None:
        """The next request to send; waits for room in the window. None: there are no more."""
        with self._lock:
            while not self.stop.is_set():
                if self._to_send:
                    request = self._to_send.popleft()
                    request.sent, request.pending = time.perf_counter(), 1
                    return request
                if self._ended:
                    return None
                if not self._may_issue():
                    self._room.wait()
                    continue
                self._issue()
            return None

    def _may_issue(self) -> bool:
        """Whether the window and the memory have room for a sample."""
        return self._issued - self._taken < self._pace.window and not (self.held and self.held >= self._most_bytes)

    def _issue(self) -> None:
        """Issue the next sample: enter its ranges into the table, and queue the requests for new ones."""
        try:
            ranges = next(self._samples, None)
        except Exception:  # the worker that needs that sample raises the same error
            ranges = None
        # A sample without ranges is in a RAM cache, and so are nearly all later samples: the read-ahead ends.
        if not ranges:
            self._ended = True
            self._room.notify_all()
            return
        place, self._issued = self._issued, self._issued + 1
        fresh, before = [], len(self._to_send)
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
            if self._local is not None and self._local(request.span):
                request.local, request.bytes = True, 0
                continue
            self._hold(request.bytes)
            self._to_send.append(request)
        sent = len(self._to_send) - before
        self._local_in_row = 0 if sent else self._local_in_row + 1
        if fresh:
            self._per_sample += 0.05 * (sent - self._per_sample)
        # Python 3.10.0 to 3.10.4 raise ValueError for a negative number.
        self._room.notify(max(0, len(self._to_send) - 1))

    def _forget_before(self, place: int) -> None:
        """Drop ranges of samples before this position that no worker took, such as the mask of a damaged image."""
        while self._issued_order and self._issued_order[0][0] < place:
            old, wanted = self._issued_order.popleft()
            part = self._table.get(wanted)
            if part is not None and part.places and part.places[0] == old:
                part.places.popleft()
                self._release(wanted, part)
