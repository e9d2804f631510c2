"""Tests that a kill loses neither the best checkpoint nor its file, and that no step waits for the
disk.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import refused
from small_runs import command, final

from segtrain.observe.journal import FILE, Journal, read_journal
from segtrain.runfolder import checkpoint
from segtrain.runfolder.checkpoint import Best, best_of, load_weights, mend_best, named_best
from segtrain.runfolder.writer import CheckpointWriter
from segtrain.training.state import State


def content(step: int, best: int) -> dict[str, Any]:
    """Of the checkpoint of ``step``; the score of a step is a hundredth of it."""
    state = State(step=step, best=Best(best, best / 100) if best else Best())
    return {"model": {"w": torch.full((100,), float(step))}, "ema": {}, "state": state.to_dict()}


def killed_at(operation: int, work: Callable[[], None]) -> bool:
    """Do ``work`` in another process that dies just before its n-th change of the disk; whether it
    came to its end.
    """
    pid = os.fork()
    if pid == 0:
        count = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == operation:
                    os._exit(9)
                return function(*args, **kwargs)

            return call

        for module, name in (
            (os, "replace"),
            (os, "unlink"),
            (os, "fsync"),
            (Path, "unlink"),
            (torch, "save"),
        ):
            setattr(module, name, counted(getattr(module, name)))
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 9)
    return code == 0


@pytest.mark.parametrize(("best", "keep"), [(3, 1), (2, 2)], ids=["a better one", "a worse one"])
def test_killed_anywhere_neither_the_best_nor_its_file_is_lost(tmp_path, best, keep):
    ready = tmp_path / "ready"
    writer = CheckpointWriter(ready / "checkpoints", keep=keep, background=False)
    for step in (1, 2):
        writer.save(step, content(step, step))

    outcomes = []
    for operation in range(1, 50):
        run = Path(shutil.copytree(ready, tmp_path / f"run{operation}"))
        over = killed_at(
            operation,
            lambda run=run: (
                CheckpointWriter(run / "checkpoints", keep, False).save(3, content(3, best))
                and None
            ),
        )
        newest = checkpoint.newest(run)
        state = newest.state
        assert state is not None
        assert newest.remarks == ()
        expected = state["state"]["best_step"]
        assert expected == (best if state["state"]["step"] == 3 else 2)
        assert float(load_weights(run, "best")[0]["w"][0]) == expected  # before any run has gone on
        new_best, _ = mend_best(run, best_of(state) or Best())
        assert new_best == named_best(run) == Best(expected, expected / 100)
        assert (run / "checkpoints" / new_best.file).is_file()

        went_on = CheckpointWriter(
            run / "checkpoints", keep=1, background=False
        )  # sweeps, and may prune all but the best
        went_on.save(4, content(4, expected))
        assert [path.name for path in checkpoint.checkpoints(run)] == [
            new_best.file,
            "step-00000004.pt",
        ]
        assert float(load_weights(run, "best")[0]["w"][0]) == expected
        outcomes.append(state["state"]["step"])
        if over:
            break
    assert over
    assert set(outcomes) == {2, 3}  # killed before and after the rename
    assert len(outcomes) > 4


DAMAGE = (
    None,
    "[1]",
    "[" * 100_000,
    '{"checkpoint": 3}',
    '{"checkpoint": "x.pt", "step": 2, "miou": 0.1}',
)


@pytest.mark.parametrize("text", DAMAGE)
def test_a_best_json_that_is_missing_torn_or_foreign_is_made_again(tmp_path, text):
    writer = CheckpointWriter(tmp_path / "checkpoints", keep=1, background=False)
    for step in (1, 2, 3):
        writer.save(step, content(step, min(step, 2)))
    place = tmp_path / "best.json"
    assert json.loads(place.read_text()) == {
        "checkpoint": "step-00000002.pt",
        "step": 2,
        "miou": 0.02,
    }
    place.unlink() if text is None else place.write_text(text)
    assert float(load_weights(tmp_path, "best")[0]["w"][0]) == 2
    new_best, remarks = mend_best(tmp_path, Best(2, 0.02))
    assert new_best == Best(2, 0.02)
    assert f"{place} was {'missing' if text is None else 'damaged'}" in remarks[0]
    assert json.loads(place.read_text()) == {
        "checkpoint": "step-00000002.pt",
        "step": 2,
        "miou": 0.02,
    }
    assert mend_best(tmp_path, new_best) == (new_best, [])


def test_a_best_json_that_points_nowhere_is_mended(tmp_path):
    CheckpointWriter(tmp_path / "checkpoints", keep=1, background=False).save(2, content(2, 2))
    (tmp_path / "best.json").write_text(
        '{"checkpoint": "step-00000009.pt", "step": 9, "miou": 0.9}'
    )
    with refused(
        "checkpoint-missing", file=str(tmp_path / "checkpoints/step-00000009.pt")
    ):  # the newest checkpoint names an older one, which is not the best
        load_weights(tmp_path, "best")
    new_best, remarks = mend_best(tmp_path, Best(2, 0.02))
    assert new_best == named_best(tmp_path) == Best(2, 0.02)
    assert "named step-00000009.pt" in remarks[0]


def test_a_best_file_that_somebody_took_away_is_said_and_the_next_score_counts(tmp_path):
    writer = CheckpointWriter(tmp_path / "checkpoints", keep=1, background=False)
    for step in (2, 3):
        writer.save(step, content(step, 2))
    (tmp_path / "checkpoints/step-00000002.pt").unlink()
    new_best, remarks = mend_best(tmp_path, Best(2, 0.02))
    assert new_best == Best()
    assert "step-00000002.pt is missing" in remarks[0]
    assert not (tmp_path / "best.json").exists()


@pytest.mark.parametrize("which", ["best", "last"])
def test_weights_of_another_checkpoint_are_never_taken_in_silence(tmp_path, which, capsys):
    """The best is the last one: without it, an older one would be both."""
    writer = CheckpointWriter(tmp_path / "checkpoints", keep=2, background=False)
    journal = Journal(tmp_path / FILE)
    for step in (1, 2):
        file = writer.save(step, content(step, step))
        journal.write("checkpoint", step=step, file=file.name, reason="time", seconds=0.1)
    assert float(load_weights(tmp_path, which)[0]["w"][0]) == 2
    assert capsys.readouterr().err == ""
    file.write_bytes(file.read_bytes()[:-100])
    with refused("checkpoint-damaged", file=str(file)):
        load_weights(tmp_path, which)
    file.unlink()
    if which == "best":
        with refused("checkpoint-missing", file=str(file)):
            load_weights(tmp_path)
    else:
        assert float(load_weights(tmp_path, which)[0]["w"][0]) == 1
        (said,) = capsys.readouterr().err.splitlines()
        assert said.partition("step-00000002.pt")[2].endswith("step-00000001.pt")


@pytest.mark.parametrize("left", ["a whole one", "a torn one", "none"])
def test_only_a_checkpoint_that_loads_is_proposed_in_place_of_the_best(tmp_path, left):
    CheckpointWriter(tmp_path / "checkpoints", keep=9, background=False).save(3, content(3, 2))
    checkpoint.write_best(tmp_path, Best(2, 0.02))
    (last,) = checkpoint.checkpoints(tmp_path)
    if left == "a torn one":
        last.write_bytes(last.read_bytes()[:-100])
    elif left == "none":
        last.unlink()
    with refused(
        "checkpoint-missing", file=str(tmp_path / "checkpoints/step-00000002.pt")
    ) as caught:
        load_weights(tmp_path, "best")
    assert ("--which last" in str(caught.value)) == (left == "a whole one")
    assert ("train again" in str(caught.value)) == (left != "a whole one")


def test_a_score_of_steps_that_are_done_again_is_forgotten(tmp_path):
    """The newest checkpoints were torn; the run goes on from one before the first score."""
    CheckpointWriter(tmp_path / "checkpoints", keep=9, background=False).save(2, content(2, 2))
    new_best, remarks = mend_best(tmp_path, Best())
    assert new_best == Best()
    assert "will be repeated" in remarks[0]
    assert not (tmp_path / "best.json").exists()


def test_a_run_killed_between_its_checkpoint_and_best_json_ends_with_the_best_one(zygote, tmp_path):
    out = tmp_path / "run"
    arguments = command(
        out,
        "eval.every=1st",
        "train.duration=6st",
        "checkpoint.every=99st",
        "checkpoint.keep=1",
        "log.digest=false",
    )
    code = f"""
import os, signal
from segtrain.runfolder import writer
writer.write_best = lambda run_dir, best: os.kill(os.getpid(), signal.SIGKILL)
from segtrain.cli import main
raise SystemExit(main({arguments!r}))
"""
    first = zygote.start(code=code)
    assert first.wait() == -signal.SIGKILL, first.output
    state = final(out)["state"]
    assert state["best_step"] == 1  # the first score is the best so far
    assert named_best(out) is None
    again = zygote.start(*arguments)
    assert again.wait() == 0, again.output
    assert f"the best so far is step-{state['best_step']:08d}.pt" in again.output
    scores = {
        event["step"]: event["scores"]["miou"]
        for event in read_journal(out)
        if event["event"] == "eval"
    }
    best = named_best(out)
    assert best == Best(max(scores, key=lambda step: scores[step]), max(scores.values()))
    assert float(checkpoint.read(checkpoint.best_file(out))["state"]["best_value"]) == best.value


def test_no_step_waits_until_a_better_checkpoint_is_on_the_disk(zygote, tmp_path):
    """The disk writes the first checkpoint, of a better score, only when the step after it is
    done.
    """
    out = tmp_path / "run"
    arguments = command(
        out, "eval.every=1st", "train.duration=3st", "checkpoint.every=99st", "log.digest=false"
    )
    code = f"""
import time, torch
from pathlib import Path
plain = torch.save
def slow(state, file):
    end = time.monotonic() + 120
    while state["state"]["step"] == 1 and '"step": 2, "epoch"' not in Path({str(out)!r}, "journal.jsonl").read_text():
        if time.monotonic() > end:
            raise RuntimeError("step 2 waits for the checkpoint of step 1")
        time.sleep(0.01)
    plain(state, file)
torch.save = slow
from segtrain.cli import main
raise SystemExit(main({arguments!r}))
"""
    process = zygote.start(code=code)
    assert process.wait() == 0, process.output
    assert named_best(out) is not None


def test_best_json_follows_its_checkpoint(tmp_path, monkeypatch):
    """In the background; until then it names the one before."""
    go, plain = threading.Event(), torch.save
    writer = CheckpointWriter(tmp_path / "checkpoints", keep=1, background=True)
    writer.save(1, content(1, 1))
    writer.wait()
    monkeypatch.setattr(torch, "save", lambda *args: go.wait(600) and plain(*args))
    writer.save(2, content(2, 2))
    assert named_best(tmp_path) == Best(1, 0.01)
    go.set()
    writer.wait()
    assert named_best(tmp_path) == Best(2, 0.02)
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["step-00000002.pt"]


# ---- what somebody else wrote
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"step": -5}, "step=-5"),
        ({"best_value": float("nan")}, "best_value=nan"),
        ({"scores": [1]}, "scores=[1]"),
    ],
)
def test_a_state_that_no_run_has_is_refused(changes, word):
    state = State(step=3, best=Best(2, 0.02))
    assert State.read(state.to_dict(), "run") == state
    with refused("checkpoint-damaged", run="run") as caught:
        State.read({**state.to_dict(), **changes}, "run")
    assert word in caught.value.values["found"]


WEIGHT = {"w": torch.ones(2, 2)}
SOUND = {
    "model": WEIGHT,
    "optimizer": {"w": {"exp_avg": torch.ones(2, 2), "step": torch.tensor(1.0)}},
    "ema": {},
    "scaler": {"scale": 1.0, "good": 0},
    "state": {},
    "world_size": 1,
    "buffers": {},
    "criterion": {},
    "config_hash": "44136fa3",
    "decoder": "native",
    "precision": "fp32",
}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"optimizer": []}, "optimizer is a list"),
        ({"optimizer": {"v": {}}}, "optimizer.v is unknown"),
        ({"optimizer": {"w": {"exp_avg": torch.ones(3)}}}, "optimizer.w.exp_avg differs in shape"),
        ({"model": {"w": 1}}, "w is not a tensor"),
        ({"scaler": {}}, "scaler.scale or scaler.good is not a number"),
        ({"precision": None}, "precision is a NoneType"),
        ({"buffers_of_ranks": 3}, "buffers_of_ranks is not a tensor"),
        ({"state": None}, "state is a NoneType"),
    ],
)
def test_parts_that_no_checkpoint_has_are_refused(changes, word):
    checkpoint.refuse_foreign(SOUND, WEIGHT, "run")
    with refused("checkpoint-foreign") as caught:
        checkpoint.refuse_foreign({**SOUND, **changes}, WEIGHT, "run")
    assert word in caught.value.values["found"][0]


def test_a_moving_average_that_is_missing_is_named():
    with refused("checkpoint-foreign", found=["ema: w is missing"]):
        checkpoint.refuse_foreign(SOUND, WEIGHT, "run", averaged=WEIGHT)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nothing_is_predicted_with_weights_that_are_not_finite(tmp_path, value):
    state = content(1, 1)
    state["model"]["w"][3] = value
    CheckpointWriter(tmp_path / "checkpoints", keep=1, background=False).save(1, state)
    for which in ("best", "last"):
        with refused("not-finite", found=["w"]):
            load_weights(tmp_path, which)


def test_a_buffer_may_be_infinite_such_as_a_mask_of_an_attention(tmp_path):
    state = content(1, 1)
    state["model"]["mask"] = torch.full((2, 2), -torch.inf)
    state["optimizer"] = {"w": {}}
    CheckpointWriter(tmp_path / "checkpoints", keep=1, background=False).save(1, state)
    assert load_weights(tmp_path)[0]["mask"].isinf().all()


def test_a_file_that_only_looks_like_a_checkpoint_is_left_alone(tmp_path):
    writer = CheckpointWriter(tmp_path / "checkpoints", keep=1, background=False)
    (tmp_path / "checkpoints/step-final.pt").write_bytes(b"mine")
    for step in (1, 2):
        writer.save(step, content(step, 0))
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["step-00000002.pt"]
    assert (tmp_path / "checkpoints/step-final.pt").exists()
