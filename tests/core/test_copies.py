"""Tests that a checkpoint has the state of its step although training goes on while it is
copied.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import segtrain
from segtrain.config import Config
from segtrain.data.workers.memory import SharedBlock
from segtrain.runfolder import checkpoint
from segtrain.training import host_copies as copies
from segtrain.training import loop

STEPS = 4
SMALL = {"stem": 8, "widths": [8, 8, 8, 8], "depths": [0, 1, 0, 0], "decoder": 8, "bins": [1, 2]}


class LateCopies:
    """As a GPU that copies as late as it may: before the next update, or when the run has ended."""

    def __init__(self, session: Any) -> None:
        self._session, self._lock, self._done = session, threading.Lock(), True
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self.late = 0

    def take(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        self._pairs.append((torch.full_like(value, 77), value.detach()))
        return self._pairs[-1][0]

    def start(self) -> None:
        self._done = False

    def before_update(self) -> None:
        with self._lock:
            self.late += not self._done
            for home, source in self._pairs:
                home.copy_(source)
            self._pairs, self._done = [], True

    def wait(self) -> None:
        while not self._done and self._session.state.step < STEPS:
            time.sleep(0.001)
        if not self._done:
            self.before_update()


def trained(out: Path) -> list[dict[str, Any]]:
    """The checkpoints of a short run."""
    settings = {
        "out": str(out),
        "data": {
            "scenes": 8,
            "scene_size": [40, 48],
            "crop": [32, 32],
            "workers": 0,
            "check": "off",
        },
        "model": {"arch": "pico", "options": SMALL},
        "optim": {"ema": 0.9, "name": "adamw", "lr": 1e-3},
        "train": {"device": "cpu", "batch_size": 4, "duration": f"{STEPS}st"},
        "eval": {"every": f"{STEPS}st"},
        "checkpoint": {"every": "1st", "keep": 9},
        "parallel": {"threads": 1},
        "log": {"tensorboard": False, "profile_ms": 0, "spans": False, "hang_s": 0, "pictures": 0},
    }
    segtrain.train(Config(**settings))
    return [checkpoint.read(path) for path in checkpoint.checkpoints(out)]


def test_late_copies_hold_the_step_of_their_checkpoint(tmp_path, monkeypatch):
    expected, used = trained(tmp_path / "plain"), []
    run = loop.run

    def late(session: Any, signals: list[int]) -> int:
        session.saver._copies = LateCopies(session)
        used.append(session.saver._copies)
        return run(session, signals)

    monkeypatch.setattr(loop, "run", late)
    found = trained(tmp_path / "late")
    assert used[0].late >= STEPS - 1
    assert len(found) == len(expected) == STEPS
    for one, other in zip(found, expected):
        assert one["state"]["step"] == other["state"]["step"]
        assert one["scaler"] == other["scaler"] == {"scale": 1.0, "good": 0}
        for part in ("model", "ema"):
            assert one[part].keys() == other[part].keys()
            assert all(torch.equal(one[part][name], other[part][name]) for name in other[part]), (
                part
            )
        for name, slots in other["optimizer"].items():
            assert all(torch.equal(one["optimizer"][name][key], slots[key]) for key in slots)


class Stream:
    """A CUDA stream of a machine without a GPU."""

    def __init__(self, *_: Any) -> None: ...

    def record_event(self) -> Stream:
        return self

    def wait_event(self, _: Any) -> None: ...


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> tuple[copies.HostCopies, list[int], list[str]]:
    """HostCopies for the CPU, the sizes of its chunks, and what it said. Only 3 chunks can be
    page-locked.
    """
    sizes: list[int] = []
    said: list[str] = []

    def block(size: int, shared: bool, pin: bool) -> SharedBlock:
        assert pin
        if len(sizes) == 3:
            raise RuntimeError("CUDA error: out of memory")
        sizes.append(size)
        return SharedBlock(size, shared, False)

    monkeypatch.setattr(copies, "SharedBlock", block)
    monkeypatch.setattr(copies, "CHUNK", 4096)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    return copies.HostCopies(torch.device("cpu"), said.append), sizes, said


def test_each_copy_is_a_tensor_of_its_own_in_memory_that_is_used_again(made):
    """Also its storage: torch.save writes whole storages."""
    home, sizes, said = made
    torch.manual_seed(0)
    state = [
        torch.randn(5, 3, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(()),
        torch.randn(700),
        torch.zeros((), dtype=torch.int64),
        torch.randn(0),
        torch.randn(900, dtype=torch.float64),
        torch.randn(8, 6).t(),
    ]
    for _ in range(2):
        taken = [home.take(value) for value in state]
        home.start()
        for found, value in zip(taken, state):
            assert torch.equal(found, value)
            assert found.dtype == value.dtype
            assert found.stride() == value.stride()
            assert found.untyped_storage().nbytes() == value.numel() * value.element_size()
        for value in state:
            value.add_(1)
    assert sizes == [4096, 7200]
    assert home.take("a name") == "a name"
    assert not said


def test_without_enough_page_locked_memory_the_rest_is_copied_at_once_and_said_once(made):
    home, sizes, said = made
    state = [torch.randn(1000) for _ in range(6)]
    taken = [home.take(value) for value in state]
    home.start()
    assert all(map(torch.equal, taken, state))
    assert len(sizes) == 3
    assert len(said) == 1
