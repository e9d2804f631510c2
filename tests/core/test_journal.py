"""Tests that the journal keeps every complete event, and that the clock loses no time."""

from __future__ import annotations

import errno
import json
import math
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

from segtrain.observe.clock import Clock
from segtrain.observe.journal import Journal, best_evaluation, curve, read_journal
from segtrain.observe.spent import spent


def test_events_come_back_as_written(tmp_path):
    with closing(Journal(tmp_path / "journal.jsonl")) as journal:
        journal.write("run_start", host="köln", pid=os.getpid(), out=Path("runs/a"))
        journal.write(
            "eval",
            step=5,
            scores={"miou": np.float64(0.5), "iou": np.array([0.25, math.nan, 0.75])},
        )
    start, score = read_journal(tmp_path)
    assert (start["event"], start["host"], start["out"]) == (
        "run_start",
        "köln",
        str(Path("runs/a")),
    )
    assert score["scores"] == {"miou": 0.5, "iou": [0.25, None, 0.75]}
    assert start["ts"] <= score["ts"]


def test_every_line_is_strict_json_with_the_event_first(tmp_path):
    with closing(Journal(tmp_path / "journal.jsonl")) as journal:
        journal.write("step", step=np.int64(1), loss=float("nan"), lr=math.inf, name="a\nb\u2028c")
    lines = (tmp_path / "journal.jsonl").read_bytes().split(b"\n")
    assert lines[1:] == [b""]
    assert lines[0].startswith(b'{"event": "step", "ts": ')

    def refuse(text: str) -> None:
        raise AssertionError(text)

    event = json.loads(lines[0], parse_constant=refuse)
    assert (event["step"], event["loss"], event["lr"], event["name"]) == (
        1,
        None,
        None,
        "a\nb\u2028c",
    )


def test_other_ranks_write_nothing(tmp_path):
    with closing(Journal(tmp_path / "journal.jsonl", rank=1)) as journal:
        journal.write("step", step=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [1, 10])
def test_a_torn_last_line_costs_one_event_and_is_said(tmp_path, cut):
    path = tmp_path / "journal.jsonl"
    with closing(Journal(path)) as journal:
        journal.write("step", step=1, loss=0.5)
        journal.write("step", step=2, loss=0.25)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with closing(Journal(path)) as journal:
        journal.write("resume", step=1)
    said: list[str] = []
    steps = [(event["event"], event["step"]) for event in read_journal(path, said.append)]
    if cut == 1:  # only the newline was lost: the event is whole
        assert steps == [("step", 1), ("step", 2), ("resume", 1)]
        assert said == []
    else:
        assert steps == [("step", 1), ("resume", 1)]
        assert len(said) == 1
        assert str(path) in said[0]
        assert "line 2" in said[0]


def test_a_full_disk_is_said_once_and_stops_nothing(tmp_path, monkeypatch, capsys):
    journal = Journal(tmp_path / "journal.jsonl")
    real, room = os.write, [20, 0, 0]

    def small_disk(file: int, data: bytes) -> int:
        if not room:
            return real(file, data)
        space = room.pop(0)
        if space == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:space])

    monkeypatch.setattr(os, "write", small_disk)
    for step in range(5):
        journal.write("step", step=step)
    journal.close()
    assert capsys.readouterr().err.count("has a gap") == 1
    assert [event["step"] for event in read_journal(tmp_path)] == [3, 4]


def test_a_place_that_cannot_be_written_is_one_error_with_a_cure(tmp_path):
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "journal.jsonl"
    with refused("journal-unwritable", file=str(path)):
        Journal(path)
    with refused("journal-unreadable", file=str(tmp_path / "journal.jsonl")):
        read_journal(tmp_path)


def test_the_curve_of_a_resumed_run_has_each_step_once():
    def step(number: int, loss: float) -> dict[str, object]:
        return {"event": "step", "step": number, "loss": loss}

    events = [
        step(1, 1.0),
        step(2, 0.9),
        step(3, 0.8),
        {"event": "resume", "step": 1},
        step(2, 0.7),
        {"event": "eval", "step": 2},
    ]
    assert [(e["step"], e["loss"]) for e in curve(events)] == [(1, 1.0), (2, 0.7)]
    # A resume that could not be written: repeated steps still replace the old ones.
    assert [
        (e["step"], e["loss"])
        for e in curve([step(1, 1.0), step(2, 0.9), step(3, 0.8), step(2, 0.5)])
    ] == [
        (1, 1.0),
        (2, 0.5),
    ]


class Hands:
    """A clock whose hands a test moves."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ((None, None, None), 2),  # of an earlier version
        ((None, None, False), 2),  # begun by an earlier version
        ((True, True, False), 2),
        # the best checkpoint was lost after step 2: only later scores count
        ((True, False, True), 3),
    ],
)
def test_the_best_evaluation_is_the_one_that_the_run_marked(marks, expected):
    evaluations = [
        {"step": step, "scores": {"miou": miou}, **({} if mark is None else {"best": mark})}
        for step, (miou, mark) in enumerate(zip((0.2, 0.5, 0.4), marks), 1)
    ]
    assert (
        best_evaluation([*evaluations, {"step": 4, "scores": {"miou": None}}])["step"] == expected
    )
    assert best_evaluation([]) == {}


def test_phases_add_up_to_the_wall_time():
    hands = Hands()
    clock = Clock(hands)
    hands.time += 1
    with clock("wait"):
        hands.time += 2
    with clock("forward"):
        hands.time += 4
        with clock("wait"):  # inside: charged to the inner phase alone
            hands.time += 8
        hands.time += 16
    assert clock.take() == {"other": 1, "wait": 10, "forward": 20}
    hands.time += 32
    assert clock.take() == {"other": 32}


def test_an_open_span_is_split_where_it_is_taken_and_errors_close_it():
    hands = Hands()
    clock = Clock(hands)
    taken = []

    def work() -> None:
        with clock("eval"):
            hands.time += 1
            taken.append(clock.take())
            hands.time += 2
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert taken == [{"other": 0, "eval": 1}]
    hands.time += 4
    assert clock.take() == {"eval": 2, "other": 4}


@pytest.mark.parametrize("value", ["soon", [1], True, 1e16])
@pytest.mark.parametrize("field", ["step", "hosts", "hash"])
def test_an_event_with_a_value_of_another_type_is_left_out(tmp_path, field, value):
    value = 1 if (field, value) == ("hash", "soon") else value
    lines = [
        {"event": "run_start", "ts": 1.0, field: value},
        {"event": "step", "ts": 2.0, "step": 1, "price": None},
    ]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said: list[str] = []
    events = read_journal(tmp_path, said.append)
    assert [event["event"] for event in events] == ["step"]
    assert "line 1" in said[0]
    assert spent(events).seconds == 0
