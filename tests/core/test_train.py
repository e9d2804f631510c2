"""Tests that a run trains, stops, resumes, and ends correctly on one rank and on several."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from small_runs import assert_same_weights, command, digests, final
from waiting import until

from segtrain.data.pixels import native
from segtrain.errors import EXIT_ERROR, EXIT_RESUMABLE
from segtrain.insight.runs.table import read_run
from segtrain.observe.journal import read_journal
from segtrain.runfolder import checkpoint


@pytest.fixture(scope="module")
def whole(zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:  # type: ignore[no-untyped-def]
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    process = zygote.start(*command(out))
    assert process.wait() == 0, process.output
    return out


def test_started_again_it_says_that_it_is_finished(zygote, tmp_path, whole):  # type: ignore[no-untyped-def]
    # what it adds to the journal is not for other tests
    again = Path(shutil.copytree(whole, tmp_path / "again"))
    (again / ".best.json.4711.part").touch()  # as a kill leaves it
    process = zygote.start(*command(again))
    assert process.wait() == 0
    assert not list(again.glob(".*"))
    assert "this run is finished" in process.output
    assert read_run(again)["status"] == "done"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_stops_at_a_step_and_the_same_command_goes_on(zygote, tmp_path, whole, number):  # type: ignore[no-untyped-def]
    out = tmp_path / "run"
    process = zygote.start(*command(out), HOLD="0:2")
    until(lambda: len(digests(out)) >= 2 if (out / "journal.jsonl").exists() else False)
    process.signal(number)
    assert process.wait() == EXIT_RESUMABLE, process.output
    assert f"stopped by {signal.Signals(number).name}" in process.output
    stopped = final(out)["state"]["step"]
    assert 2 <= stopped < 12
    again = zygote.start(*command(out, "data.workers=0"))
    assert again.wait() == 0, again.output
    assert f"going on from step {stopped}" in again.output
    assert digests(out) == digests(whole)
    assert_same_weights(final(out), final(whole))


def test_all_ranks_stop_at_the_same_step_when_one_is_told(zygote, tmp_path):  # type: ignore[no-untyped-def]
    out = tmp_path / "run"
    ranks = zygote.start_ranks(
        2, *command(out, "train.duration=400st", "eval.every=400st", "checkpoint.every=400st")
    )
    until(lambda: len(digests(out)) >= 2 if (out / "journal.jsonl").exists() else False)
    ranks[1].signal(signal.SIGTERM)
    assert [rank.wait() for rank in ranks] == [EXIT_RESUMABLE] * 2, ranks[0].output
    assert final(out)["state"]["step"] == max(digests(out))


def test_killed_at_random_moments_it_consumes_the_same(zygote, tmp_path, whole):  # type: ignore[no-untyped-def]
    """20 kills on one process, workers changing: same samples and pixels, and the same final
    weights to the bit.
    """
    draw, killed = random.Random(0), 0
    for trial in range(200):
        out = tmp_path / f"run{trial}"
        for _ in range(30):
            process = zygote.start(*command(out, f"data.workers={draw.choice([0, 1, 3])}"))
            time.sleep(draw.uniform(0.0, 1.2))
            process.signal(signal.SIGKILL)
            code = process.wait()
            killed += code == -signal.SIGKILL
            if code == 0 or killed >= 20:
                break
        process = zygote.start(*command(out))
        assert process.wait() == 0, process.output
        assert digests(out) == digests(whole)
        assert_same_weights(final(out), final(whole))
        if killed >= 20:
            return
    pytest.fail(f"only {killed} kills")


def test_another_decoder_than_before_is_said(zygote, tmp_path):  # type: ignore[no-untyped-def]
    if not native.available():
        pytest.skip(f"no native decoder here: {native.describe()}")
    out = tmp_path / "run"
    first = zygote.start(*command(out), SEGTRAIN_NATIVE="0")
    assert first.wait() == 0, first.output
    assert "packages (SEGTRAIN_NATIVE=0)" in first.output
    (out / "checkpoints/step-00000012.pt").unlink()
    second = zygote.start(*command(out))
    assert second.wait() == 0, second.output
    assert (
        "came from the packages decoder, later ones come from the native decoder" in second.output
    )


def test_killed_and_resumed_on_another_world_size(zygote, tmp_path, whole):  # type: ignore[no-untyped-def]
    draw, out = random.Random(1), tmp_path / "run"
    for world in (2, 1, 4, 2, 1):
        before = max(digests(out), default=0) if (out / "journal.jsonl").exists() else 0
        ranks = zygote.start_ranks(
            world, *command(out, f"data.workers={draw.choice([0, 2])}", "parallel.sync_bn=true")
        )
        until(
            lambda before=before: (
                (out / "journal.jsonl").exists()
                and max(digests(out), default=0) >= min(12, before + 2)
            )
        )
        for rank in ranks:
            rank.signal(signal.SIGKILL)
        for rank in ranks:
            rank.wait()
    ranks = zygote.start_ranks(2, *command(out, "parallel.sync_bn=true"))
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].output
    assert digests(out) == digests(whole)


def test_ranks_train_the_same_model(zygote, tmp_path):  # type: ignore[no-untyped-def]
    """With synchronized batch norm the weights agree with one process's but for rounding."""
    settings = (
        "parallel.sync_bn=true",
        "train.duration=4st",
        "optim.name=sgd",
        "optim.lr=0.01",
        "optim.momentum=0.5",
    )
    outs = [tmp_path / "one", tmp_path / "many"]
    for out, world in zip(outs, (1, 4)):
        ranks = zygote.start_ranks(world, *command(out, *settings))
        assert [rank.wait() for rank in ranks] == [0] * world, ranks[0].output
    one, many = (final(out) for out in outs)
    assert digests(outs[0]) == digests(outs[1])
    for name, value in one["model"].items():
        if value.is_floating_point():
            torch.testing.assert_close(many["model"][name], value, rtol=2e-3, atol=2e-4, msg=name)


@pytest.mark.parametrize("optim", ["adamw", "sgd"])
def test_fsdp_trains_and_its_checkpoint_fits_one_process(zygote, tmp_path, optim):  # type: ignore[no-untyped-def]
    """Fused kernels of some optimizers know no sharded parameters."""
    if not hasattr(
        pytest.importorskip("torch.distributed.fsdp", reason="this torch has no FSDP"),
        "fully_shard",
    ):
        pytest.skip("this torch has no fully_shard (2.6)")
    out = tmp_path / "run"
    settings = ["train.duration=12st", f"optim.name={optim}"]
    ranks = zygote.start_ranks(2, *command(out, "parallel.strategy=fsdp", *settings), HOLD="0:2")
    until(lambda: (out / "journal.jsonl").exists() and len(digests(out)) >= 2)
    ranks[0].signal(signal.SIGTERM)
    assert [rank.wait() for rank in ranks] == [EXIT_RESUMABLE] * 2, ranks[0].output
    process = zygote.start(*command(out, *settings))
    assert process.wait() == 0, process.output


def test_the_command_starts_its_own_ranks_on_a_cpu(segtrain, tmp_path):  # type: ignore[no-untyped-def]
    done = segtrain(*command(tmp_path / "run", "parallel.procs=2", "train.duration=2st"))
    assert done.returncode == 0, done.stderr
    assert "2 x cpu" in done.stdout
    assert done.stdout.count("step 1/2") == 1


@pytest.mark.parametrize(
    ("world", "settings"),
    [
        (1, ["parallel.strategy=dp"]),
        (
            1,
            [
                "train.deterministic=true",
                "parallel.threads=2",
                "train.accumulate=2",
                "optim.clip=0.1",
                "optim.schedule=cosine",
            ],
        ),
        (
            1,
            [
                "train.precision=bf16",
                "optim.name=muon",
                "optim.warmup=25%",
                "train.channels_last=true",
            ],
        ),
        (
            1,
            [
                "loss.terms=[ohem, dice, lovasz]",
                "loss.class_weights=auto",
                "train.accumulate=2",
                "loss.stride=2",
            ],
        ),
        (
            1,
            [
                "data.class_balanced_crop_prob=1",
                "data.scale_end=[1, 1]",
                "train.progressive=[[0.5, 0.5]]",
                "eval.tile=[24, 24]",
            ],
        ),
        (
            1,
            [
                "model.arch=unet",
                "model.options={}",
                "optim.encoder_lr=0.1",
                "data.cache=ram",
                "eval.scales=[1, 0.5]",
            ],
        ),
        (2, ["parallel.compress=fp16", "parallel.static_graph=true", "parallel.bucket_view=false"]),
        (
            2,
            [
                "parallel.broadcast_buffers=true",
                "train.batch_size=8",
                "train.accumulate=2",
                "loss.terms=[dice]",
            ],
        ),
    ],
    ids=lambda value: None if isinstance(value, int) else value[0],
)
def test_settings_that_a_run_may_have(zygote, tmp_path, world, settings):  # type: ignore[no-untyped-def]
    """Each of them trains, scores, saves, and can be stopped and resumed."""
    out = tmp_path / "run"
    more = ["train.duration=4st", "checkpoint.every=2st", *settings]
    ranks = zygote.start_ranks(world, *command(out, *more))
    assert [rank.wait() for rank in ranks] == [0] * world, ranks[0].output
    losses = [e["loss"] for e in read_journal(out) if e["event"] == "step"]
    assert len(losses) == 4
    (checkpoint.checkpoints(out)[-1]).unlink()
    ranks = zygote.start_ranks(world, *command(out, *more))
    assert [rank.wait() for rank in ranks] == [0] * world, ranks[0].output
    assert "going on from step 2" in ranks[0].output
    again = [e["loss"] for e in read_journal(out) if e["event"] == "step"]
    assert again[-2:] == pytest.approx(losses[-2:], rel=1e-9 if world == 1 else 1e-4)


def test_a_loss_that_is_not_finite_is_an_error_and_is_not_saved(zygote, tmp_path):  # type: ignore[no-untyped-def]
    out = tmp_path / "run"
    process = zygote.start(*command(out, "optim.name=sgd", "optim.lr=1e30", "checkpoint.every=1st"))
    assert process.wait() == EXIT_ERROR
    assert "not finite at step" in process.output
    assert "optim.lr" in process.output
    assert "Traceback" not in process.output
    assert not list(out.glob("*lock*"))
    state = checkpoint.newest(out).state
    assert state is None or all(v.isfinite().all() for v in state["model"].values())


def test_a_batch_too_small_for_batch_norm_names_the_cure(zygote, tmp_path):  # type: ignore[no-untyped-def]
    process = zygote.start(*command(tmp_path / "run", "train.accumulate=4"))
    assert process.wait() == EXIT_ERROR
    assert "1 image of 32x32: raise train.batch_size" in process.output
    assert "Traceback" not in process.output
