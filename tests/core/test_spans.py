"""Tests that the spans of a run describe its ranks and workers, and add up."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import threading
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torch.distributed as dist
from conftest import refused

from segtrain.base.compat import after_own_gradients
from segtrain.config import Data
from segtrain.data import stages
from segtrain.data.datasets import open_dataset
from segtrain.data.pixels import native
from segtrain.data.train_loader import TrainLoader
from segtrain.data.workers.pool import WorkerPool
from segtrain.observe.clock import Clock
from segtrain.observe.device_clock import DeviceClock
from segtrain.observe.spans import Begin, Spans, WorkerTotals, file_of, read_spans

BEGIN = Begin(0, "here", 0, 1, 1, "cpu", 2, 8, 1, 0)


class Time:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


class Stream:
    """A device that works through what it is given, later than the host; ``work`` and events in
    order.
    """

    def __init__(self) -> None:
        self.queue: deque[Any] = deque()
        self.at, self.waits, self.made = 0.0, 0, 0

    def work(self, seconds: float) -> None:
        self.queue.append(seconds)

    def event(self) -> DeviceEvent:
        self.made += 1
        return DeviceEvent(self)

    def go(self, items: int | None = None) -> None:
        for _ in range(len(self.queue) if items is None else items):
            item = self.queue.popleft()
            if isinstance(item, float):
                self.at += item
            else:
                item.passed = self.at


class DeviceEvent:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.passed = stream, None

    def record(self) -> None:
        assert self.passed is not None or self not in self.stream.queue
        self.passed = None
        self.stream.queue.append(self)

    def query(self) -> bool:
        return self.passed is not None

    def elapsed_time(self, end: DeviceEvent) -> float:
        assert self.passed is not None
        assert end.passed is not None
        return 1000 * (end.passed - self.passed)

    def synchronize(self) -> None:
        self.stream.waits += 1
        self.stream.go()


def write(
    path: Path, clock: Clock, now: Time, work: Any = WorkerTotals, first: int = 0, **kw: Any
) -> Spans:
    return Spans(path, BEGIN, clock, work, first=first, images=4, threads=1, now=now, **kw)


def take(clock: Clock, now: Time, **phases: float) -> None:
    for phase, seconds in phases.items():
        with clock(phase):
            now.at += seconds


def test_a_window_ends_with_the_first_step_after_a_second_and_adds_up(tmp_path):
    now, done = Time(), itertools.count()
    clock = Clock(now)

    def work() -> WorkerTotals:
        k = next(done)
        return WorkerTotals(3, "thread", 10 * k)

    requests = iter([{"requests": 3}, None, None])
    shared = iter([{"seconds": 0.5, "hidden": 0.25}, None, None])
    spans = write(
        file_of(tmp_path, 0),
        clock,
        now,
        work,
        bucket=lambda: next(requests),
        shared=lambda: next(shared),
    )
    for _ in range(3):
        take(clock, now, wait=0.25, forward=0.125)
        now.at += 0.125
        spans.step()
    take(clock, now, wait=0.5, eval=8.0, log=0.5)
    spans.step()
    spans.close()
    (records,) = read_spans(tmp_path)
    assert records.begins[0]["begin"] == 1
    assert records.begins[0]["batch_size"] == 8
    first, last = records.windows
    assert (first["first"], first["last"], first["images"], first["seconds"]) == (1, 2, 8, 1.0)
    assert (first["bucket"], first["shared"]) == ({"requests": 3}, {"seconds": 0.5, "hidden": 0.25})
    assert not {"bucket", "shared"} & last.keys()
    assert first["phases"] == {"wait": 0.5, "forward": 0.25, "other": 0.25}
    assert (last["first"], last["last"], last["ts"], last["seconds"]) == (3, 4, 1.0, 9.5)
    assert last["slowest_ms"] == 500.0  # neither eval nor log
    assert last["workers"]["samples"] == 10


def test_the_journal_and_the_windows_do_not_take_from_each_other():
    now = Time()
    clock = Clock(now)
    take(clock, now, wait=1.0)
    assert clock.take() == {"wait": 1.0, "other": 0.0}
    take(clock, now, wait=2.0)
    clock.mark()
    assert clock.laps() == [{"wait": 3.0, "other": 0.0}]
    assert clock.laps() == []
    assert clock.take() == {"wait": 2.0, "other": 0.0}


def test_the_last_spans_and_the_pending_one_are_at_hand():
    now = Time()
    clock = Clock(now)
    for _ in range(150):
        take(clock, now, wait=1.0)
    with clock("backward"):
        now.at += 1
        clock.turn("gradient_sync")
        now.at += 2
        assert clock.pending == ("gradient_sync", 151.0)
    assert clock.turns == 303
    assert clock.take()["wait"] == 150
    assert clock.turns == 304
    assert len(clock.recent) == 200
    assert clock.recent[-3:-1] == [("backward", 150.0, 151.0), ("gradient_sync", 151.0, 153.0)]


def test_a_device_clock_tells_the_devices_time_and_never_waits_for_it():
    now, stream = Time(), Stream()
    clock = DeviceClock(stream.event, now)
    for _ in range(2):
        with clock("wait"):
            now.at += 5  # the host waits while the device still works: that is no wait
        with clock("forward"):
            stream.work(3.0)
            with clock("sync"):
                stream.work(0.5)
        clock.mark()
    assert clock.laps() == []
    assert clock.recent[-1][0] == "other"
    stream.go()
    assert clock.laps() == [{"other": 0.0, "wait": 0.0, "forward": 3.0, "sync": 0.5}] * 2
    assert clock.take() == {"other": 0.0, "wait": 0.0, "forward": 6.0, "sync": 1.0}
    assert stream.waits == 0
    with clock("update"):
        stream.work(2.0)
    clock.mark()
    clock.finish()  # at the end of a run alone
    assert clock.laps() == [{"other": 0.0, "update": 2.0}]
    assert stream.waits == 1


def test_a_device_clock_reads_no_lap_before_its_last_event():
    now, stream = Time(), Stream()
    clock = DeviceClock(stream.event, now)
    for k in range(200):
        with clock("forward"):
            stream.work(1.0)
        clock.mark()
        # the device is a lap behind: three events and the work between them, and the clock's very
        # first event
        if k:
            stream.go(5 if k == 1 else 4)
            assert clock.laps() == [{"other": 0.0, "forward": 1.0}]
    assert stream.made < 20  # events are used again
    assert sum(clock.take().values()) <= 199


def test_a_resumed_run_takes_the_place_of_what_it_did_again(tmp_path):
    now = Time()
    path = file_of(tmp_path, 0)
    for first, count in ((0, 3), (2, 2)):
        clock = Clock(now)
        spans = write(path, clock, now, first=first)
        for _ in range(count):
            take(clock, now, forward=2.0)
            spans.step()
        spans.close()
        with path.open("ab") as file:
            file.write(b'{"ts": 3, "rank"')  # killed
    (records,) = read_spans(tmp_path)
    assert [(w["first"], w["last"]) for w in records.windows] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert [w["ts"] for w in records.windows] == [0.0, 2.0, 6.0, 8.0]
    assert len(records.begins) == 2


def test_a_folder_that_cannot_be_written_is_said_once_and_stops_nothing(tmp_path, capsys):
    (tmp_path / "spans").write_text("no folder")
    now = Time()
    clock = Clock(now)
    spans = write(file_of(tmp_path, 0), clock, now)
    take(clock, now, forward=2.0)
    spans.step()
    spans.close()
    assert capsys.readouterr().err.count("training continues") == 1


def test_a_run_without_spans_is_named(tmp_path):
    with refused("no-spans"):
        read_spans(tmp_path)


def test_what_a_stranger_wrote_is_left_out(tmp_path):
    window = {
        "rank": 0,
        "ts": 5.0,
        "seconds": 1.0,
        "first": 1,
        "last": 3,
        "phases": {"wait": 1.0, "device": 0.5},
    }
    odd = {
        **window,
        "first": 4,
        "last": 6,
        "phases": {"wait": {}, "forward": 1.0},
        "cpu_s": "2",
        "cpu_wait_s": None,
        "host": 5,
        "workers": {"kind": "thread", "count": 2, "seconds": {"read": True}, "reads": []},
        "shared": 7,
    }
    lines = [
        {"begin": 1, "rank": 0, "ts": "today", "host": "here", "world_size": None, "cores": 1e300},
        window,
        odd,
        {**window, "ts": None},
        {**window, "rank": "0"},
        {**window, "last": float("inf")},
        [],
        3,
    ]
    file_of(tmp_path, 0).parent.mkdir()
    file_of(tmp_path, 0).write_text(
        "[" * 100_000 + "\n" + "".join(json.dumps(line) + "\n" for line in lines)
    )
    (found,) = read_spans(tmp_path)
    assert found.begins == ({"begin": 1, "rank": 0, "host": "here"},)
    workers = {"kind": "thread", "count": 2, "seconds": {}}
    rest = {
        "rank": 0,
        "ts": 5.0,
        "seconds": 1.0,
        "first": 4,
        "last": 6,
        "phases": {"forward": 1.0},
        "workers": workers,
    }
    assert found.windows == (window, rest)


def tally(folder: Path, workers: int, kind: str, **kw: Any) -> Any:
    data = Data(
        layout="folders", root=str(folder), classes=tuple("abc"), crop=(32, 32), check="off", **kw
    )
    with WorkerPool(workers, kind) as pool:
        with TrainLoader(
            open_dataset(data, "train"), data, seed=1, batch_size=2, last_step=3, pool=pool
        ) as loader:
            assert len(list(loader)) == 3
            assert loader.queue()[0] == 3
            assert 0 <= loader.queue()[1] <= 12
        return pool.tally


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for part, shape in (("images", (64, 64, 3)), ("masks", (64, 64))):
        (root / part / "train").mkdir(parents=True)
        for k in range(2):
            pixels = draw.integers(0, 3, shape, dtype=np.uint8)
            cv2.imwrite(str(root / f"{part}/train/{k}.png"), pixels)
    return root


@pytest.mark.parametrize(("workers", "kind"), [(0, "thread"), (2, "thread"), (1, "process")])
def test_workers_tell_what_their_samples_cost(pictures, workers, kind):
    done = tally(pictures, workers, kind)
    sizes = [path.stat().st_size for path in pictures.rglob("*.png")]
    assert done.samples == 6
    assert done.cost.bytes == 3 * sum(sizes)  # three epochs
    assert (done.cost.reads, done.cost.bytes2) == (12, 3 * sum(size**2 for size in sizes))
    assert min(done.cost._replace(cpu_wait_s=1.0)) > 0
    assert 0 <= done.cost.cpu_wait_s < 60  # only a full machine makes a worker wait for a core


def test_what_a_stage_takes_is_charged_to_it(monkeypatch):
    now = Time()
    monkeypatch.setattr(stages, "time", SimpleNamespace(perf_counter=now, thread_time=now))
    stages.begin()
    now.at += 1
    with stages.READ:
        now.at += 2
        with stages.DECODE:
            now.at += 4
        now.at += 8
    with contextlib.suppress(OSError), stages.AUGMENT:
        now.at += 16
        raise OSError
    now.at += 32
    cost = stages.end()
    assert cost[:4] == (10, 4, 16, 33)
    assert cost.seconds == 63
    assert not any(stages.StageTotals().cost)
    stages.begin()
    assert stages.end()[:4] == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("place", "stage"),
    [
        ("segtrain.data.datasets.Dataset.record", "read"),
        ("segtrain.data.pixels.native.crop", "decode"),
        ("segtrain.data.pixels.decode.decode_mask", "decode"),
        ("segtrain.data.sample.draw", "augment"),
        ("segtrain.data.workers.memory.SharedBlock.part", "assemble"),
    ],
)
def test_a_slow_part_shows_in_its_stage(pictures, monkeypatch, place, stage):
    if place.endswith("decode_mask"):
        monkeypatch.setenv("SEGTRAIN_NATIVE", "0")
    elif "native" in place and not native.available():
        pytest.skip("the native decoder is not built")
    holder, _, name = place.rpartition(".")
    owner = (
        importlib.import_module(holder)
        if holder.islower()
        else getattr(importlib.import_module(holder.rpartition(".")[0]), holder.rpartition(".")[2])
    )
    real, calls = getattr(owner, name), []

    def slow(*args: Any, **kw: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            calls.append(args)
            time.sleep(0.05)
        return real(*args, **kw)

    monkeypatch.setattr(owner, name, slow)
    # A busy machine may read pages from the disk meanwhile, which is charged to reading.
    monkeypatch.setattr(stages, "major_faults", lambda: 0)
    cost = tally(pictures, 1, "thread").cost._asdict()
    assert len(calls) >= 6
    # the clocks of a stage and of a sleep differ a little
    assert cost[stage] >= 0.9 * 0.05 * len(calls)


def test_what_comes_after_the_last_gradient_of_ones_own_is_gradient_sync(tmp_path):
    """DDP itself, whose sum over ranks takes its time."""
    clock = Clock()

    def slow_sum(_, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations, as objects
        summed: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def end() -> None:
            """0.3 s after the phase has begun, however late that is on a busy machine."""
            limit = time.monotonic() + 120
            while clock.pending[0] != "gradient_sync" and time.monotonic() < limit:
                time.sleep(0.001)
            time.sleep(0.3)
            summed.set_result(bucket.buffer())

        threading.Thread(target=end).start()
        return summed

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            time.sleep(0.1)
            return gradient

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        model.register_comm_hook(None, slow_sum)
        for _ in range(3):
            clock.take()
            loss = Slow.apply(model(torch.ones(2, 4))).sum()
            with clock("backward"):
                after_own_gradients(loss, lambda: clock.turn("gradient_sync"))
                loss.backward()
            spent = clock.take()
            assert spent["backward"] >= 0.1
            assert spent["gradient_sync"] >= 0.29
            assert clock.pending[0] == "other"
    finally:
        dist.destroy_process_group()


def test_a_wait_for_a_mapped_file_counts_as_reading(monkeypatch):
    """Of 16 s in the decoder: 4 s of computing, 2 s without a core; a page fault had to wait for
    the rest.
    """
    now, cpu, faults, late = Time(), Time(), [0], [0.0]
    monkeypatch.setattr(stages, "time", SimpleNamespace(perf_counter=now, thread_time=cpu))
    monkeypatch.setattr(stages, "major_faults", lambda: faults[0])
    monkeypatch.setattr(stages, "runqueue_wait", lambda: late[0])
    found = []
    for waits in (0, 3):
        stages.begin()
        stages.took(1000)
        with stages.DECODE:
            now.at, cpu.at, late[0], faults[0] = (
                now.at + 16,
                cpu.at + 4,
                late[0] + 2,
                faults[0] + waits,
            )
        found.append(stages.end())
    assert found[0][:4] == (0, 16, 0, 0)
    assert found[1][:4] == (10, 6, 0, 0)
    assert (found[0].bytes_s, found[1].bytes_s) == (0, 10_000)
    assert found[0].reads == found[1].reads == 1
