"""Tests that all ranks read the same votes of the same step, and raise the error of one of them."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
import torch

from segtrain.config import Data
from segtrain.training import state
from segtrain.training.loop import _late
from segtrain.training.start.user_objects import sharing_listings
from segtrain.training.step import Votes


@pytest.mark.parametrize(
    ("device", "backend", "delay"),
    [("cpu", "gloo", 1), ("cpu", "", 1), ("cuda", "nccl", 2), ("cuda", "", 2), ("cuda", "gloo", 1)],
)
def test_the_delay_is_the_same_on_all_ranks_of_a_backend(device, backend, delay):
    """gloo may mix hosts with and without GPUs: they must read the sums of the same step."""
    assert Votes(SimpleNamespace(device=torch.device(device), backend=backend)).delay == delay


@pytest.mark.parametrize("delay", [1, 2])
def test_a_vote_is_read_once_and_so_many_steps_late(delay):
    votes = Votes(SimpleNamespace(device=torch.device("cpu"), backend="gloo"))
    votes.delay = delay
    stopped = []
    for step in range(6):
        stopped.append(votes.stop())
        votes.copy_to_host(votes.pack(float(step == 2), 0, 7))
    assert stopped == [step == 2 + delay for step in range(6)]


@pytest.mark.parametrize("signals", [0, 1])
def test_the_ranks_learn_whether_a_signal_or_a_limit_stops_them(signals):
    votes = Votes(SimpleNamespace(device=torch.device("cpu"), backend="gloo"))
    votes.copy_to_host(votes.pack(signals, 1, 7))
    assert votes.stop()
    assert votes.signaled == bool(signals)


def test_numbers_arrive_as_they_were():
    own = Votes(SimpleNamespace(device=torch.device("cpu"), backend="")).pack(1, 2**52 + 1)
    assert own.dtype == torch.float64
    assert own.tolist() == [1, 2**52 + 1]


def test_a_handler_that_python_did_not_install_is_no_error(monkeypatch):
    installed: list[object] = []

    def install(number: int, handler: object) -> None:
        installed.append(handler)

    # returns None, as for a handler of another language
    monkeypatch.setattr(state.signal, "signal", install)
    with state.stop_signals():
        pass
    assert installed[3:] == [signal.SIG_DFL] * 3


@pytest.mark.parametrize("root", ["gs://bkt/set", "/data/set"])
def test_a_host_with_a_copy_of_the_bucket_calls_the_same_collectives(root):
    """data.root may differ between hosts. Otherwise, the ranks would wait in different
    collectives.
    """
    calls = list[str]()
    strategy = SimpleNamespace(
        world_size=2, broadcast_object=lambda value: calls.append(value) or value
    )
    with sharing_listings(Data(layout="folders", root=root), strategy):
        assert len(calls) == 1


def test_a_wait_for_a_rank_without_samples_is_a_wait_for_data():
    def late(theirs: float, **spans: float) -> dict[str, float]:
        def reduce(rows: torch.Tensor) -> torch.Tensor:
            rows[1] = int(1e9 * theirs)
            return rows

        return _late(
            SimpleNamespace(world_size=2, rank=0, device=torch.device("cpu"), reduce=reduce), spans
        )  # type: ignore[arg-type]

    assert late(3.0, wait=0.5, sync=4.0) == {"wait": 3.0, "sync": 1.5}
    assert late(3.0, wait=0.5, sync=2.0) == {"wait": 2.5, "sync": 0.0}
    assert late(0.25, wait=0.5, sync=2.0) == late(3.0, wait=0.5) == {}
