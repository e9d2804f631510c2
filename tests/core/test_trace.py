"""Tests that a trace has the steps, the workers' samples, and torch's operators on one time
line.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import refused

from segtrain.base.json_text import write_json
from segtrain.data.stages import Cost, StageTotals
from segtrain.observe import trace
from segtrain.observe.clock import Clock
from segtrain.training.on_demand import Tracer

TINY = "data.scenes=9 data.scene_size=[48,64] data.crop=[32,48] train.batch_size=4 parallel.threads=1 data.workers=1"


def ask(run: Path, first: int, steps: int, asked: float = 1.0) -> None:
    (run / trace.FOLDER).mkdir(exist_ok=True)
    write_json(run / trace.FOLDER / trace.CONTROL, {"asked": asked, "from": first, "steps": steps})


def tracer_of(run: Path) -> tuple[Tracer, Clock, StageTotals]:
    clock, tally = Clock(), StageTotals()
    return Tracer(run, 3, clock, tally), clock, tally


def drive(tracer: Tracer, clock: Clock, tally: StageTotals, steps: range) -> None:
    for done in steps:
        tracer._requests._next_check = 0.0
        with clock("forward"):
            torch.ones(64, 64) @ torch.ones(64, 64)
            began = time.perf_counter()
            time.sleep(0.01)
            tally.add(1, began, Cost(read=0.0041234, decode=0.006))
        tracer.step(done)


def slices(file: Path, name: str) -> list[dict[str, Any]]:
    return [
        e
        for e in json.loads(file.read_text())["traceEvents"]
        if e.get("name") == name and e["ph"] == "X"
    ]


def test_a_trace_has_the_steps_that_were_asked_for_on_one_time_line(tmp_path):
    tracer, clock, tally = tracer_of(tmp_path)
    ask(tmp_path, 4, 2)
    drive(tracer, clock, tally, range(1, 10))
    ask(tmp_path, 4, 2)  # the same request: it is answered
    drive(tracer, clock, tally, range(10, 12))
    file = trace.file_of(tmp_path, 3, 4)
    alone = file.with_suffix(".pt.trace.json")
    assert sorted((tmp_path / "traces").glob("rank*")) == sorted([file, alone])
    forward, samples = slices(file, "forward"), slices(file, "sample")
    assert len(forward) == len(samples) == 2
    assert samples[0]["args"] == {
        "read_ms": 4.123,
        "decode_ms": 6.0,
        "augment_ms": 0.0,
        "assemble_ms": 0.0,
    }
    assert [s["tid"] for s in samples] == [2, 2]
    assert not slices(alone, "forward")
    marked = [
        e["name"]
        for e in json.loads(alone.read_text())["traceEvents"]
        if "ProfilerStep" in e.get("name", "")
    ]
    assert marked == ["ProfilerStep#4", "ProfilerStep#5"]
    products = slices(file, "aten::mm")
    assert len(products) == 2
    for product, loop, sample in zip(products, forward, samples):
        for inner in (product, sample):
            assert (
                loop["ts"] - 500
                <= inner["ts"]
                <= inner["ts"] + inner["dur"]
                <= loop["ts"] + loop["dur"] + 500
            )
    assert clock._recent.maxlen == 200
    assert tally.trace is None


def test_a_request_from_before_the_process_does_not_count(tmp_path):
    ask(tmp_path, 1, 2)
    tracer, clock, tally = tracer_of(tmp_path)
    drive(tracer, clock, tally, range(1, 4))
    assert not list(tmp_path.glob("traces/rank*"))
    ask(tmp_path, 1, 1, asked=2.0)
    drive(tracer, clock, tally, range(4, 6))
    assert trace.file_of(tmp_path, 3, 5).exists()


def test_a_run_that_ends_within_its_trace_writes_what_there_is(tmp_path):
    tracer, clock, tally = tracer_of(tmp_path)
    ask(tmp_path, 2, 50)
    drive(tracer, clock, tally, range(1, 4))
    tracer.close()
    assert len(slices(trace.file_of(tmp_path, 3, 2), "forward")) == 2


def test_a_trace_that_cannot_be_written_stops_no_training(tmp_path, capsys):
    tracer, clock, tally = tracer_of(tmp_path)
    ask(tmp_path, 2, 1)
    trace.file_of(tmp_path, 3, 2).mkdir()
    drive(tracer, clock, tally, range(1, 5))
    assert capsys.readouterr().err.count("training goes on") == 1


@pytest.mark.parametrize("text", ["[]", '{"asked": 1, "from": 1, "steps": 10000}'])
def test_what_is_no_request_is_left_alone(tmp_path, text):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces/control.json").write_text(text)
    assert trace.read_order(tmp_path) is None


def test_every_rank_of_a_run_answers(tmp_path, zygote):
    run = tmp_path / "run"
    with refused("no-spans", file=str(run)):
        trace.trace(run, 5)
    settings = [
        *TINY.split(),
        f"out={run}",
        "train.duration=100000st",
        "eval.every=100000st",
        "log.profile_ms=0",
    ]
    ranks = zygote.start_ranks(2, "train", *settings)
    until = time.monotonic() + 240
    while time.monotonic() < until and any(
        not file.read_bytes().count(b'"phases"') for file in _files(run)
    ):
        time.sleep(0.1)
    asked = zygote.start("profile", "trace", run, "--steps", "3")
    assert asked.wait() == 0, asked.output
    ranks[0].signal(15)
    assert [rank.wait() for rank in ranks] == [75, 75], ranks[0].output
    found = [path for path in sorted(run.glob("traces/rank-*.json")) if ".pt." not in path.name]
    assert [path.name[:10] for path in found] == ["rank-00000", "rank-00001"]
    assert all(str(path) in asked.output for path in found)
    for path in found:
        assert [len(slices(path, phase)) for phase in ("forward", "backward", "update")] == [
            3,
            3,
            3,
        ]
        assert len(slices(path, "sample")) > 3
    assert len({path.name[10:] for path in found}) == 1  # the same steps
    with refused("run-ended", file=str(run)):
        trace.trace(run, 5)


def _files(run: Path) -> list[Path]:
    found = list(run.glob("spans/*.jsonl"))
    return found if len(found) == 2 else [Path("/dev/null")]
