"""Tests on real gloo ranks that a diverging rank is named, with what and where."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from small_runs import QUIET
from torch import nn

from segtrain.config import Parallel, make_config
from segtrain.optim import Ema
from segtrain.parallel.collective import LANES, TOGETHER, digest
from segtrain.training.sentinel import alike

ROOT = Path(__file__).parents[2]
SMALL = [*QUIET, "train.batch_size=4", "log.sentinel=2"]
STANDIN = {"PYTHONPATH": str(ROOT / "launch/core/rehearse/standin")}
CPU = torch.device("cpu")

# What is planted runs in every rank before the command line; ``rank``, ``loop``, ``sentinel`` and
# ``after`` are at hand.
PLANT = """
import os, time
import numpy as np, torch
from segtrain.training import loop, sentinel
rank = int(os.environ["RANK"])

def after(step, change):
    kept = sentinel.Sentinel.step
    def with_plant(self, now, loaded, clock):
        if now == step:
            with torch.no_grad():
                change(self._learner)
        kept(self, now, loaded, clock)
    sentinel.Sentinel.step = with_plant

{plant}
from segtrain.cli import main
raise SystemExit(main({arguments!r}))
"""


def ranks(
    zygote: Any, folder: Path, plant: str, *more: str, world: int = 2, **env: str
) -> list[Any]:
    code = PLANT.format(plant=plant, arguments=["train", *SMALL, *more])
    folder.mkdir(exist_ok=True)
    return list(zygote.start_ranks(world, code=code, cwd=folder, **env))


def the_one_error(processes: list[Any]) -> str:
    """What the job says before it ends: one error of one rank."""
    codes = [process.wait() for process in processes]
    everything = "\n".join(process.output for process in processes)
    assert codes == [2] * len(codes), everything
    assert "Traceback" not in everything
    errors = [line for line in everything.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, everything
    return errors[0]


@pytest.mark.parametrize("strategy", ["ddp", "smddp"])
def test_a_parameter_that_differs_is_named_with_its_rank(zygote, tmp_path, strategy):
    plant = """
if rank == 2:
    def change(learner):
        value = list(learner.plain.parameters())[3]
        value[(0,) * value.dim()] += 0.25
    after(4, change)
"""
    more = (f"parallel.strategy={strategy}", "train.batch_size=6")
    error = the_one_error(
        ranks(zygote, tmp_path, plant, *more, world=3, **(STANDIN if strategy == "smddp" else {}))
    )
    model = make_config(
        {"model": {"options": {"stem": 8, "widths": [8, 8, 16, 16], "decoder": 8, "bins": [1]}}}
    ).model
    from segtrain.models import build_model

    name = list(dict(build_model(model, 10).named_parameters()))[3]
    assert (
        f"after step 4 the network is not the same on all ranks: {name} on rank 2 (host " in error
    )
    assert "differs from rank 0 (it is the first of 1 of" in error
    assert "log.sentinel=0" in error
    assert not list((tmp_path / "run/checkpoints").glob("*.pt"))  # nothing of it was saved


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_buffer_that_differs_is_named(zygote, tmp_path, strategy):
    if strategy == "fsdp" and not hasattr(
        pytest.importorskip("torch.distributed.fsdp"), "fully_shard"
    ):
        pytest.skip("this torch has no FSDP2")
    plant = """
def change(learner):
    name, buffer = [(n, b) for n, b in learner.plain.named_buffers() if n.endswith("num_batches_tracked")][-1]
    print("planted", name)
    if rank == 1:
        buffer += 1
after(2, change)
"""
    processes = ranks(zygote, tmp_path, plant, f"parallel.strategy={strategy}")
    error = the_one_error(processes)
    planted = next(
        line for line in processes[0].output.splitlines() if line.startswith("planted")
    ).split()[1]
    assert f"after step 2 the network is not the same on all ranks: {planted} on rank 1" in error


def test_synchronized_running_statistics_are_compared_and_the_moving_average(zygote, tmp_path):
    plant = """
def change(learner):
    if rank == 1:
        [b for n, b in learner.plain.named_buffers() if n.endswith("running_var")][0][0] *= 2
after(4, change)
"""
    error = the_one_error(ranks(zygote, tmp_path / "a", plant, "parallel.sync_bn=true"))
    assert "running_var on rank 1" in error
    plant = """
def change(learner):
    if rank == 1:
        next(iter(learner.ema.shadow.values())).add_(1)
after(4, change)
"""
    assert "(moving average) on rank 1" in the_one_error(
        ranks(zygote, tmp_path / "b", plant, "optim.ema=0.9")
    )


def test_a_sample_seen_twice_is_named_with_its_ranks(zygote, tmp_path):
    """Rank 1 takes rank 0's part of each batch: what both processes do when they are told the same
    RANK.
    """
    plant = """
from segtrain.data import train_loader as loader
own = loader.rank_slice
if rank == 1:
    loader.rank_slice = lambda size, world, _, *rest: own(size, world, 0, *rest)
"""
    error = the_one_error(ranks(zygote, tmp_path, plant))
    assert (
        "error: steps 1 to 2 did not use the samples that the sampling order specifies: sample "
        in error
    )
    assert "of epoch 0 2 times (by rank 0, rank 1)" in error or "not at all (by no rank)" in error
    assert "and 5 more" in error  # of 8 samples in two steps, 4 came twice and 4 not at all


def folder(root: Path, count: int = 6) -> Path:
    draw = np.random.default_rng(0)
    for split in ("train", "val"):
        for kind, shape in (("images", (40, 48, 3)), ("masks", (40, 48))):
            (root / kind / split).mkdir(parents=True)
            for k in range(count):
                cv2.imwrite(
                    str(root / kind / split / f"{k}.png"),
                    draw.integers(0, 2, shape, dtype=np.uint8),
                )
    return root


@pytest.mark.parametrize("fault", ["one more", "a size"])
def test_a_rank_with_another_index_is_refused_at_the_start(zygote, tmp_path, fault):
    from segtrain.parallel.cluster import Cluster, free_port

    port, roots = free_port(), [folder(tmp_path / name) for name in ("a", "b")]
    image, mask = (roots[1] / kind / "train/3.png" for kind in ("images", "masks"))
    if fault == "one more":
        for path in (image, mask):
            path.with_name("9.png").write_bytes(path.read_bytes())
    else:
        image.write_bytes(image.read_bytes() + b"more")
    settings = ["data.layout=folders", "data.classes=[a,b]"]
    small = [setting for setting in SMALL if "scene" not in setting]
    processes = [
        zygote.start(
            "train",
            *small,
            *settings,
            f"data.root={roots[rank]}",
            cwd=tmp_path,
            **Cluster(rank, 2, 0, 1, "127.0.0.1", port).environment(),
        )
        for rank in range(2)
    ]
    error = the_one_error(processes)
    assert "train (train): rank 1 (host " in error
    expected = {
        "one more": "7 images against 6; image 7 there is images/train/9.png, on rank 0 nothing:",
        "a size": "6 images against 6; images/train/3.png has another size there",
    }[fault]
    assert expected in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_healthy_run_says_nothing(zygote, tmp_path, strategy):
    """And goes through several epochs: 8 steps of 8 are nearly five of 13."""
    if strategy == "fsdp" and not hasattr(
        pytest.importorskip("torch.distributed.fsdp"), "fully_shard"
    ):
        pytest.skip("this torch has no FSDP2")
    more = (
        f"parallel.strategy={strategy}",
        "optim.ema=0.9",
        "train.accumulate=2",
        "train.batch_size=8",
        "eval.every=3st",
    )
    processes = ranks(zygote, tmp_path, "", *more)
    outputs = [(process.wait(), process.output) for process in processes]
    assert [code for code, _ in outputs] == [0] * len(outputs), outputs[0][1]
    for word in ("sentinel", "hang", "differs", "warning", "WARN"):
        assert word not in outputs[0][1]
    assert all(not text.strip() for _, text in outputs[1:])
    assert not (tmp_path / "run/hang").exists()
    events = [
        json.loads(line)["event"]
        for line in (tmp_path / "run/journal.jsonl").read_text().splitlines()
    ]
    assert "hang" not in events


def test_what_a_look_costs_is_one_collective_and_the_network_read_once(zygote, tmp_path):
    plant = """
import atexit
from segtrain.parallel.strategy import Strategy
sums, looks = [], []
reduce, digest = Strategy.reduce, sentinel.digest
def counted_reduce(self, value):
    sums.append(value.numel())
    return reduce(self, value)
def counted_digest(values, device):
    values = list(values)
    looks.append(sum(v.numel() for v in values))
    return digest(values, device)
Strategy.reduce, sentinel.digest = counted_reduce, counted_digest
kept = loop.run
def run(session, signals):
    code = kept(session, signals)
    if rank == 0:
        print("counted", len(sums), sums.count(2 + 3), len(looks), sum(p.numel() for p in session.learner.plain.parameters()), *looks)
    return code
loop.run = run
"""
    counts = {}
    for every in (0, 4):
        processes = ranks(zygote, tmp_path / str(every), plant, f"log.sentinel={every}")
        assert [process.wait() for process in processes] == [0, 0], processes[0].output
        line = next(line for line in processes[0].output.splitlines() if line.startswith("counted"))
        counts[every] = list(map(int, line.split()[1:]))
    off = counts[0][0]
    assert counts[0][2] == 0
    assert counts[4][0] == off + 2 + 2  # two looks, and the two splits at the start
    assert counts[4][2:3] == [2]
    parameters, *looks = counts[4][3:]
    assert all(parameters <= look < 1.1 * parameters for look in looks)


def test_what_is_compared():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4)))
    model.register_buffer("grid", torch.zeros(3))
    strategy: Any = SimpleNamespace(settings=Parallel())
    names = set(alike(model, None, strategy))
    statistics = {f"{norm}.running_{what}" for norm in ("1", "2.0") for what in ("mean", "var")}
    assert names == {*dict(model.named_parameters()), *dict(model.named_buffers())} - statistics
    assert {"grid", "1.num_batches_tracked", "2.0.num_batches_tracked"} <= names
    averaged = set(alike(model, Ema(model, 0.9), strategy)) - names
    assert averaged == {f"{name} (moving average)" for name in names}
    synchronized: Any = SimpleNamespace(settings=Parallel(sync_bn=True))
    assert statistics <= set(alike(model, None, synchronized))


@pytest.mark.parametrize("count", [1, 3, LANES * 2, LANES * 2 + 7, 2 * TOGETHER + 1, 5 * TOGETHER])
def test_a_difference_in_any_one_value_changes_the_digest(count):
    torch.manual_seed(0)
    values = [
        torch.randn(5),
        torch.randn(count),
        torch.ones((), dtype=torch.int64),
        torch.randn(7).bfloat16(),
    ]
    before = digest(values, CPU)
    assert digest([v.clone() for v in values], CPU) == before
    for tensor in values:
        for place in {0, tensor.numel() // 2, tensor.numel() - 1}:
            flat = tensor.view(-1)
            kept = flat[place].clone()
            flat[place] = -kept  # one bit of floats
            assert digest(values, CPU) != before
            flat[place] = kept
    assert digest(values, CPU) == before
    assert digest([values[1], values[0], *values[2:]], CPU) != before or count == 5


def test_the_digest_sees_values_not_their_layout():
    weight = torch.randn(8, 6, 3, 3)
    assert digest([weight], CPU) == digest([weight.to(memory_format=torch.channels_last)], CPU)
    assert digest([weight[1:, 1:]], CPU) == digest([weight[1:, 1:].clone()], CPU)
