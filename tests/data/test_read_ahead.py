"""Tests of the read-ahead alone: what is fetched once, what is fetched directly, its bounds, and
its end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from conftest import refused
from waiting import until

from segtrain.bucket.client import Stopped
from segtrain.data.bucket.ahead import ReadAhead
from segtrain.data.storage import Range
from segtrain.errors import DataError

LIMIT_S = 300.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which stands still: otherwise a busy machine would change the window and
    repeat requests.
    """
    now = [1000.0]
    monkeypatch.setattr("segtrain.data.bucket.ahead.time.perf_counter", lambda: now[0])
    return now


class Bucket:
    """Answers requests while ``gate`` is open."""

    def __init__(self) -> None:
        self.gate, self.asked, self.error = threading.Event(), list[Range](), None
        self.came = threading.Semaphore(0)
        self.gate.set()

    def __call__(self, wanted: Range, stop: threading.Event) -> bytes:
        self.asked.append(wanted)
        self.came.release()
        self.gate.wait(LIMIT_S)
        if self.error is not None:
            raise self.error
        length = 10 if wanted.length < 0 else wanted.length
        return bytes((wanted.offset + place) % 251 for place in range(length))


@contextmanager
def ahead(
    bucket: Bucket, samples: Iterable[list[Range]], batch: int = 2, **settings: Any
) -> Iterator[ReadAhead]:
    settings = {"in_progress": 2, "most_bytes": 1 << 20, **settings}
    found = ReadAhead(bucket, iter(samples), batch, **settings)
    try:
        yield found
    finally:
        bucket.gate.set()
        found.close()  # which waits for a thread only for a second
        until(lambda: not any(thread.is_alive() for thread in found._threads))


def one(index: int) -> list[Range]:
    return [Range(f"f{index}")]


def drain(bucket: Bucket, count: int) -> None:
    """Wait until so many requests were sent."""
    for _ in range(count):
        assert bucket.came.acquire(timeout=LIMIT_S)


def test_the_window_bounds_what_is_read_ahead():
    bucket = Bucket()
    with ahead(bucket, map(one, range(100))) as reader:
        drain(bucket, 4)
        assert not bucket.came.acquire(timeout=0.05)
        reader.take(Range("f0"))
        drain(bucket, 1)
        assert {wanted.path for wanted in bucket.asked} == {f"f{index}" for index in range(5)}


def test_the_bytes_bound_it_too():
    bucket = Bucket()
    with ahead(
        bucket, ([Range("s", 100_000 * index, 60)] for index in range(100)), most_bytes=100
    ) as reader:
        drain(bucket, 2)
        assert not bucket.came.acquire(timeout=0.05)
        for index in range(50):
            reader.take(Range("s", 100_000 * index, 60))
            drain(bucket, 1)
            assert reader.held <= 160


def test_a_sample_that_is_needed_twice_is_fetched_once():
    bucket = Bucket()
    with ahead(bucket, [one(0), one(0), one(1)]) as reader:
        drain(bucket, 2)
        assert all(
            bytes(reader.take(Range(name))) == bytes(range(10)) for name in ("f0", "f1", "f0")
        )
        assert reader.take(Range("f0")) is None  # made again, after a worker has died
        assert len(bucket.asked) == 2


def test_what_is_local_is_not_fetched_and_does_not_stop_the_rest():
    bucket = Bucket()
    local = [f"f{index}" for index in range(3, 90)]
    with ahead(bucket, map(one, range(100)), local=lambda span: span.path in local) as reader:
        drain(bucket, 3)
        assert all(reader.take(Range(f"f{index}")) is not None for index in range(3))
        assert all(reader.take(Range(name)) is None for name in local)
        drain(bucket, 4)
        assert {wanted.path for wanted in bucket.asked} == {
            f"f{index}" for index in (0, 1, 2, 90, 91, 92, 93)
        }
        until(lambda: reader.held == 40)


def test_another_order_never_waits_and_what_was_taken_early_is_not_fetched():
    bucket = Bucket()
    with ahead(bucket, map(one, range(40))) as reader:
        drain(bucket, 4)
        assert reader.take(Range("f9")) is None
        assert reader.take(Range("elsewhere")) is None
        for index in (3, 1, 2, 0):
            assert reader.take(Range(f"f{index}")) is not None
        drain(bucket, 4)
        for index in (4, 5, 6, 7, 8):
            reader.take(Range(f"f{index}"))
        drain(bucket, 4)
        assert Range("f9") not in bucket.asked


def test_what_nobody_takes_is_dropped():
    bucket = Bucket()
    samples = ([Range(f"i{index}"), Range(f"m{index}")] for index in range(400))
    with ahead(bucket, samples, most_bytes=600) as reader:
        for index in range(400):  # no mask is ever taken
            reader.take(Range(f"i{index}"))
        # All are issued. What workers may still need is kept: the masks of the 2 + 2 batches of 2
        # samples.
        until(lambda: len(bucket.asked) == 800 and reader.held == 60)


def test_the_window_grows_with_the_rate_and_the_latency(clock):
    bucket = Bucket()
    with ahead(bucket, map(one, range(10_000))) as reader:
        drain(bucket, 4)
        reader._window._times.extend([0.5] * 300)
        for index in range(20):  # 40 samples/s
            clock[0] += 0.025
            assert reader.take(Range(f"f{index}")) is not None
        window = int(reader.figures()["window"])
        assert window == pytest.approx(1.5 * 40 * 0.5, abs=2)
        until(lambda: len(bucket.asked) == 20 + window)


def test_there_are_as_many_threads_as_requests_in_flight():
    bucket = Bucket()
    bucket.gate.clear()
    with ahead(bucket, map(one, range(400)), batch=5) as reader:
        drain(bucket, 10)
        assert reader.figures()["threads"] == 10
    bucket.gate.clear()
    with ahead(bucket, map(one, range(400)), batch=100) as reader:
        drain(bucket, 128)
        assert reader.figures()["threads"] == 128


def test_a_worker_fetches_itself_what_is_late_as_long_as_few_are():
    image, mask = Range("s", 100, 50), Range("s", 155, 20)
    bucket, repeated = Bucket(), list[int]()
    bucket.gate.clear()
    with ahead(bucket, [[image, mask], one(1)], repeated=lambda: repeated.append(1)) as reader:
        drain(bucket, 2)
        reader._window.late_s, reader._window._repeats = 0.0, 1.9
        assert (reader.take(image), reader.take(mask)) == (None, None)
        assert repeated == [1]  # for each request, not for each range
        reader._window._repeats = 0.9  # the answer to the other request adds 0.05
        threading.Timer(0.05, bucket.gate.set).start()
        assert bytes(reader.take(Range("f1"))) == bytes(range(10))
        until(lambda: reader.held == 0)


def test_an_error_reaches_the_worker_that_needs_the_sample():
    bucket = Bucket()
    bucket.error = DataError("gone", code="object-missing")
    with ahead(bucket, [one(0), one(1)]) as reader:
        drain(bucket, 2)
        for name in ("f1", "f0"):
            with refused("object-missing"):
                reader.take(Range(name))


def test_a_panic_of_the_library_does_not_leave_a_worker_waiting():
    class Panic(BaseException):
        pass

    bucket = Bucket()
    bucket.error = Panic("in Rust")
    with ahead(bucket, [one(0)]) as reader:
        drain(bucket, 1)
        with refused("request-failed", file="f0"):
            reader.take(Range("f0"))


def test_an_order_that_fails_ends_the_read_ahead():
    def samples() -> Iterator[list[Range]]:
        yield one(0)
        raise DataError("a row is damaged", code="index-row-wrong")

    bucket = Bucket()
    with ahead(bucket, samples()) as reader:
        drain(bucket, 1)
        assert reader.take(Range("f0")) is not None
        assert reader.take(Range("f1")) is None


def test_halting_wakes_a_waiting_worker():
    bucket, got = Bucket(), list[Exception]()
    bucket.gate.clear()
    with ahead(bucket, [one(0), one(1)]) as reader:

        def work() -> None:
            try:
                reader.take(Range("f0"))
            except Stopped as stopped:
                got.append(stopped)

        worker = threading.Thread(target=work)
        drain(bucket, 2)
        worker.start()
        reader.halt()
        worker.join(LIMIT_S)
        assert not worker.is_alive()
        assert [error.code for error in got] == ["pass-closed"]
        with pytest.raises(Stopped):
            reader.take(Range("f1"))
