"""Tests that a deadline or a budget ends a run in time, on all ranks, with its last checkpoint, and
says so early.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from small_runs import NET, assert_same_weights, command, digests, final
from waiting import until

from segtrain.errors import EXIT_RESUMABLE
from segtrain.insight.report.summary import _state
from segtrain.insight.runs.folder import load
from segtrain.observe.journal import read_journal
from segtrain.observe.spent import spent

LONG = [
    "train.duration=100000st",
    "eval.every=100000st",
    "checkpoint.every=100000st",
    "log.spans=false",
]


def events_of(out: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_journal(out) if event["event"] == kind]


def test_a_deadline_ends_a_run_and_a_larger_one_goes_on(zygote, tmp_path):
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


def test_all_ranks_stop_at_the_same_step_and_go_on_exactly(zygote, tmp_path):
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
