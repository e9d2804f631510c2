"""Spot machines: closed forms against a simulation of events, and the figures of a plan."""

from __future__ import annotations

import heapq
import json
import random
import statistics
from collections.abc import Sequence

import pytest
from conftest import refused

from segtrain.cli import main
from segtrain.insight.plan import spot
from segtrain.insight.plan.spot import market_of

HOUR = 3600.0


def preempted(
    work: float,
    every: float,
    checkpoint: float,
    resume: float,
    rates: Sequence[float],
    rng: random.Random,
) -> float:
    """Seconds of a run of ``work`` seconds on hosts that fail, or are taken away, at ``rates`` per
    second.

    See ``spot.expected_seconds`` for the rest. A host that is lost is replaced by one that is lost
    at the same rate.
    """
    lost = [(rng.expovariate(rate), host) for host, rate in enumerate(rates) if rate]
    heapq.heapify(lost)
    now = saved = 0.0
    begin = 0.0  # of the work since the last checkpoint
    while saved < work:
        part = min(every, work - saved)
        end = begin + part + checkpoint
        if not lost or lost[0][0] >= end:
            saved, begin = saved + part, end
            now = end
            continue
        at, host = heapq.heappop(lost)
        heapq.heappush(lost, (at + rng.expovariate(rates[host]), host))
        begin = at + resume
    return now


@pytest.mark.parametrize(
    ("hosts", "rate", "every"), [(1, 0.05, 1800.0), (8, 0.05, 600.0), (64, 0.02, 300.0)]
)
def test_the_time_with_preemptions_is_that_of_the_simulation(hosts, rate, every):
    rng, work = random.Random(4), 200 * every
    found = [preempted(work, every, 20.0, 400.0, [rate / HOUR] * hosts, rng) for _ in range(200)]
    expected = spot.expected_seconds(work, every, 20.0, 400.0, hosts * rate / HOUR)
    assert statistics.mean(found) == pytest.approx(expected, rel=0.02)
    assert expected > work * (1 + 20 / every)


@pytest.mark.parametrize(("minutes", "expected"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_interval_is_that_of_the_paper(minutes, expected):
    """Captions of figures 3 to 5 of Daly's paper: a dump takes 5 minutes, and failures are
    ``minutes`` apart.
    """
    assert spot.checkpoint_interval(5 * 60, 1 / (60 * minutes)) / 60 == pytest.approx(
        expected, abs=0.5 if expected > 10 else 0.05
    )


@pytest.mark.parametrize(
    ("share", "rate"), [(0.35, ""), (0.0, "0.05/h"), (1.5, "0.05/h"), (0.35, "0/h"), (0.35, "5")]
)
def test_half_a_market_is_refused(share, rate, tmp_path):
    with refused("bad-spot", found=[share, rate]):
        market_of(share, rate, tmp_path)


def test_a_job_that_loses_its_hosts_too_soon_does_not_end(capsys, tmp_path):
    call = [
        "plan",
        "data.scenes=40",
        "train.duration=2000ep",
        "--where",
        "ml.g5.xlarge",
        "--hosts",
        "1,2",
    ]
    file = tmp_path / "plan.html"
    assert main([*call, "--spot", "0.35", "--preemptions", "100000/h", "--page", str(file)]) == 0
    text = capsys.readouterr().out
    assert text.count("does not end") == 3  # two offers, and the note
    assert text.count("does not end") == file.read_text(encoding="utf-8").count("does not end")
    assert main([*call, "--spot", "0.35", "--preemptions", "100000/h", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spot"] == [None, None]
    with refused("bad-spot"):
        market_of(0.0, "")
