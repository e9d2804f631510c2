"""Tests that all hosts resume from rank 0's checkpoint, whatever is on their own disks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import TINY

from segtrain.runfolder import checkpoint

ROOT = Path(__file__).parents[2]
SMALL = [
    *TINY,
    "data.workers=1",
    "data.prefetch=2",
    "train.batch_size=4",
    "train.duration=6st",
    "eval.every=6st",
    "checkpoint.every=2st",
    "checkpoint.keep=9",
    "optim.ema=0.9",
    "log.every=1",
    "out=run",
]
# of SMDDP: it refuses what the real one refuses
STANDIN = {"PYTHONPATH": str(ROOT / "launch/core/rehearse/standin")}


def on_hosts(zygote: Any, strategy: str, hosts: list[Path]) -> list[str]:
    """One rank a host: each in a folder of its own, where its run folder lies."""
    from segtrain.parallel.cluster import Cluster, free_port

    port, world = free_port(), len(hosts)
    started = []
    for rank, host in enumerate(hosts):
        host.mkdir(parents=True, exist_ok=True)
        place = Cluster(rank, world, 0, 1, "127.0.0.1", port).environment()
        arguments = ["train", *SMALL, f"parallel.strategy={strategy}"]
        started.append(
            zygote.start(*arguments, cwd=host, **place, **(STANDIN if strategy == "smddp" else {}))
        )
    codes = [process.wait() for process in started]
    assert codes == [0] * world, started[0].output[-3000:]
    return [process.output for process in started]


def last(host: Path) -> dict[str, Any]:
    state = checkpoint.newest(host / "run").state
    assert state is not None
    assert state["state"]["step"] == 6
    return state


@pytest.fixture(scope="module")
def whole(zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:  # type: ignore[no-untyped-def]
    """Two hosts that nothing interrupted; rank 0's is the one with checkpoints."""
    folder = tmp_path_factory.mktemp("whole")
    on_hosts(zygote, "ddp", [folder / "a", folder / "b"])
    assert checkpoint.checkpoints(folder / "b/run") == []  # rank 0 alone writes
    return folder / "a"


def restored(whole: Path, host: Path, upto: int) -> Path:
    """A host whose disk holds the run as it was at step ``upto``."""
    shutil.copytree(whole / "run", host / "run")
    (host / "run/best.json").unlink()
    for path in checkpoint.checkpoints(host / "run"):
        if checkpoint.step_of(path) > upto:
            path.unlink()
    return host


@pytest.mark.parametrize(
    ("strategy", "other"),
    [
        ("ddp", "another of the same step"),
        ("ddp", "the same"),
        ("fsdp", "older"),
        ("smddp", "nothing"),
    ],
)
def test_the_other_host_gets_rank_0s(zygote, whole, tmp_path, strategy, other):  # type: ignore[no-untyped-def]
    if strategy == "fsdp" and not hasattr(
        pytest.importorskip("torch.distributed.fsdp"), "fully_shard"
    ):
        pytest.skip("this torch has no FSDP2")
    a, b = restored(whole, tmp_path / "a", 4), tmp_path / "b"
    if other != "nothing":
        restored(whole, b, 2 if other == "older" else 4)
    if other.startswith("another"):
        path = checkpoint.checkpoints(b / "run")[-1]
        state = torch.load(path, weights_only=True)
        torch.save(
            {**state, "model": {key: value + 1 for key, value in state["model"].items()}}, path
        )
    said = on_hosts(zygote, strategy, [a, b])[0]
    assert "going on from step 4" in said
    assert ("1 of 2 ranks" in said) == (other != "the same")
    again, once = last(a), last(whole)
    for key in ("model", "ema"):
        for name, value in once[key].items():
            if strategy == "fsdp":  # sums its gradients in another order
                assert torch.allclose(again[key][name].double(), value.double(), atol=1e-4), name
            else:
                assert torch.equal(again[key][name], value), name


def test_rank_0_decides_and_says_that_another_host_knows_more(zygote, whole, tmp_path):  # type: ignore[no-untyped-def]
    a, b = tmp_path / "a", restored(whole, tmp_path / "b", 4)
    said = on_hosts(zygote, "ddp", [a, b])[0]
    assert "going on from" not in said
    assert "the host of rank 1 has a checkpoint of step 4" in said
    last(a)


def test_the_wire_changes_no_byte(run_ranks):  # type: ignore[no-untyped-def]
    code = """
from segtrain.config import Parallel
from segtrain.parallel.cluster import discover
from segtrain.parallel.strategy import start
from segtrain.parallel import collective
import random
collective.CHUNK = 64
content = random.Random(1).randbytes(64 * 3 + 7)  # negative zeros, NaN and the rest
with start(Parallel(strategy="ddp"), discover(), "cpu") as strategy:
    mine = content if strategy.rank == 0 else b""
    assert collective.broadcast_bytes(strategy, 0, mine, wanted=strategy.rank == 1) == (content if strategy.rank == 1 else b"")
"""
    run_ranks(code, 2)
