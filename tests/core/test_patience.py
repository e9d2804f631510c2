"""The best by another score, an end without progress, and a run that is extended: the same on any
number of ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import refused
from small_runs import assert_same_weights, command, final

from segtrain.config import Config
from segtrain.observe.journal import read_journal
from segtrain.optim import multiplier
from segtrain.parallel.cluster import Cluster
from segtrain.runfolder.checkpoint import Best, best_of, named_best
from segtrain.training.start.derived import make_plan

OFTEN = ("eval.every=1st", "log.digest=false", "checkpoint.every=99st", "optim.ema=0")


def evaluations(run: Path) -> list[dict[str, Any]]:
    return [event for event in read_journal(run) if event["event"] == "eval"]


def test_patience_ends_a_run_at_the_same_step_on_any_number_of_ranks(zygote, tmp_path):
    settings = (
        "optim.lr=1e-30",
        "train.patience=2",
        "eval.best=loss",
        "train.duration=9st",
        *OFTEN,
    )
    settings += ("train.batch_size=8",)
    for ranks in (1, 2, 4):
        run = tmp_path / f"run{ranks}"
        process, *others = zygote.start_ranks(ranks, *command(run, *settings))
        assert {each.wait() for each in (process, *others)} == {0}, process.output
        found = evaluations(run)
        best = named_best(run)
        assert best is not None
        assert best == Best(
            found[best.step - 1]["step"], found[best.step - 1]["scores"]["loss"], "loss"
        )
        assert found[-1]["step"] == best.step + 2 < 9
        assert best.value == min(event["scores"]["loss"] for event in found)
        assert "ended by train.patience=2" in process.output
        end = read_journal(run)[-1]
        assert end["status"] == "done"
        assert end["text"].startswith("ended by train.patience=2")
        assert final(run)["state"]["stale"] == 2
    again = zygote.start(*command(run, *settings))
    assert again.wait() == 0
    assert "this run is finished: ended by train.patience=2" in again.output


def test_an_extended_run_is_the_longer_one_to_the_bit(zygote, tmp_path):
    constant = ("optim.schedule=constant", "optim.warmup=1st", "optim.ema=0.9")
    lengths = {
        "long": [("train.duration=12st",)],
        "once": [("train.duration=4st",), ("train.duration=4st", "train.extend=8st")],
        "twice": [
            ("train.duration=4st",),
            ("train.duration=4st", "train.extend=3st"),
            ("train.duration=4st", "train.extend=8st"),
        ],
    }
    for name, starts in lengths.items():
        for length in starts:
            process = zygote.start(*command(tmp_path / name, *constant, *length))
            assert process.wait() == 0, process.output
    for name in ("once", "twice"):
        assert final(tmp_path / name)["state"]["step"] == 12
        assert_same_weights(final(tmp_path / name), final(tmp_path / "long"))
    refusal = zygote.start(*command(tmp_path / "once", *constant, "train.duration=20st"))
    assert refusal.wait() == 2
    assert "add train.extend=16st" in " ".join(refusal.output.split())


def test_the_learning_rate_of_an_extension_is_that_of_the_whole_length():
    config = Config.load(None, "train.duration=4st", "train.extend=4st", "optim.warmup=1st")
    plan = make_plan(config, 40, Cluster(), False)
    rates = [
        multiplier(config.optim, step, plan.schedule_ends(step), plan.warmup) for step in range(8)
    ]
    power = 0.9
    assert (plan.planned, plan.steps) == (4, 8)
    assert rates[3] == pytest.approx((1 - 2 / 3) ** power)
    assert rates[4] == pytest.approx((1 - 3 / 7) ** power)
    assert rates[7] == pytest.approx((1 - 6 / 7) ** power)
    epochs = Config.load(None, "train.duration=1.5ep", "train.extend=1.5ep")
    assert make_plan(epochs, 40, Cluster(), False).steps == 8  # as 3ep, not twice 4 rounded up


@pytest.mark.parametrize(
    ("best", "near"),
    [("mloss", "loss"), ("iou/raod", "road"), ("road", "iou/CLASS"), ("mean_hausdorff", "true")],
)
def test_a_score_that_does_not_exist_is_refused_before_anything_is_read(
    zygote, tmp_path, best, near
):
    process = zygote.start(*command(tmp_path / "run", f"eval.best={best}"))
    assert process.wait() == 2
    assert "eval.best" in process.output
    assert near in process.output
    assert not (tmp_path / "run").exists()


def test_the_best_by_a_class_and_the_state_of_older_checkpoints():
    best = Best().after(3, 0.5, "loss")
    assert best.after(4, 0.6, "loss") == best
    assert best.after(5, None, "loss") == best
    assert best.after(6, 0.4, "loss").record() == {
        "checkpoint": "step-00000006.pt",
        "step": 6,
        "by": "loss",
        "value": 0.4,
    }
    assert best_of({"state": {"best_step": 2, "best_miou": 0.3}}) == Best(2, 0.3)
    with refused("conflicting-settings"):
        Config.load(None, "eval.mean_over=[a]", "eval.leave_out=[b]")
