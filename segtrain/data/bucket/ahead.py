"""Reading of samples from a bucket before they are needed, in the order in which the loader makes them.

Threads fetch the ranges of the next samples into a table, from which the decode workers take them. What is not in the
table is fetched directly: for a sample that is made again, or that another order needs.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from segtrain.data.bucket.client import Stopped
from segtrain.data.storage import Range
from segtrain.errors import DataError, file_error

Fetch = Callable[[Range, threading.Event], Any]

# Ranges of a sample with so few bytes between them are one request: these bytes cost less than another request.
GAP = 16 << 10
# The window holds so many times what the consumer takes during a slow request (the 99th percentile).
_MARGIN = 1.5
# Requests whose times, and measurements whose rates, set the window; seconds between measurements.
_TIMES, _RATES, _EVERY = 256, 8, 0.1
_MOST_THREADS = 128
# Seconds that closing waits for requests in flight. A thread that takes longer ends after its request.
_PATIENCE = 1.0


class _Request:
    """Ranges that are fetched together. ``left``: ranges of it that were not taken yet."""

    def __init__(self, span: Range) -> None:
        self.span, self.left, self.bytes = span, 0, max(0, span.length)
        self.content: Any = None
        self.error: Exception | None = None


class _Part:
    """A range in the table: where it is in its request, and the samples that need it, by their place in the order."""

    def __init__(self, request: _Request, at: int) -> None:
        self.request, self.at = request, at
        self.places: deque[int] = deque()


class ReadAhead:
    """Fetches the ranges of ``samples`` in order, at most a window of samples ahead of those that were taken.

    fetch: blocking, gives a buffer; raises SegtrainError. samples: the ranges of each sample. batch: samples per step.
    in_progress: samples that workers may hold at the same time. most_bytes: bound of what is fetched and not taken.

    The window is the rate at which samples are taken x the 99th percentile of the request times x 1.5, measured while
    it runs, and at least two batches. There are as many threads as requests in the window.
    """

    def __init__(
        self, fetch: Fetch, samples: Iterator[Sequence[Range]], batch: int, in_progress: int, most_bytes: int
    ) -> None:
        self._fetch, self._samples, self._batch = fetch, samples, max(1, batch)
        self._slack, self._most_bytes = in_progress + 2 * self._batch, most_bytes
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)  # a sample may be issued
        self._arrived = threading.Condition(self._lock)  # a request is done
        self._table: dict[Range, _Part] = {}
        self._taken_early: Counter[Range] = Counter()  # fetched directly, before they were issued
        self._issued_order: deque[tuple[int, Range]] = deque()
        self._to_send: deque[_Request] = deque()
        self._threads: list[threading.Thread] = []
        self._issued = self._taken = 0  # samples
        self.window, self.held, self.most_held = 2 * self._batch, 0, 0
        self._per_sample = 1.0  # requests
        self._times: deque[float] = deque(maxlen=_TIMES)
        self._rates: deque[float] = deque(maxlen=_RATES)
        self._measured = time.perf_counter(), 0
        self._ended = False
        self.stop, self.closed = threading.Event(), False
        with self._lock:
            self._add_threads()

    def take(self, wanted: Range) -> Any:
        """The bytes of a range, after waiting for them if they are in flight; None if they are not in the table.

        Raises the error of the request, or Stopped when the pass is closed.
        """
        with self._lock:
            if self.stop.is_set():
                raise Stopped(wanted.path)
            part = self._table.get(wanted)
            if part is None:
                self._taken_early[wanted] += 1
                if len(self._taken_early) > 4 * self._slack:
                    self._taken_early.clear()
                return None
            place = part.places.popleft()
            self._release(wanted, part)
            if place >= self._taken:
                room, self._taken = self._taken + self.window, place + 1
                self._measure()
                # A thread that issues several requests wakes others for them.
                self._room.notify(max(0, self._taken + self.window - room))
            request = part.request
            while request.content is None and request.error is None:
                if self.stop.is_set():
                    raise Stopped(wanted.path)
                self._arrived.wait()
        if request.error is not None:
            raise request.error
        content = memoryview(request.content)
        return content if wanted.length < 0 else content[part.at : part.at + wanted.length]

    def halt(self) -> None:
        """Fetch no more. Workers that wait, or that still need something, get Stopped."""
        with self._lock:
            self.stop.set()
            self._ended = True
            self._room.notify_all()
            self._arrived.notify_all()

    def close(self) -> None:
        """End the threads and drop what was read. No worker makes samples of this pass any more."""
        self.halt()
        with self._lock:
            self.closed = True
            threads = list(self._threads)
        until = time.monotonic() + _PATIENCE
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            self._table.clear()
            self._to_send.clear()
            self.held = 0

    @property
    def threads(self) -> int:
        """Threads that have not ended."""
        return sum(thread.is_alive() for thread in self._threads)

    def _release(self, wanted: Range, part: _Part) -> None:
        """One use of a range is over."""
        if part.places:
            return
        del self._table[wanted]
        part.request.left -= 1
        if not part.request.left:
            full = self.held >= self._most_bytes
            self.held -= part.request.bytes
            if full:
                self._room.notify()

    def _measure(self) -> None:
        """Set the window, from time to time."""
        now, (since, before) = time.perf_counter(), self._measured
        if now - since < _EVERY or self._taken - before < self._batch:
            return
        self._measured = now, self._taken
        self._rates.append((self._taken - before) / (now - since))
        if self._times:
            slow = sorted(self._times)[math.ceil(0.99 * len(self._times)) - 1]
            self.window = max(2 * self._batch, math.ceil(_MARGIN * max(self._rates) * slow))
            self._add_threads()

    def _add_threads(self) -> None:
        wanted = 0 if self._ended else min(_MOST_THREADS, math.ceil(self.window * self._per_sample))
        while len(self._threads) < wanted:
            name = f"segtrain-read-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system allows no more threads
                self._ended = self._ended or not self._threads
                return
            self._threads.append(thread)

    def _run(self) -> None:
        while (request := self._next()) is not None:
            began, content, error = time.perf_counter(), None, None
            try:
                content = self._fetch(request.span, self.stop)
            except BaseException as failure:  # raised in the worker that needs these bytes; obstore's panics too
                error = failure if isinstance(failure, Exception) else _died(request.span.path, failure)
            with self._lock:
                self._times.append(time.perf_counter() - began)
                if content is not None and request.left:
                    self._hold(len(content) - request.bytes)
                    request.bytes = len(content)
                request.content, request.error = content, error
                self._arrived.notify_all()
            del request, content, error  # a waiting thread must not keep them

    def _hold(self, more: int) -> None:
        self.held += more
        self.most_held = max(self.most_held, self.held)

    def _next(self) -> _Request | None:
        """The next request to send; waits for room in the window. None: there are no more."""
        with self._lock:
            while not self.stop.is_set():
                if self._to_send:
                    return self._to_send.popleft()
                if self._ended:
                    return None
                if self._issued - self._taken >= self.window or (self.held and self.held >= self._most_bytes):
                    self._room.wait()
                    continue
                self._issue()
            return None

    def _issue(self) -> None:
        """Enter the next sample into the table."""
        try:
            ranges = next(self._samples, None)
        except Exception:  # the worker that needs that sample raises the same error
            ranges = None
        # A sample that needs nothing is in the memory of a RAM cache: so is what follows, except for a few.
        if not ranges:
            self._ended = True
            self._room.notify_all()
            return
        place, self._issued = self._issued, self._issued + 1
        self._forget_before(place - self.window - self._slack)
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
                part = self._table[wanted] = _Part(request, at)
                part.places.append(place)
                self._issued_order.append((place, wanted))
            request.left = len(parts)
            self._hold(request.bytes)
            self._to_send.append(request)
        if fresh:
            self._per_sample += 0.05 * (len(self._to_send) - self._per_sample)
        self._room.notify(len(self._to_send) - 1)

    def _forget_before(self, place: int) -> None:
        """Drop ranges that nobody took although later samples were made, such as the mask of a damaged image."""
        while self._issued_order and self._issued_order[0][0] < place:
            old, wanted = self._issued_order.popleft()
            part = self._table.get(wanted)
            if part is not None and part.places and part.places[0] == old:
                part.places.popleft()
                self._release(wanted, part)


def _died(path: str, failure: BaseException) -> DataError:
    reason = f"{type(failure).__name__}: {failure}"
    return file_error(path, f"the request failed ({reason}): start again", code="request-failed", found=reason)


def merged(ranges: Sequence[Range]) -> list[tuple[_Request, list[tuple[Range, int]]]]:
    """Requests for the ranges of a sample, each with its ranges and their offsets in it. Near ranges become one."""
    found: list[tuple[_Request, list[tuple[Range, int]]]] = []
    for wanted in sorted(dict.fromkeys(ranges)):
        if found and wanted.length >= 0:
            request, parts = found[-1]
            path, begin, length = request.span
            if path == wanted.path and length >= 0 and wanted.offset - (begin + length) <= GAP:
                end = max(begin + length, wanted.offset + wanted.length)
                request.span = Range(path, begin, end - begin)
                request.bytes = end - begin
                parts.append((wanted, wanted.offset - begin))
                continue
        found.append((_Request(wanted), [(wanted, 0)]))
    return found
