"""Tests that the cost of too many threads is measured before the first step, without side
effects.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from segtrain.base.cores import cores
from segtrain.config import make_config
from segtrain.parallel.cluster import discover
from segtrain.parallel.strategy import start
from segtrain.runfolder.lock import RunLock
from segtrain.training.session import Session, open_session
from segtrain.training.start import oversubscription as crowd
from segtrain.training.start.oversubscription import oversubscription_slowdown


def session_of(out: Path, threads: int, **parallel: object) -> Session:
    config = make_config(
        {
            "out": str(out),
            "name": "crowd",
            "data": {"scenes": 9, "scene_size": [48, 64], "crop": [32, 48]},
            "train": {"batch_size": 4, "duration": "2st", "device": "cpu"},
            "parallel": {"threads": threads, **parallel},
            "log": {"tensorboard": False},
        },
        source="test",
    )
    cluster = discover()
    with start(config.parallel, cluster, config.train.device) as strategy:
        return open_session(config, strategy, RunLock(out))


def crowded(session: Session, images: int) -> dict[str, object] | None:
    size = session.plan.crop_and_scale(0)[0]
    return oversubscription_slowdown(
        session.learner, session.strategy, session.config, size, images, session.output.screen.say
    )


@pytest.fixture(autouse=True)
def _threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("quickest", "times", "said"),
    [
        ("one", (4.0, 3.0), True),
        ("a core each", (1.25, 1.5), True),
        ("all", (1.0, 1.0), False),
    ],
)
def test_the_number_of_threads_with_which_passes_take_least_is_named(
    quickest, times, said, tmp_path, monkeypatch
):
    """Seconds of a forward and of a backward pass are given for each number of threads: 16 on 4
    cores, 4, and 1.
    """
    slow = (4.0, 6.0)
    quick = tuple(seconds / factor for seconds, factor in zip(slow, times))
    numbers = {"one": 1, "a core each": 4, "all": 16}
    took = {n: slow if quickest != "all" or n == 16 else (9.0, 9.0) for n in numbers.values()} | {
        numbers[quickest]: quick
    }
    asked = []

    def passes(
        network: object, batch: torch.Tensor, precision: object, threads: int
    ) -> tuple[float, float]:
        asked.append((threads, len(batch)))
        torch.set_num_threads(threads)
        return took[threads]  # type: ignore[return-value]

    session = session_of(tmp_path / "run", 16)
    lines: list[str] = []
    monkeypatch.setattr(session.output.screen, "say", lines.append)
    monkeypatch.setattr(crowd, "cores", lambda: 4)
    monkeypatch.setattr(crowd, "_passes", passes)
    monkeypatch.setattr(crowd, "runqueue_wait", lambda: 0.0)
    torch.set_num_threads(16)
    assert crowded(session, 3) == {
        "threads": numbers[quickest],
        "forward": times[0],
        "backward": times[1],
    }
    assert sorted(asked) == [(1, 3), (4, 3), (16, 3)]
    assert torch.get_num_threads() == 16
    assert [f"parallel.threads={numbers[quickest]}" in line for line in lines] == [True] * said
    session.output.close()


@pytest.mark.parametrize(("lacked", "known"), [(0.2, False), (0.05, True), (None, True)])
def test_what_threads_cost_is_not_known_where_other_programs_have_the_cores(
    lacked, known, tmp_path, monkeypatch
):
    """One thread is measured for a second, ``lacked`` of which it had no core; None: the system
    does not count that.
    """
    now, session = [0.0], session_of(tmp_path / "run", 16)
    lines: list[str] = []

    def passes(
        network: object, batch: torch.Tensor, precision: object, threads: int
    ) -> tuple[float, float]:
        now[0] += 1.0
        return 1.0, 1.0  # as quick with 16 threads, to which the system gives most of the cores

    monkeypatch.setattr(session.output.screen, "say", lines.append)
    monkeypatch.setattr(crowd, "cores", lambda: 4)
    monkeypatch.setattr(crowd, "_passes", passes)
    monkeypatch.setattr(crowd, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(crowd, "runqueue_wait", lambda: None if lacked is None else lacked * now[0])
    torch.set_num_threads(16)
    assert (crowded(session, 3) is not None) == known
    assert ["is not known: other programs had the cores for 20%" in line for line in lines] == [
        True
    ] * (not known)
    session.output.close()


def test_measuring_the_cost_of_threads_leaves_the_network_alone(tmp_path, monkeypatch):
    # other programs may have the cores meanwhile
    monkeypatch.setattr(crowd, "runqueue_wait", lambda: None)
    many = 4 * cores()
    session = session_of(tmp_path / "run", many)
    before = {name: value.clone() for name, value in session.learner.plain.state_dict().items()}
    numbers = torch.get_rng_state()
    torch.set_num_threads(many)
    found = crowded(session, 2)
    assert found is not None
    assert torch.get_num_threads() == many
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(
        torch.equal(value, before[name])
        for name, value in session.learner.plain.state_dict().items()
    )
    assert all(p.grad is None for p in session.learner.parameters)
    session.output.close()


def test_threads_with_a_core_each_are_not_measured(tmp_path):
    session = session_of(tmp_path / "run", 1)
    torch.set_num_threads(1)
    assert crowded(session, 2) is None
    session.output.close()
