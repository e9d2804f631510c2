"""Tests that all ranks read the same votes of the same step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from segtrain.train.step import Votes


@pytest.mark.parametrize(
    ("device", "backend", "delay"),
    [("cpu", "gloo", 1), ("cpu", "", 1), ("cuda", "nccl", 2), ("cuda", "", 2), ("cuda", "gloo", 1)],
)
def test_the_delay_is_the_same_on_all_ranks_of_a_backend(device: str, backend: str, delay: int) -> None:
    """gloo may mix hosts with and without GPUs: they must read the sums of the same step."""
    assert Votes(SimpleNamespace(device=torch.device(device), backend=backend)).delay == delay


@pytest.mark.parametrize("delay", [1, 2])
def test_a_vote_is_read_once_and_so_many_steps_late(delay: int) -> None:
    votes = Votes(SimpleNamespace(device=torch.device("cpu"), backend="gloo"))
    votes.delay = delay
    stopped = []
    for step in range(6):
        stopped.append(votes.stop())
        votes.send_home(votes.own(float(step == 2), 7))
    assert stopped == [step == 2 + delay for step in range(6)]


def test_numbers_arrive_as_they_were() -> None:
    own = Votes(SimpleNamespace(device=torch.device("cpu"), backend="")).own(1, 2**52 + 1)
    assert own.dtype == torch.float64
    assert own.tolist() == [1, 2**52 + 1]
