"""Tests that a rank that does not arrive is named with its phase, and that all stacks are written
in time.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_runs import QUIET
from waiting import until

from segtrain.base import compat
from segtrain.config import Parallel
from segtrain.observe.hang import MOST, RankPosition, Watchdog
from segtrain.observe.journal import read_journal
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import Strategy

ROOT = Path(__file__).parents[2]
LIMIT_S = 300  # of a wait in these tests; what they wait for comes within a few seconds
SMALL = [*QUIET, "train.batch_size=6", "log.hang_s=4", "parallel.timeout_s=600"]

# Rank 1 sleeps in step 3, before the sum of the totals or behind it, or in the first evaluation.
PLANT = """
import os, time
from segtrain.training import learner, session, step
rank = int(os.environ["RANK"])

def sleeping_here():
    open("asleep", "w").close()
    time.sleep(600)

def asleep_at(module, name, call):
    kept, calls = getattr(module, name), [0]
    def planted(*args, **kwargs):
        calls[0] += 1
        if rank == 1 and calls[0] == call:
            sleeping_here()
        return kept(*args, **kwargs)
    setattr(module, name, planted)

{plant}
from segtrain.cli import main
raise SystemExit(main({arguments!r}))
"""
PLANTS = {
    "device": ('asleep_at(learner.Learner, "micro", 3)', 3),
    "forward": ('asleep_at(step, "_share", 3)', 3),
    "eval": ('asleep_at(session, "evaluate", 1)', 9),
}


def whole(line: str) -> bool:
    return line.startswith("hang: ") and line.endswith("ends the job")


def hang_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if whole(line)]


def until_said(processes: list[Any], words: str) -> str:
    """Rank 0's sentence with ``words``; the ranks, which would sleep on, are ended, and rank 1 with
    them.

    On a busy machine, an earlier step may take so long that it is called a hang, too.
    """

    def said() -> list[str]:
        assert "Traceback" not in processes[0].output, processes[0].output
        return [line for line in hang_lines(processes[0].output) if words in line]

    try:
        until(said, "no word of a hang")
        return said()[0]
    finally:
        for process in processes:
            process.signal(signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize(
    ("phase", "strategy"), [("forward", "ddp"), ("eval", "smddp"), ("device", "fsdp")]
)
def test_a_rank_that_sleeps_is_named_with_its_phase(zygote, tmp_path, phase, strategy):
    if strategy == "fsdp" and not hasattr(
        pytest.importorskip("torch.distributed.fsdp"), "fully_shard"
    ):
        pytest.skip("this torch has no FSDP2")
    plant, step = PLANTS[phase]
    env = {"PYTHONPATH": str(ROOT / "launch/core/rehearse/standin")} if strategy == "smddp" else {}
    code = PLANT.format(plant=plant, arguments=["train", *SMALL, f"parallel.strategy={strategy}"])
    processes = zygote.start_ranks(3, code=code, cwd=tmp_path, **env)
    said = until_said(processes, "in sleeping_here (<rank>:")
    assert (tmp_path / "asleep").exists()
    assert ": rank 1 (host " in said
    assert f"did not arrive: rank 1 is at step {step}, phase {phase} for " in said
    assert "; rank 0 is at step" in said
    for rank in range(3):
        report = (tmp_path / f"run/hang/rank-{rank:05d}.txt").read_text()
        assert f"rank {rank}  host " in report
        assert "last spans, newest first" in report
        assert report.count("forward") >= 2
        assert "Current thread" in report
        assert "in watching" not in report
        assert ("in sleeping_here" in report) == (rank == 1)
    assert f"step {step}, phase {phase}," in (tmp_path / "run/hang/rank-00001.txt").read_text()
    (event,) = [
        event
        for event in read_journal(tmp_path / "run")
        if event["event"] == "hang" and event["text"] == said
    ]
    assert [notice["rank"] for notice in event["ranks"]] == [0, 1, 2]
    assert event["ranks"][1]["passed"] < min(
        event["ranks"][0]["passed"], event["ranks"][2]["passed"]
    )


def test_a_process_that_is_stopped_does_not_answer(zygote, tmp_path):
    plant = """
import signal
kept = learner.Learner.micro
def stops(*args):
    stops.calls += 1
    if rank == 1 and stops.calls == 5:
        os.kill(os.getpid(), signal.SIGSTOP)
    return kept(*args)
stops.calls = 0
learner.Learner.micro = stops
"""
    code = PLANT.format(plant=plant, arguments=["train", *SMALL])
    said = until_said(zygote.start_ranks(2, code=code, cwd=tmp_path), "rank 0 is at step 5")
    assert "rank 1 did not answer" in said
    assert "rank 0 is at step 5, phase sync (in a sum over ranks)" in said


class OneBoard:
    """A board in one process."""

    def __init__(self) -> None:
        self.raised: set[int] = set()
        self.notices: dict[int, dict[int, str]] = {}

    def raise_alarm(self, number: int) -> None:
        self.raised.add(number)

    def is_raised(self, number: int) -> bool:
        return number in self.raised

    def post(self, number: int, rank: int, text: str) -> None:
        self.notices.setdefault(number, {})[rank] = text

    def posted(self, number: int) -> dict[int, str]:
        return dict(self.notices.get(number, {}))


class Loop:
    """What a watchdog looks at, set by hand."""

    def __init__(
        self,
        run: Path,
        rank: int = 0,
        world: int = 1,
        board: Any = None,
        hang_s: float = 0.2,
        place: RankPosition | None = None,
        **more: Any,
    ):
        self.place, self.said = place or RankPosition(1, "wait", 0, False), list[str]()
        self.looked = threading.Semaphore(0)
        self.dog = Watchdog(
            self.look,
            lambda: [("wait", 0.0, 1.0), ("forward", 1.0, 3.5)],
            run,
            rank=rank,
            world_size=world,
            hang_s=hang_s,
            limit_s=9,
            board=board,
            report=lambda _, text: self.said.append(text),
            **more,
        )

    def look(self) -> RankPosition:
        if hasattr(self, "looked"):
            self.looked.release()
        return self.place

    def looks(self, count: int) -> None:
        for _ in range(count):
            assert self.looked.acquire(timeout=LIMIT_S)


def test_a_loop_that_goes_on_or_scores_for_long_is_left_alone(tmp_path):
    scores = Loop(tmp_path, place=RankPosition(3, "eval", 7, False))
    patient = Loop(tmp_path, patient=lambda: True)
    for each in (scores, patient):
        each.looks(30)
        each.dog.close()
        assert each.said == []
    assert not (tmp_path / "hang").exists()


def test_a_loop_that_waits_inside_an_evaluations_sum_hangs(tmp_path):
    loop = Loop(tmp_path, place=RankPosition(3, "eval", 7, True))
    until(lambda: loop.said, "not found")
    loop.dog.close()
    assert "rank 0 is at step 3, phase eval (in a sum over ranks)" in loop.said[0]
    assert "all ranks" not in loop.said[0]
    text = (tmp_path / "hang/rank-00000.txt").read_text()
    assert "pending: a sum over ranks" in text
    assert text.index("2.500  forward") < text.index("1.000  wait")
    assert "test_hang.py" in text


def test_one_report_a_hang_and_a_few_a_process(tmp_path):
    loop = Loop(tmp_path)
    until(lambda: len(loop.said) == 1, "not found")
    loop.looks(30)
    assert len(loop.said) == 1
    for hang in range(2, MOST + 3):
        loop.place = RankPosition(hang, "wait", hang, False)
        if hang <= MOST:
            until(lambda hang=hang: len(loop.said) == hang, "not found")  # type: ignore[misc]
    until(lambda: not loop.dog._thread.is_alive(), "still looks")
    assert len(loop.said) == MOST
    assert (tmp_path / "hang/rank-00000.txt").read_text().count("last spans") == MOST


def test_a_rank_that_works_answers_the_alarm_of_another(tmp_path):
    board = OneBoard()
    scores = Loop(tmp_path, 1, 2, board, hang_s=0.4, place=RankPosition(9, "eval", 20, False))
    waits = Loop(tmp_path, 0, 2, board, hang_s=0.4, place=RankPosition(9, "eval", 21, True))
    until(lambda: waits.said, "not found")
    for each in (scores, waits):
        each.dog.close()
    assert "rank 1 (host " in waits.said[0]
    assert "did not arrive: rank 1 is at step 9, phase eval for" in waits.said[0]
    assert scores.said == []


def test_a_store_that_is_gone_stops_no_report(tmp_path):
    class Gone(OneBoard):
        def is_raised(self, number: int) -> bool:
            raise RuntimeError("Connection reset by peer")

    loop = Loop(tmp_path, 0, 4, Gone())
    until(lambda: loop.said, "not found")
    loop.dog.close()
    assert "the other ranks cannot be asked; rank 0 is at step 1, phase wait" in loop.said[0]


def test_a_sum_that_the_device_has_not_ended_is_pending():
    """NCCL's collectives return at once; the event behind one says when the device has passed
    it.
    """
    passed: list[bool] = [False]
    strategy = Strategy("ddp", Cluster(), torch.device("cpu"), Parallel())
    assert not strategy.summing
    strategy.begun = strategy.ended = 1
    strategy._passed = SimpleNamespace(query=lambda: passed[0])
    assert strategy.summing
    passed[0] = True
    assert not strategy.summing
    strategy.begun = 2
    assert strategy.summing


def test_the_watchdogs_thread_opens_no_context_on_another_gpu(monkeypatch):
    """CUDA gives a thread GPU 0 until it chooses another: a question asked there would cost every
    rank's memory on that one.
    """
    chosen, asked = threading.local(), []

    @contextlib.contextmanager
    def choose(device: torch.device) -> Iterator[None]:
        chosen.index = device.index
        yield
        del chosen.index

    def query() -> bool:
        asked.append(getattr(chosen, "index", 0))
        return True

    monkeypatch.setattr(torch.cuda, "device", choose)
    strategy = Strategy("ddp", Cluster(), torch.device("cuda", 3), Parallel())
    strategy._passed = SimpleNamespace(query=query)
    thread = threading.Thread(target=lambda: strategy.summing)
    thread.start()
    thread.join()
    assert asked == [3]


def test_the_stacks_are_followed_by_the_collectives_that_torch_remembers(run_ranks, tmp_path):
    code = f"""
import torch
from pathlib import Path
from segtrain.config import Parallel
from segtrain.observe.hang import RankNotice, Watchdog, _last_collectives
from segtrain.base.compat import last_collectives
from segtrain.parallel.cluster import discover
from segtrain.parallel.strategy import start
with start(Parallel(), discover()) as strategy:
    strategy.reduce(torch.ones(5, 7))
    here = Watchdog.__new__(Watchdog)
    here._path, here._recent = Path({str(tmp_path)!r}, f"rank-{{strategy.rank}}.txt"), lambda: [("sync", 0.0, 1.0)]
    here._write(RankNotice(3, "sync", 9, True, strategy.rank, "host", 5.0, "line"))
    print(len(last_collectives(1)))
"""
    kept = run_ranks(code, 2)
    for rank, output in enumerate(kept):
        text = (tmp_path / f"rank-{rank}.txt").read_text()
        assert "stacks of all threads" in text
        if output.strip() == "0":
            pytest.skip("this torch records no collectives of gloo")
        stacks, _, collectives = text.partition("last collectives of torch")
        assert "_write" in stacks
        assert re.search(r"all_reduce +\[\[5, 7\]\]", collectives)


@pytest.mark.parametrize(
    "name", ["_dump_nccl_trace_json", "_dump_nccl_trace", "_dump_fr_trace_json"]
)
def test_collectives_are_read_in_each_form_of_torch(name, monkeypatch):
    kept = {"entries": [{"time_created_ns": 1}, {"time_created_ns": 3}, {"time_created_ns": 2}]}
    content = json.dumps(kept) if name.endswith("json") else pickle.dumps(kept)
    monkeypatch.setattr(compat, "_recorder", lambda: SimpleNamespace(**{name: lambda: content}))
    assert [entry["time_created_ns"] for entry in compat.last_collectives(2)] == [3, 2]


def test_notices_of_one_alarm_are_not_those_of_the_next(run_ranks):
    code = """
from segtrain.config import Parallel
from segtrain.parallel.board import open_board
from segtrain.parallel.cluster import discover
from segtrain.parallel.strategy import start
import torch
with start(Parallel(strategy="ddp"), discover(), "cpu") as strategy:
    board = open_board(strategy.cluster)
    assert not board.is_raised(1)
    strategy.reduce(torch.zeros(1))
    if strategy.rank == 1:
        board.raise_alarm(1)
    strategy.reduce(torch.zeros(1))
    assert board.is_raised(1) and not board.is_raised(2)
    board.post(1, strategy.rank, f"here {strategy.rank}")
    strategy.reduce(torch.zeros(1))
    assert board.posted(1) == {0: "here 0", 1: "here 1"}
    assert board.posted(2) == {}
    strategy.reduce(torch.zeros(1))
"""
    run_ranks(code, 2)
