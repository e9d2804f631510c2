"""Tests that a run with its folder in a bucket can be killed at any moment, and resumes to the same
bits on any host.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from cloud.bucket import BucketServer
from refusals import SCENES, finish, refuse

from segtrain.parallel.cluster import Cluster, free_port
from segtrain.runfolder import checkpoint
from segtrain.runfolder.lease import FILE as LEASE
from segtrain.runfolder.mirror import ID

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'segtrain[buckets]'")

SETTINGS = [
    item
    for item in SCENES
    if not item.startswith(("out=", "train.duration", "eval.every", "checkpoint"))
]
SETTINGS += ["eval.every=4st", "checkpoint.every=2st", "log.profile_ms=0", "data.outage_s=60"]


def start(
    zygote: Any,
    tmp_path: Path,
    server: BucketServer,
    cache: str,
    *more: str,
    out: str = "gs://bkt/runs/a",
) -> Any:
    """Train with the folder of caches ``cache``: another one is another host."""
    settings = [*SETTINGS, f"out={out}", *more]
    return zygote.start(
        "train",
        *settings,
        cwd=tmp_path,
        SEGTRAIN_CACHE=str(tmp_path / cache),
        **server.environment(),
    )


def train(
    zygote: Any, tmp_path: Path, server: BucketServer, cache: str, *more: str, **options: str
) -> str:
    process = start(zygote, tmp_path, server, cache, *more, **options)
    assert finish([process]) == [0], process.output
    return str(process.output)


def assert_equal_runs(first: Path, second: Path) -> None:
    """The newest checkpoints are equal, but for the seconds that they took."""
    states = [checkpoint.newest(folder).state for folder in (first, second)]
    one, two = states
    assert one is not None
    assert two is not None
    for part in ("model", "ema", "optimizer"):
        assert repr_of(one[part]) == repr_of(two[part])
    assert {**one["state"], "cpu_s": 0, "wall_s": 0} == {**two["state"], "cpu_s": 0, "wall_s": 0}


def repr_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    return (
        {name: repr_of(item) for name, item in value.items()} if isinstance(value, dict) else value
    )


@pytest.fixture(scope="module")
def undisturbed(zygote: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps on the disk."""
    folder = tmp_path_factory.mktemp("undisturbed")
    process = zygote.start("train", *SETTINGS, "train.duration=12st", "out=run", cwd=folder)
    assert finish([process]) == [0], process.output
    return folder / "run"


def test_a_run_goes_on_from_the_bucket_on_another_host(zygote, tmp_path, server, undisturbed):
    server.fault, out = 0.05, "s3://bkt/runs/a"
    there = server.folder / "bkt/runs/a"
    said = train(zygote, tmp_path, server, "one", "train.duration=12st", out=out)
    assert "uploaded" in said
    assert not (there / LEASE).exists()
    (here,) = (tmp_path / "one/runs").iterdir()
    names = {path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()}
    names = {name for name in names if not name.split("/")[-1].startswith(".")}
    assert names == {
        path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()
    }
    for name in names:
        assert (there / name).read_bytes() == (here / name).read_bytes(), name
    assert_equal_runs(there, undisturbed)
    # On another host the run is known to be finished; a longer one would have other settings.
    assert "finished" in train(zygote, tmp_path, server, "two", "train.duration=12st", out=out)
    process = start(zygote, tmp_path, server, "three", "train.duration=14st", out=out)
    assert finish([process]) == [2]
    assert f"{out} holds a run with other settings" in process.output


@pytest.mark.long
def test_kills_at_any_moment_leave_a_run_that_resumes_to_the_same_bits(
    zygote, tmp_path, server, undisturbed
):
    server.fault, server.delay, draws = 0.05, 0.01, random.Random(5)
    there = server.folder / "bkt/runs/a"
    for attempt in range(4):
        # On the host of the last attempt or on another one.
        process = start(zygote, tmp_path, server, f"host-{attempt * 2 // 3}", "train.duration=12st")
        writes, begin = server.requests["PUT"] + draws.randrange(2, 16), time.monotonic()
        while server.requests["PUT"] < writes and time.monotonic() - begin < 120:
            time.sleep(0.001)
        process.signal(signal.SIGKILL)
        assert process.wait() in (-signal.SIGKILL, 0), process.output
        newest = checkpoint.checkpoints(there)[-1:]
        for path in newest:
            best = checkpoint.best_of(checkpoint.read(path))
            assert best is None or (there / "checkpoints" / best.file).is_file()
    train(zygote, tmp_path, server, "last", "train.duration=12st")
    assert_equal_runs(there, undisturbed)
    assert checkpoint.named_best(there) == checkpoint.named_best(undisturbed)


@pytest.mark.long
def test_a_bucket_that_goes_away_stops_nothing_and_the_end_says_where_the_run_is(
    zygote, tmp_path, server, undisturbed
):
    there = server.folder / "bkt/runs/a"
    process = start(zygote, tmp_path, server, "one", "train.duration=12st", "data.outage_s=0.5")
    while not (there / ID).is_file():
        time.sleep(0.001)
    server.down = True
    assert finish([process]) == [2], process.output
    (here,) = (tmp_path / "one/runs").iterdir()
    (problem,) = [line for line in process.output.splitlines() if line.startswith("error:")]
    assert str(here) in problem
    assert_equal_runs(here, undisturbed)
    server.down = False
    train(zygote, tmp_path, server, "one", "train.duration=12st")
    assert_equal_runs(there, undisturbed)


def test_two_hosts_go_on_from_the_bucket(zygote, tmp_path, server):
    """A run of one process, stopped, goes on with two, each on a host of its own; later with one
    again.
    """
    there, more = server.folder / "bkt/runs/a", ["train.duration=12st", "train.batch_size=4"]
    process = start(zygote, tmp_path, server, "one", *more)
    while not (there / "journal.jsonl").is_file():
        time.sleep(0.001)
    process.signal(signal.SIGTERM)
    assert finish([process])[0] in (0, 75), process.output
    for path in checkpoint.checkpoints(there)[1:]:
        path.unlink()
    before = checkpoint.step_of(checkpoint.checkpoints(there)[0])
    port, hosts = free_port(), []
    for rank in range(2):
        place = Cluster(rank, 2, 0, 1, "127.0.0.1", port).environment()
        environment = {
            "SEGTRAIN_CACHE": str(tmp_path / f"host-{rank}"),
            **server.environment(),
            **place,
        }
        hosts.append(
            zygote.start(
                "train", *SETTINGS, *more, "out=gs://bkt/runs/a", cwd=tmp_path, **environment
            )
        )
    assert finish(hosts) == [0, 0], "".join(host.output for host in hosts)
    assert "received rank 0's copy" in hosts[0].output
    assert f"going on from step {before} of 12" in hosts[0].output
    assert (there / "spans/rank-00001.jsonl").is_file()
    state = checkpoint.newest(there).state
    assert state is not None
    assert (state["world_size"], state["state"]["step"]) == (2, 12)
    assert "finished" in train(zygote, tmp_path, server, "three", *more)


def test_a_run_in_a_bucket_is_scored_used_and_exported(zygote, tmp_path, server, undisturbed):
    there = server.folder / "bkt/runs/a"
    shutil.copytree(undisturbed, there)

    def call(*arguments: object) -> str:
        cache = {"SEGTRAIN_CACHE": str(tmp_path / "cache")}
        process = zygote.start(*arguments, cwd=tmp_path, **cache, **server.environment())
        assert finish([process]) == [0], process.output
        return str(process.output)

    def scores(*arguments: object) -> dict[str, Any]:
        return dict(json.loads(call("eval", *arguments, "--json").splitlines()[-1]))

    best = checkpoint.named_best(undisturbed)
    assert best is not None
    assert best.step < 12  # or both would be the same checkpoint
    for which in ("best", "last"):
        assert (
            scores("gs://bkt/runs/a", "--which", which)["miou"]
            == scores(undisturbed, "--which", which)["miou"]
        )
    got = {path for path, _ in server.asked if path.endswith(".pt") and "/checkpoints/" in path}
    assert {path.rpartition("/")[2] for path in got} == {best.file, "step-00000012.pt"}
    cv2.imwrite(str(tmp_path / "image.png"), np.zeros((40, 48, 3), np.uint8))
    call("predict", "gs://bkt/runs/a", "image.png", "--no-overlay", "--out", "there")
    call("predict", undisturbed, "image.png", "--no-overlay", "--out", "here")
    mask = "masks/image.png"
    assert (tmp_path / "there" / mask).read_bytes() == (tmp_path / "here" / mask).read_bytes()
    said = call(
        "export", "gs://bkt/runs/a", "--formats", "safetensors", "--out", "s3://bkt/models/a"
    )
    assert said.splitlines()[-2:] == [
        "s3://bkt/models/a/weights.safetensors",
        "s3://bkt/models/a/model.json",
    ]
    call("predict", "s3://bkt/models/a", "image.png", "--no-overlay", "--out", "exported")
    assert (tmp_path / "exported" / mask).read_bytes() == (tmp_path / "here" / mask).read_bytes()
    refuse(
        zygote,
        tmp_path,
        ["predict", undisturbed, "image.png", "--out", "gs://bkt/masks"],
        "--out=gs://bkt/masks",
    )
