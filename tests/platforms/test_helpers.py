"""Tests of helpers without Ray: they make what local workers make, over real sockets, whatever
happens to them.
"""
# ruff: noqa: F811

from __future__ import annotations

import os
import pickle
import random
import signal
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from deadly import Sleepy
from helped_loading import STEPS, _quick, load, pool_of  # noqa: F401
from helper_hosts import Hosts, InProcess, InThread
from picture_folder import data, folder  # noqa: F401
from waiting import soon

from segtrain.config import Data
from segtrain.data.datasets import open_dataset
from segtrain.data.index.entries import save
from segtrain.data.sample import SampleMaker
from segtrain.data.stages import Cost
from segtrain.data.train_loader import EvalLoader
from segtrain.observe.spans import WorkerTotals
from segtrain.platforms.ray.helpers import balance, remote_helper, wire
from segtrain.platforms.ray.helpers.balance import Balance
from segtrain.platforms.ray.helpers.helper import Helper, serve
from segtrain.platforms.ray.helpers.need import SampleDemand
from segtrain.platforms.ray.helpers.pool import HelpedPool
from segtrain.platforms.ray.helpers.protocols import HelperSlot


@pytest.fixture
def slow(data: Data) -> Sleepy:
    """Samples that take a while, so that helpers get some."""
    return Sleepy(open_dataset(data, "train"), -1)


def until_helped(pool: HelpedPool, hosts: int, same: Callable[[], bool]) -> bool:
    """Load until each host has helped; every time, the batches must be the same."""
    return soon(lambda: same() and len(pool.helped) == hosts)


def test_helpers_give_the_same_batches(data, slow):
    plain = load(data, slow)
    for cores in ({"a": 1}, {"a": 2, "b": 1}):
        with pool_of(Hosts(cores)) as pool:
            for settings in ({}, {"accumulate": 2}, {"prefetch": 8}):
                assert load(data, slow, pool, **settings) == plain
            assert until_helped(pool, len(cores), lambda: load(data, slow, pool) == plain)
            made, loads = pool.made(), pool.tally.samples + sum(pool.helped.values())
            assert made.local == loads - sum(pool.helped.values()) > 0
            assert made.to_dict()["helpers"] == dict(pool.helped)
    share = {"rank": 1, "world": 2}
    for settings in (
        {"colors": True, **share},
        {"first_step": 3},
        {"first_step": 3, "colors": True, "accumulate": 3},
    ):
        with pool_of(Hosts({"a": 2})) as pool:
            assert load(data, slow, pool, **settings) == load(data, slow, **settings)


def test_worker_processes_and_helpers_share_the_work(data, slow):
    with HelpedPool(2, "process", Hosts({"a": 2}), say=print) as pool:
        plain = load(data, slow)
        # Worker processes need seconds to start: until then, helpers may make all samples.
        assert soon(
            lambda: (
                load(data, slow, pool) == plain
                and min(sum(pool.helped.values()), pool.made().local) > 0
            )
        )


def test_crops_of_changing_size(data, slow):
    sizes = [(24, 32), (16, 16), (80, 80), (8, 8)]
    changing = {"crop_and_scale": lambda step: (sizes[step % 4], (0.5, 2.0))}
    with pool_of(Hosts({"a": 2})) as pool:
        plain = load(data, slow, **changing)
        assert soon(lambda: load(data, slow, pool, **changing) == plain and pool.helped["a"] > 20)


def test_evaluation_is_made_here_alone(data, slow):
    with pool_of(Hosts({"a": 2})) as pool:
        assert soon(lambda: load(data, slow, pool) and pool.helped["a"] > 0)
        before, helper_samples = pool.tally.samples, pool.helped["a"]
        with EvalLoader(slow, [[0, 3, 6], [1, 2], [4, 5]], pool=pool) as whole:
            assert sum(len(indices) for indices, *_ in whole) == 7
        assert (pool.tally.samples - before, pool.helped["a"] - helper_samples) == (7, 0)
        assert pool.made().local == before  # only samples of training count


def test_helpers_that_are_killed_and_stopped_cost_nothing_but_time(data, slow):
    plain, rng, said = load(data, slow, last_step=40), random.Random(0), list[str]()
    engine = Hosts({"a": 2}, InProcess)
    ended = threading.Event()

    def hurt() -> None:
        while not ended.wait(rng.uniform(0.1, 0.4)):
            living = [one for one in engine.hired if one.process.poll() is None]
            if living:
                rng.choice(living).signal(rng.choice([signal.SIGKILL, signal.SIGSTOP]))

    with pool_of(engine, said, limit_s=0.7) as pool:
        assert soon(lambda: load(data, slow, pool, last_step=4) and pool.helped["a"] > 0)
        thread = threading.Thread(target=hurt)
        thread.start()
        try:
            assert soon(lambda: load(data, slow, pool, last_step=40) == plain and pool.again > 0)
        finally:
            ended.set()
            thread.join()
    assert any("lost" in line for line in said)


def test_what_a_silent_helper_has_is_made_here_too_before_it_is_given_up():
    pool, of = (
        pool_of(Hosts({}), limit_s=2.0),
        remote_helper.RemoteHelper(HelperSlot("node", "a", 0)),
    )
    of.turns.extend([60.0] * 15)  # it is slow, so its samples are not late by their age
    of.link = Heard(100.0)
    sample: Any = object()
    of.flight.append(remote_helper.Ordered(sample, since=99.0))
    pool._out.add(sample)
    for now, queued in ((100.9, 0), (101.1, 1), (101.2, 1)):
        pool.make_late_ones_here(now, [of])
        assert len(pool._queue) == queued, now


class Heard(wire.SocketLink):
    def __init__(self, heard: float) -> None:
        self.heard = heard


class _Late:
    """A helper that answers, but so late that local workers have made its samples already."""

    def __init__(self) -> None:
        self.sent = 0

    def __call__(
        self, helper: Helper, address: tuple[str, int], key: bytes, limit_s: float
    ) -> None:
        with socket.create_connection(address) as connection:
            assert wire.greet(connection, key, b"helper", b"rank", 2.0)
            connection.settimeout(None)
            for number in range(10**6):
                for buffers in helper.answers(helper.begin(wire.read_message(connection))):
                    for _ in range(4 if number > 2 else 0):
                        time.sleep(0.1)
                        connection.sendall(wire.frame(b""))
                    connection.sendall(b"".join(map(bytes, buffers)))
                    self.sent += 1


def test_a_late_answer_is_dropped(data, slow, monkeypatch):
    """It is alive, so it is not given up, but its samples are made here as well. The batches'
    memory is used again.
    """
    from segtrain.platforms.ray.helpers import pool as module

    monkeypatch.setattr(module, "TWICE_S", 0.1)
    monkeypatch.setattr(module, "TWICE", 0)
    late, plain = _Late(), load(data, slow, last_step=30)
    with pool_of(Hosts({"a": 1}, lambda: InThread(late)), limit_s=300.0) as pool:
        assert soon(
            lambda: (
                load(data, slow, pool, last_step=30) == plain
                and late.sent > 2 + pool.helped["a"] + 2
            )
        )
        assert pool.again == 0


def test_helpers_join_late_and_leave(data, slow):
    said: list[str] = []
    engine = Hosts({})
    plain = load(data, slow)
    with pool_of(engine, said) as pool:
        assert load(data, slow, pool) == plain
        assert not pool.helped
        assert soon(lambda: len(said) == 1)
        engine.cores = {"a": 2}
        assert soon(lambda: load(data, slow, pool) == plain and pool.helped["a"] > 0)
        engine.cores = {"b": 1}
        assert soon(lambda: load(data, slow, pool) == plain and pool.helped["b"] > 0)
        before = pool.helped["a"]
        assert load(data, slow, pool) == plain
        assert pool.helped["a"] == before
        assert soon(lambda: not [t for t in threading.enumerate() if t.name == "segtrain-helper-1"])


def test_another_version_is_refused(data, slow):
    notes: list[dict[str, Any]] = []
    with pool_of(
        Hosts({"a": 2}, lambda: InThread(found={"a new package": "0.0"})), notes=notes
    ) as pool:
        assert load(data, slow, pool) == load(data, slow)
        assert soon(lambda: sum(one["cores"] for one in notes if one["what"] == "refused") == 2)
        assert not pool.helped
        assert all("a new package" in one["reason"] for one in notes if one["what"] == "refused")
        assert len(pool.engine.hired) == 2  # type: ignore[attr-defined]


def _brighter(helper: Helper, address: tuple[str, int], key: bytes, limit_s: float) -> None:
    made = helper._made

    def changed(*args: Any) -> list[Any]:
        buffers = made(*args)
        pixels = bytearray(buffers[1])
        pixels[7] ^= 1
        return [buffers[0], pixels, *buffers[2:]]

    helper._made = changed  # type: ignore[method-assign]
    serve(helper, address, key, limit_s)


def test_other_pixels_are_refused(data, slow):
    notes: list[dict[str, Any]] = []
    with pool_of(Hosts({"a": 1}, lambda: InThread(_brighter)), notes=notes) as pool:
        assert load(data, slow, pool) == load(data, slow)
        assert soon(lambda: [one["what"] for one in notes][-1:] == ["refused"])
        assert not pool.helped


class Mislaid(InThread):
    """A helper on a host without the file of the transforms."""

    def meet(self, name: bytes, content: bytes) -> None:
        file = Path("own_transforms.py").rename("elsewhere.py")
        try:
            super().meet(name, content)
        finally:
            file.rename("own_transforms.py")


def test_a_host_without_the_file_of_the_transforms_is_refused(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own_transforms.py").write_text("def same(image, mask, rng):\n    return image, mask\n")
    mine, notes = (
        data.model_copy(update={"transforms": "own_transforms.py:same"}),
        list[dict[str, Any]](),
    )
    source = Sleepy(open_dataset(mine, "train"), -1)
    plain = load(mine, source)
    with pool_of(Hosts({"a": 1}, Mislaid), notes=notes) as pool:
        assert load(mine, source, pool) == plain
        assert soon(lambda: [one["what"] for one in notes][-1:] == ["refused"])
        assert "own_transforms.py" in notes[-1]["reason"]
        assert len(pool.engine.hired) == 1  # type: ignore[attr-defined]


class Elsewhere(Sleepy):
    """Files that only the rank's process has."""

    def trap(self, index: int) -> None:
        super().trap(index)
        if threading.current_thread().name == "a-helper" and index not in (0, 6):
            raise FileNotFoundError(f"no image {index}")


def test_what_a_helper_cannot_make_is_made_here(data):
    source, notes = Elsewhere(open_dataset(data, "train"), -1), list[dict[str, Any]]()
    with pool_of(Hosts({"a": 1}), notes=notes) as pool:
        plain = load(data, source)
        assert soon(
            lambda: (
                load(data, source, pool) == plain and "refused" in [one["what"] for one in notes]
            )
        )


class Stale(Sleepy):
    """A helper's copy of the data whose mask of sample 4 is another one, of the same size in
    bytes.
    """

    def record(self, index: int) -> Any:
        record = super().record(index)
        if threading.current_thread().name != "a-helper" or index != 4:
            return record
        mask = cv2.imdecode(np.frombuffer(record.mask, np.uint8), cv2.IMREAD_UNCHANGED)
        other = next(
            content
            for content in (
                cv2.imencode(".png", np.roll(mask, k))[1].tobytes() for k in range(1, mask.size)
            )
            if len(content) == len(record.mask)
        )
        return replace(record, mask=other)


def test_an_older_copy_of_one_mask_is_refused(data):
    source, notes = Stale(open_dataset(data, "train"), -1), list[dict[str, Any]]()
    plain = load(data, source)
    with pool_of(Hosts({"a": 1}), notes=notes) as pool:
        assert soon(
            lambda: (
                load(data, source, pool) == plain and "refused" in [one["what"] for one in notes]
            )
        )
    # that no core helps any more may be told after it
    (refused,) = (one for one in notes if one["what"] == "refused")
    assert source.entries[4].mask in refused["reason"]


def test_an_order_is_not_unpickled(tmp_path):
    class Code:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    with pytest.raises(ValueError, match="Expecting"):
        Helper().begin(pickle.dumps(Code(), 0))
    assert not list(tmp_path.iterdir())


def _serve_wrong_key(helper: Helper, address: tuple[str, int], key: bytes, limit_s: float) -> None:
    serve(helper, address, b"x" * 32, limit_s)


def test_a_wrong_key_opens_nothing(data, slow, monkeypatch):
    monkeypatch.setattr(remote_helper, "CONNECT_S", 0.2)
    notes: list[dict[str, Any]] = []
    with pool_of(Hosts({"a": 1}, lambda: InThread(_serve_wrong_key)), notes=notes) as pool:
        assert load(data, slow, pool) == load(data, slow)
        assert soon(lambda: any("connect" in one.get("reason", "") for one in notes))
        assert not pool.helped


def test_a_stranger_does_not_keep_a_helper_out(monkeypatch):
    key, greet = b"k" * 32, wire.greet
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        strangers = [socket.create_connection(address) for _ in range(4)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\n" * 9)
        strangers[1].sendall(b"x" * wire.NONCE)
        strangers[2].sendall(b"x")

        def without_a_limit(connection: socket.socket, *words: Any) -> bool:
            return greet(connection, *words[:-1], 300.0)

        monkeypatch.setattr(wire, "greet", without_a_limit)
        with socket.create_connection(address) as helper:
            thread = threading.Thread(
                target=wire.greet, args=(helper, key, b"helper", b"rank", 5.0)
            )
            thread.start()
            found = remote_helper.accept(listener, key, 300.0, 5.0)
            thread.join()
            assert found is not None
            assert found.getpeername() == helper.getsockname()
            found.close()
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize(
    "sent",
    [
        wire.frame(b"[1]"),
        b"\xff\xff\xff\xff" + b"x" * 100,
        wire.frame(wire.Reply("", 768, Cost()).to_bytes()) + b"short",
    ],
)
def test_damaged_answers_end_the_connection(data, slow, sent):
    def damage(helper: Helper, address: tuple[str, int], key: bytes, limit_s: float) -> None:
        with socket.create_connection(address) as connection:
            assert wire.greet(connection, key, b"helper", b"rank", 2.0)
            connection.settimeout(None)
            for _ in range(4):
                for buffers in helper.answers(helper.begin(wire.read_message(connection))):
                    connection.sendall(b"".join(map(bytes, buffers)))
            wire.read_message(connection)
            connection.sendall(sent)

    notes: list[dict[str, Any]] = []
    plain = load(data, slow)
    with pool_of(Hosts({"a": 1}, lambda: InThread(damage)), notes=notes, limit_s=0.5) as pool:
        assert soon(
            lambda: load(data, slow, pool) == plain and any(one.get("samples") for one in notes)
        )


def test_masks_travel_exactly():
    rng = np.random.default_rng(0)
    masks = [
        np.zeros((100, 80), np.uint8),
        rng.integers(0, 256, (100, 80), np.uint8),
        np.ones((8, 8), np.uint8),
    ]
    for mask in masks:
        there, here = socket.socketpair()
        with there, here:
            packed = wire.pack_mask(mask)
            assert len(packed) <= mask.size
            there.sendall(packed)
            out = np.full_like(mask, 7)
            wire.read_mask(wire.SocketLink(here, 2.0), len(packed), out)
            assert np.array_equal(out, mask)


@pytest.mark.parametrize(
    "packed",
    [
        zlib.compress(bytes(8001)),
        zlib.compress(bytes(8000)) + b"x",
        zlib.compress(bytes(8000))[:-4],
        b"z" * 40,
    ],
)
def test_a_packed_mask_ends_with_its_pixels(packed):
    there, here = socket.socketpair()
    with there, here:
        there.sendall(packed)
        with pytest.raises(wire.WireError):
            wire.read_mask(wire.SocketLink(here, 2.0), len(packed), np.empty((100, 80), np.uint8))


def test_a_list_of_files_travels_with_its_names(data, tmp_path):
    source = open_dataset(data, "train")
    listed = save(source.entries, tmp_path)  # type: ignore[arg-type]
    name, packed = wire.packed(SampleMaker(replace(source, entries=listed), data, 3))
    Path(listed.file).unlink()
    helper = Helper()
    helper.meet(name, packed, os.getcwd(), [])
    assert list(helper.makers[name].source.entries) == list(source.entries)


def test_helpers_are_needed_until_the_demand_is_seen():
    assert SampleDemand().more_than(100, 0.0)


def look(balance: Balance, make_ms: float, receive_ms: float, size: int = 100) -> bool:
    """A window of 40 samples of each kind."""
    balance.made = balance.made.plus(40 * make_ms / 1000, 40, 40 * size)
    if not balance.given_up:
        balance.received = balance.received.plus(40 * receive_ms / 1000, 40, 40 * size)
    return balance.changed()


def test_helpers_that_do_not_pay_are_given_up_after_three_looks(monkeypatch):
    monkeypatch.setattr(balance, "WORTH", 0.5)
    weighed = Balance()
    looks = [(4, 2.1), (4, 2.1), (4, 1.9), (4, 2.1), (4, 2.1), (4, 2.1)]
    assert [look(weighed, *costs) for costs in looks] == [False] * 5 + [True]
    assert (weighed.receive_ms, weighed.make_ms) == pytest.approx((2.1, 4))
    # Larger crops cost more of both; samples that take longer to make are worth receiving.
    looks = [(5, 0), (5, 0), (5, 0), (40, 0, 1000), (7, 0), (7, 0), (7, 0)]
    assert [look(weighed, *costs) for costs in looks] == [False] * 6 + [True]
    assert not weighed.given_up
    assert (weighed.receive_ms, weighed.make_ms) == pytest.approx((2.1, 7))


def test_helpers_are_given_up_and_asked_again(data, slow, monkeypatch):
    said, notes, plain = list[str](), list[dict[str, Any]](), load(data, slow)
    with pool_of(Hosts({"a": 2}), said, notes) as pool:
        assert soon(lambda: load(data, slow, pool) == plain and pool.helped["a"] > 0)
        monkeypatch.setattr(balance, "WORTH", 0.0)
        assert soon(lambda: load(data, slow, pool) == plain and pool.balance.given_up)
        assert soon(
            lambda: not [t for t in threading.enumerate() if t.name.startswith("segtrain-helper-")]
        )
        before = pool.helped["a"]
        assert load(data, slow, pool) == plain
        assert pool.helped["a"] == before
        monkeypatch.setattr(balance, "WORTH", 1e9)
        monkeypatch.setattr(balance, "AGAIN", 1e9)
        assert soon(lambda: load(data, slow, pool) == plain and pool.helped["a"] > before)
        costs = pool.made().to_dict()
    told = [one for one in notes if one["what"] in ("given_up", "asked_again")]
    assert [one["what"] for one in told] == ["given_up", "asked_again"]
    assert all(one["receive_ms"] > 0 and one["make_ms"] > 0 for one in told)
    assert [line for line in said if " ms of CPU time here" in line] == [
        f"helpers   {one['text']}" for one in told
    ]
    assert costs["receive_ms"] > 0
    assert costs["make_ms"] > 0


def test_a_window_counts_the_samples_of_each_host():
    first = WorkerTotals(samples=3, helper_samples={"a": 2}, receive_s=0.5)
    window = WorkerTotals(samples=5, helper_samples={"a": 5, "b": 1}, receive_s=0.75).since(first)
    assert window["helpers"] == {"a": 3, "b": 1}
    assert window["receive_s"] == 0.25
    assert not {"helpers", "receive_s"} & WorkerTotals(samples=5).since(WorkerTotals()).keys()


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    before = set(threading.enumerate())  # such as the writer of a disk cache in an earlier test
    yield

    def left() -> list[threading.Thread]:
        new = set(threading.enumerate()) - before
        return [thread for thread in new if thread.name.startswith(("segtrain", "a-helper"))]

    assert soon(lambda: not left())
