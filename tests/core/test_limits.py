"""Tests that a deadline or a budget ends a run in time, on all ranks, with its last checkpoint, and
says so early.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import refused
from small_runs import NET, assert_same_weights, command, digests, final
from waiting import until

from segtrain.config import load_config
from segtrain.config.limits import dollars_of, seconds_of
from segtrain.errors import EXIT_RESUMABLE
from segtrain.insight.report.summary import _state
from segtrain.insight.runs.folder import load
from segtrain.machines import machines
from segtrain.observe.journal import read_journal
from segtrain.observe.spent import Spent, spent
from segtrain.parallel.cluster import Cluster
from segtrain.training.limits import CLOSING_S, SPARE, Limit, LimitGuard, limit_of
from segtrain.training.start.derived import Plan
from segtrain.training.start.price import price_of, refuse_budget

LONG = [
    "train.duration=100000st",
    "eval.every=100000st",
    "checkpoint.every=100000st",
    "log.spans=false",
]


def events_of(out: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_journal(out) if event["event"] == kind]


def test_a_deadline_ends_a_run_and_a_larger_one_goes_on(zygote: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = zygote.start(*command(out, *LONG, "train.deadline=6s", "train.price=3600"))
    assert process.wait() == 0, process.output
    (end,) = events_of(out, "run_end")
    assert end["status"] == "stopped"
    assert end["step"] == final(out)["state"]["step"] < 100_000
    assert [event["reason"] for event in events_of(out, "checkpoint")][-1] == "limit"
    told = events_of(out, "limit")
    assert told[-1]["what"] == "reached"
    assert told[-1]["dollars"] == pytest.approx(told[-1]["seconds"])  # one dollar per second
    assert "stopped by train.deadline=6s after step" in process.output
    assert _state(load(out))[1].startswith("Stopped by train.deadline=6s")

    spent_before = spent(read_journal(out)).seconds
    again = zygote.start(*command(out, *LONG, "train.deadline=1s"))
    assert again.wait() == 2
    assert "train.deadline=1s is used up" in again.output
    more = zygote.start(*command(out, *LONG, "train.deadline=1h"))
    until(lambda: max(digests(out)) > end["step"])
    more.signal(signal.SIGTERM)
    assert more.wait() == EXIT_RESUMABLE, more.output
    assert final(out)["state"]["step"] > end["step"]
    assert spent(read_journal(out)).seconds > spent_before


def test_all_ranks_stop_at_the_same_step_and_go_on_exactly(zygote: Any, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert [rank.wait() for rank in zygote.start_ranks(2, *command(whole, *NET))] == [0, 0]
    ranks = zygote.start_ranks(2, *command(out, *NET, "train.budget=0.001$", "train.price=3600"))
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].output
    assert events_of(out, "run_end")[-1]["status"] == "stopped"
    assert final(out)["state"]["step"] < 12
    again = zygote.start_ranks(2, *command(out, *NET))
    assert [rank.wait() for rank in again] == [0, 0], again[0].output
    assert digests(out) == digests(whole)
    assert_same_weights(final(out), final(whole))


def test_a_budget_needs_a_price() -> None:
    config = load_config(None, ["train.budget=20$"])
    with refused("no-price", found=""):
        refuse_budget(config, "")
    assert price_of(load_config(None, ["train.price=1.5"]), "") == 1.5
    assert price_of(config, "ml.g5.xlarge") == machines()["ml.g5.xlarge"].price > 1
    refuse_budget(config, "ml.g5.xlarge")


def test_what_earlier_processes_took_counts() -> None:
    events = [
        {"event": "run_start", "ts": 110.0, "begun": 100.0, "hosts": 2, "price": 36.0},
        {"event": "step", "ts": 200.0},  # killed: its last event is its end
        {"event": "run_start", "ts": 1000.0, "begun": 1000.0, "hosts": 1, "price": None},
        {"event": "run_end", "ts": 1100.0},
        {"event": "run_start", "ts": 2000.0},  # of an earlier version
        {"event": "step", "ts": 2010.0},
    ]
    assert spent(events, 18.0) == Spent(210.0, pytest.approx(100 * 0.02 + 110 * 0.005))
    assert spent(events) == Spent(210.0, None)
    assert spent([]) == Spent(0.0, 0.0)


def test_the_tighter_limit_counts() -> None:
    before = Spent(600.0, 2.0)
    config = load_config(None, ["train.deadline=1h", "train.budget=10$", "train.price=4"])
    limit = limit_of(config, Cluster(), before)
    assert limit is not None
    assert (limit.name, limit.left_s) == ("train.deadline=1h", 3000)
    limit = limit_of(config, Cluster(hosts=3), before)
    assert limit is not None
    assert (limit.name, limit.left_s) == ("train.budget=10$", pytest.approx(8 / 12 * 3600))
    assert limit_of(load_config(None, []), Cluster(), before) is None


class Time:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def a_guard(
    left: float, steps: int = 1000, every: int = 100, **more: Any
) -> tuple[LimitGuard, Time, list[str], list[Any]]:
    plan: Any = Plan(
        steps,
        0,
        every,
        every,
        100,
        10,
        None,
        "thread",
        more.pop("crops", ((steps, (10, 10), 1.0),)),
        (1, 1),
        (1, 1),  # type: ignore[arg-type]
    )
    clock, said, noted = Time(), [], []
    limit = Limit("train.deadline=X", left, left, Spent(), 0.01)
    guard = LimitGuard(
        limit, plan, 20, 0.0, lambda: 0.5, said.append, lambda **fields: noted.append(fields), clock
    )
    return guard, clock, said, noted


def test_the_predicted_end_is_that_of_a_run_with_these_times() -> None:
    """A step takes 1 s, an evaluation 7 s, a checkpoint 2 s, and 0.5 s until it is written."""
    guard, clock, said, noted = a_guard(600.0)
    step = 0
    predicted = []
    while step < 1000 and not guard.over(step, 1):
        clock.now += 1.0
        step += 1
        if step % 10 == 0:
            guard.logged(step)
            predicted.append(guard.ends_at(step))
        if step % 100 == 0:
            clock.now += 9.0
            guard.evaluated(7.0)
            guard.saved(2.0)
    assert guard.reached
    assert abs(predicted[-1] - (step + 1)) <= 1  # the step that runs until the vote is read
    assert all(abs(end - step) <= 3 for end in predicted[10:])  # after the first evaluation
    left = 600 - (clock.now + 1 - 50.0)
    assert 0 <= left - (SPARE * 2.5 + CLOSING_S) <= 2
    assert (
        said[0]
        == f"limit     train.deadline=X will end this run at about step {predicted[1]:,} of 1,000"
    )
    assert "left: train.deadline=X will end this run" in said[-1]
    assert [fields["what"] for fields in noted][-2:] == ["near", "reached"]
    assert len(said) <= 4


def test_a_run_within_its_limit_says_what_it_needs() -> None:
    guard, clock, said, _ = a_guard(10_000.0, every=1000)
    for step in range(1, 41):
        clock.now += 1.0
        assert not guard.over(step, 1)
        guard.logged(step)
    assert guard.ends_at(40) == 1000
    assert said == [
        "limit     the run will take about 16m 40s and $10.00 more, within train.deadline=X"
    ]


def test_larger_crops_later_take_longer() -> None:
    guard, clock, _, _ = a_guard(
        800.0, every=10_000, crops=((500, (10, 10), 0.5), (1000, (20, 20), 1.0))
    )
    for step in (1, 2):
        clock.now += 1.0
        guard.logged(step)
    # 500 s for the first half. The rest of 800 s less the reserve is for steps of 4 s.
    assert guard.ends_at(2) == pytest.approx(500 + (300 - SPARE * 0.5 - CLOSING_S) / 4, abs=1)


def test_texts_of_limits() -> None:
    assert seconds_of("90m") == 5400
    assert seconds_of("1.5d") == 129_600
    assert seconds_of("2 h") is None
    assert dollars_of("20.50$") == 20.5
    assert dollars_of("$20") is None
