"""Tests that a stopped and resumed run of several ranks ends with the weights of an uninterrupted
one.
"""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import refused
from small_runs import NET, assert_same_weights, command, digests, final
from waiting import until

from segtrain.config import Parallel
from segtrain.errors import EXIT_RESUMABLE
from segtrain.runfolder import checkpoint
from segtrain.training.learner import restore_learner

ROOT = Path(__file__).parents[2]
RANKS = 3  # of two, a sum knows no order


@pytest.mark.parametrize(
    ("strategy", "compress"), [("ddp", "none"), ("ddp", "fp16"), ("smddp", "none")]
)
def test_stopped_and_gone_on_with_is_equal_to_the_bit(zygote, tmp_path, strategy, compress):
    standin = (
        {"PYTHONPATH": str(ROOT / "launch/core/rehearse/standin")} if strategy == "smddp" else {}
    )
    settings = [*NET, f"parallel.strategy={strategy}", f"parallel.compress={compress}"]
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert [
        rank.wait() for rank in zygote.start_ranks(RANKS, *command(whole, *settings), **standin)
    ] == [0] * RANKS

    ranks = zygote.start_ranks(RANKS, *command(out, *settings), **standin, HOLD="1:2")
    until(lambda: len(digests(out)) >= 2 if (out / "journal.jsonl").exists() else False)
    ranks[1].signal(signal.SIGTERM)
    assert [rank.wait() for rank in ranks] == [EXIT_RESUMABLE] * RANKS, ranks[0].output
    assert 2 <= final(out)["state"]["step"] < 12
    again = zygote.start_ranks(RANKS, *command(out, *settings), **standin)
    assert [rank.wait() for rank in again] == [0] * RANKS, again[0].output

    assert digests(out) == digests(whole)
    assert_same_weights(final(out), final(whole))
    for name, moments in final(whole)["optimizer"].items():
        for key, value in moments.items():
            assert torch.equal(
                torch.as_tensor(value), torch.as_tensor(final(out)["optimizer"][name][key])
            ), (name, key)


def test_a_checkpoint_holds_the_statistics_of_each_rank(zygote, tmp_path):
    out = tmp_path / "run"
    assert [
        r.wait()
        for r in zygote.start_ranks(2, *command(out, "train.duration=3st", "eval.every=3st"))
    ] == [0, 0]
    state = checkpoint.newest(out).state
    assert state is not None
    rows = state["buffers_of_ranks"]
    assert not torch.equal(rows[0], rows[1])  # each saw other images
    names = [name for name in state["model"] if name.endswith(("running_mean", "running_var"))]
    means = torch.cat([state["model"][name].reshape(-1).double() for name in names])
    torch.testing.assert_close(rows.mean(0)[: len(means)], means, rtol=1e-6, atol=1e-7)


def test_what_powersgd_has_not_sent_is_in_no_checkpoint():
    """Gloo lacks PowerSGD, so the strategy here is only its settings."""
    strategy: Any = SimpleNamespace(settings=Parallel(compress="powersgd"))
    with refused("compression-cannot-resume", run="runs/a"):
        restore_learner(None, {}, strategy, "runs/a")  # type: ignore[arg-type]
