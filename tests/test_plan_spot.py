"""The planner's closed forms against an event simulation, and what only the simulation can tell."""

from __future__ import annotations

import json
import random
import statistics
from math import sqrt
from pathlib import Path

import numpy as np
import plan_simulation as simulate
import pytest
from conftest import refused
from test_plan import TERMS, a_run, needs_torch

from segtrain.cli import main
from segtrain.plan import model, spot
from segtrain.plan.market import Market, market_of
from segtrain.plan.offers import plan

HOUR = 3600.0


@pytest.mark.parametrize("ranks", [2, 16, 1024])
def test_a_ring_of_equal_ranks_takes_what_the_closed_form_says(ranks: int) -> None:
    every = np.full(ranks, 5e9), np.full(ranks, 2e-5)
    assert simulate.ring(np.zeros(ranks), 1e8, *every).max() == pytest.approx(
        model.ring(1e8, ranks, 5e9, 2e-5), rel=0.02
    )


@pytest.mark.parametrize("size", [1e4, 1e8])
@pytest.mark.parametrize("ranks", [2, 16, 1024])
def test_a_tree_of_equal_ranks_takes_what_the_closed_form_says(ranks: int, size: float) -> None:
    """Once the latency decides, and once the bandwidth."""
    every = np.full(ranks, 5e9), np.full(ranks, 2e-5)
    found = simulate.tree(np.zeros(ranks), size, *every).max()
    assert found == pytest.approx(model.tree(size, ranks, 5e9, 2e-5), rel=0.02)
    if ranks == 1024:
        assert found < simulate.ring(np.zeros(ranks), size, *every).max()


def test_a_tree_waits_for_its_last_rank_and_its_slowest_link() -> None:
    ranks, size = 37, 1e8
    ready, bandwidth, latency = np.zeros(ranks), np.full(ranks, 5e9), np.full(ranks, 2e-5)
    plain = simulate.tree(ready, size, bandwidth, latency)
    ready[11] = 1.0
    assert simulate.tree(ready, size, bandwidth, latency).max() == pytest.approx(1 + plain.max(), rel=0.02)
    bandwidth[7] /= 10
    assert simulate.tree(0 * ready, size, bandwidth, latency).max() == pytest.approx(
        model.tree(size, ranks, 5e8, 2e-5), rel=0.02
    )


@pytest.mark.parametrize("way", ["ring", "tree"])
@pytest.mark.parametrize("bandwidth", [2e9, 2e10])
def test_a_step_takes_what_the_closed_form_says(bandwidth: float, way: str) -> None:
    """With 64 equal ranks: once the network decides, and once the device."""
    sizes = model.bucket_sizes(107e6)
    group = simulate.Group(64, 0.25, 0.0, bandwidth, 2e-5)
    seconds = [getattr(model, way)(size, 64, bandwidth, 2e-5) for size in sizes]
    hidden = model.exposed(model.BACKWARD * 0.25, seconds)
    found = simulate.step([group], sizes, np.random.default_rng(1), getattr(simulate, way))
    assert found == pytest.approx(0.25 + hidden, rel=0.02)


@pytest.mark.parametrize("ranks", [8, 256, 4096])
def test_the_slowest_of_many_ranks_decides(ranks: int) -> None:
    rng = np.random.default_rng(2)
    found = [simulate.step([simulate.Group(ranks, 0.25, 0.03)], [], rng) for _ in range(400)]
    assert statistics.mean(found) == pytest.approx(0.25 * model.slowest(ranks, 0.03), rel=0.02)


def test_the_slow_machines_of_a_mixed_group_decide() -> None:
    fast, slow = simulate.Group(28, 0.1), simulate.Group(4, 0.25)
    rng = np.random.default_rng(3)
    assert simulate.step([fast, slow], [], rng) == pytest.approx(0.25)
    narrow = simulate.Group(1, 0.1, bandwidth=1e8)
    slow_link = model.ring(1e8, 29, 1e8, 3e-5)
    assert simulate.step([fast, narrow], [1e8], rng) == pytest.approx(0.1 + slow_link, rel=0.02)


@pytest.mark.parametrize(("hosts", "rate", "every"), [(1, 0.05, 1800.0), (8, 0.05, 600.0), (64, 0.02, 300.0)])
def test_the_time_with_preemptions_is_that_of_the_simulation(hosts: int, rate: float, every: float) -> None:
    rng, work = random.Random(4), 200 * every
    found = [simulate.preempted(work, every, 20.0, 400.0, [rate / HOUR] * hosts, rng) for _ in range(200)]
    expected = spot.expected(work, every, 20.0, 400.0, hosts * rate / HOUR)
    assert statistics.mean(found) == pytest.approx(expected, rel=0.02)
    assert expected > work * (1 + 20 / every)


def test_a_run_of_thousands_of_ranks_of_two_kinds_whose_hosts_fail() -> None:
    """256 hosts of 8 ranks. A quarter of them has devices that take 1.25 times as long, and is lost ten times as often."""
    rng, device, steps, every = np.random.default_rng(5), 0.25, 20_000, 300.0
    sizes, link = model.bucket_sizes(107e6), (3e9, 2e-5)
    groups = [simulate.Group(1536, device, 0.01, *link), simulate.Group(512, 1.25 * device, 0.01, *link)]
    step = statistics.mean(simulate.step(groups, sizes, rng) for _ in range(2))
    hidden = model.exposed(model.BACKWARD * 1.25 * device, [model.ring(size, 2048, *link) for size in sizes])
    closed = 1.25 * device * model.slowest(512, 0.01) + hidden  # the other kind never ends last
    assert step == pytest.approx(closed, rel=0.02)
    rates = [0.002 / HOUR] * 192 + [0.02 / HOUR] * 64
    draws = random.Random(6)
    found = [simulate.preempted(steps * step, every, 20.0, 400.0, rates, draws) for _ in range(200)]
    expected = spot.expected(steps * closed, every, 20.0, 400.0, sum(rates))
    assert statistics.mean(found) == pytest.approx(expected, rel=0.02)
    assert expected > 1.15 * steps * closed


@pytest.mark.parametrize(("checkpoint", "rate"), [(5.0, 0.05 / HOUR), (60.0, 1 / HOUR)])
def test_the_interval_is_the_best_one(checkpoint: float, rate: float) -> None:
    best = spot.interval(checkpoint, rate)
    tried = [best * 1.1**k for k in range(-20, 21)]
    least = min(tried, key=lambda every: spot.expected(1e5, every, checkpoint, 300.0, rate))
    assert least == pytest.approx(best, rel=0.11)
    assert best == pytest.approx(sqrt(2 * checkpoint / rate), rel=0.1)  # Young's


@pytest.mark.parametrize(("minutes", "expected"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_interval_is_that_of_the_paper(minutes: float, expected: float) -> None:
    """Captions of figures 3 to 5 of Daly's paper: a dump takes 5 minutes, and failures are ``minutes`` apart."""
    assert spot.interval(5 * 60, 1 / (60 * minutes)) / 60 == pytest.approx(expected, abs=0.5 if expected > 10 else 0.05)


def test_the_spot_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run", augment=0.001, wait=0.1)
    saved = [{"event": "checkpoint", "ts": 2.0 + k, "step": k, "file": "f", "seconds": 20.0} for k in (1, 2)]
    with (run / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(event) + "\n" for event in saved)
    market = market_of(0.35, "0.05/h", run)
    assert market == Market(0.35, pytest.approx(0.05 / HOUR), 20.0, True)
    assert market is not None
    (offer,) = [one for one in plan(TERMS, (4,)).offers if one.machine.name == "ml.p4d.24xlarge"]
    rate = 4 * 0.05 / HOUR
    every = spot.interval(20.0, rate)
    seconds = spot.expected(offer.seconds[1], every, 20.0, market.resume, rate)
    assert market.dollars(offer)[1] == pytest.approx(0.35 * 4 * float(offer.machine.price or 0) * seconds / HOUR)

    call = ["plan", "--like", str(run), "--hosts", "1,2"]
    assert main([*call, "--spot", "0.35", "--preemptions", "0.05/h"]) == 0
    text = capsys.readouterr().out
    assert "dollars on spot" in text
    assert "spot: 35% of the price on demand and 0.05 preemptions per hour" in text
    assert "a checkpoint of 20 s (measured)" in text
    assert main([*call, "--spot", "0.35", "--preemptions", "0.05/h", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert all(0 < one["dollars"][0] < offer["dollars"][0] for one, offer in zip(said["spot"], said["offers"]))
    assert main(call) == 0
    assert "dollars on spot" not in capsys.readouterr().out


@pytest.mark.parametrize(("share", "rate"), [(0.35, ""), (0.0, "0.05/h"), (1.5, "0.05/h"), (0.35, "0/h"), (0.35, "5")])
def test_half_a_market_is_refused(share: float, rate: str, tmp_path: Path) -> None:
    with refused("bad-spot", found=[share, rate]):
        market_of(share, rate, tmp_path)


@needs_torch
def test_spot_machines_of_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    """As with a run, but with an assumed time of a checkpoint."""
    call = ["plan", "data.scenes=40", "train.duration=2000ep", "--where", "ml.g5.xlarge", "--hosts", "1,2"]
    spot_of = ["--spot", "0.35", "--preemptions", "0.05/h"]
    assert main([*call, *spot_of]) == 0
    text = capsys.readouterr().out
    assert "dollars on spot" in text
    assert "a checkpoint of 10 s (assumed)" in text
    assert main([*call, *spot_of, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["spot"]) == len(said["offers"]) == 2
    market = market_of(0.35, "0.05/h")
    assert market is not None
    for row, offer in zip(said["spot"], said["offers"]):
        rate = offer["hosts"] * 0.05 / HOUR
        work = offer["seconds"][1] - offer["saving"]
        seconds = spot.expected(work, spot.interval(10.0, rate), 10.0, market.resume, rate)
        assert row["seconds"][1] == pytest.approx(seconds)
        assert row["dollars"][1] == pytest.approx(0.35 * offer["dollars"][1] * seconds / offer["seconds"][1])
    assert main([*call, "--spot", "0.35"]) == 2
    assert "--preemptions" in capsys.readouterr().err


def test_without_preemptions_only_the_checkpoints_cost() -> None:
    assert spot.expected(1000.0, 100.0, 2.0, 300.0, 0.0) == 1020
    assert spot.expected(1000.0, 100.0, 2.0, 300.0, 1e-12) == pytest.approx(1020)
    assert spot.interval(100.0, 1.0) == 1.0


@needs_torch
def test_a_job_that_loses_its_hosts_too_soon_does_not_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call = ["plan", "data.scenes=40", "train.duration=2000ep", "--where", "ml.g5.xlarge", "--hosts", "1,2"]
    file = tmp_path / "plan.html"
    assert main([*call, "--spot", "0.35", "--preemptions", "100000/h", "--page", str(file)]) == 0
    text = capsys.readouterr().out
    assert text.count("does not end") == 3  # two offers, and the note
    assert "does not end" in file.read_text(encoding="utf-8")
    assert main([*call, "--spot", "0.35", "--preemptions", "100000/h", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spot"] == [None, None]
    with refused("bad-spot"):
        market_of(0.0, "")
