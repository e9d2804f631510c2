"""Is what too many threads cost measured before the first step, and is nothing else touched by it?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from segtrain.config import make_config
from segtrain.cores import cores
from segtrain.parallel.cluster import discover
from segtrain.parallel.strategy import start
from segtrain.train.crowd import crowding
from segtrain.train.session import Session, open_session


def session_of(out: Path, threads: int, **parallel: object) -> Session:
    config = make_config(
        {
            "out": str(out), "name": "crowd",
            "data": {"scenes": 9, "scene_size": [48, 64], "crop": [32, 48]},
            "train": {"batch_size": 4, "duration": "2st", "device": "cpu"},
            "parallel": {"threads": threads, **parallel},
            "log": {"tensorboard": False},
        },
        source="test",
    )  # fmt: skip
    cluster = discover()
    with start(config.parallel, cluster, config.train.device) as strategy:
        return open_session(config, strategy)


@pytest.fixture(autouse=True)
def _threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_cost_of_threads_without_a_core_is_measured(tmp_path: Path) -> None:
    many = 4 * cores()
    session = session_of(tmp_path / "run", many)
    before = {name: value.clone() for name, value in session.plain.state_dict().items()}
    numbers = torch.get_rng_state()
    torch.set_num_threads(many)
    found = crowding(session, 2)
    assert found is not None
    assert found["threads"] in (1, cores(), many)
    assert found["forward"] > 0
    assert found["backward"] > 0
    assert torch.get_num_threads() == many
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(value, before[name]) for name, value in session.plain.state_dict().items())
    assert all(p.grad is None for p in session.parameters)
    session.journal.close()


def test_threads_with_a_core_each_are_not_measured(tmp_path: Path) -> None:
    session = session_of(tmp_path / "run", 1)
    torch.set_num_threads(1)
    assert crowding(session, 2) is None
    session.journal.close()
