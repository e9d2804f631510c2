"""Tests of helpers on a real Ray: two nodes on this machine, joined by loopback."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import ROOT, refused
from waiting import soon

from segtrain.observe.journal import read_journal
from segtrain.platforms.ray.helpers import cluster
from segtrain.platforms.ray.helpers.cluster import join_ray, slots_of

RAY = importlib.util.find_spec("ray") is not None
pytestmark = pytest.mark.skipif(not RAY, reason="the extra 'ray' is not installed")


class Nodes:
    """Nodes of a Ray cluster, each a ``ray start --block`` with its own processes."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="st", dir="/tmp")  # Ray's sockets need short names
        # Not an ephemeral port: whoever tries to connect to one that nobody listens on may connect
        # to itself.
        self._port = random.randrange(20_000, 32_000)
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.start(
            "--head",
            f"--port={self._port}",
            "--num-cpus=0",
            "--include-dashboard=false",
            f"--temp-dir={self._folder}",
        )

    @property
    def environment(self) -> dict[str, str]:
        ray = {
            "ADDRESS": f"127.0.0.1:{self._port}",
            "USAGE_STATS_ENABLED": "0",
            "AUTH_MODE": "token",
            "AUTH_TOKEN": "ab" * 32,
        }
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            **{f"RAY_{key}": value for key, value in ray.items()},
        }

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [
            str(Path(sys.executable).parent / "ray"),
            "start",
            "--block",
            "--object-store-memory=100000000",
            *arguments,
        ]
        environment = {
            key: value for key, value in self.environment.items() if key != "RAY_ADDRESS"
        }
        with open(f"{self._folder}/node-{len(self.nodes)}.log", "wb") as log:
            node = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self.nodes.append(node)
        return node

    def help(self, cores: int) -> subprocess.Popen[bytes]:
        """Start a node that helps."""

        def up() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self._port)) == 0

        assert soon(up, 60)
        return self.start(
            f"--address=127.0.0.1:{self._port}",
            f"--num-cpus={cores}",
            "--labels=segtrain/role=help",
        )

    def helpers(self) -> Iterator[psutil.Process]:
        """The processes of helpers that run."""
        for node in self.nodes:
            with contextlib.suppress(psutil.NoSuchProcess):
                for one in psutil.Process(node.pid).children(recursive=True):
                    if (
                        one.name().startswith("ray::RayHelper")
                        and one.status() != psutil.STATUS_STOPPED
                    ):
                        yield one

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.terminate()
        for node in self.nodes:
            try:
                node.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)
                node.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A head that trains, and a node whose two cores help."""
    if not (Path(sys.executable).parent / "ray").exists():
        pytest.skip("the command ray is not beside this Python")
    started = Nodes()
    try:
        started.help(2)
        yield started
    finally:
        started.close()


def case(nodes: Nodes, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/kit/ray_case.py")],
        env={**nodes.environment, **environment},
        stdout=subprocess.PIPE,
        timeout=500,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_the_same_batches_by_socket_by_store_and_after_a_kill(nodes):
    found = case(nodes)
    assert (found["cores"], found["halves"], found["left"]) == (2, [1, 1], 0)
    ways = ("by socket", "killed", "hired again", "by store")
    assert [found[way] for way in ways] == [True] * 4, found
    assert found["local"] > 0
    assert found["signals"] == [signal.SIGTERM]  # as a run that is told to stop gets it
    assert sum("lost" in line for line in found["said"]) >= 1


def test_each_mistake_has_its_code(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with refused("ray-address-missing", variable="RAY_ADDRESS"):
        join_ray("ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused("missing-package", package="ray"):
        join_ray("ray")


def test_no_cluster_at_the_address(tmp_path, segtrain):
    done = segtrain(
        "train",
        "data.helpers=ray",
        "data.scenes=8",
        f"out={tmp_path / 'run'}",
        RAY_ADDRESS="127.0.0.1:9",
    )
    assert done.returncode == 2
    assert "RAY_ADDRESS=127.0.0.1:9" in done.stderr + done.stdout
    assert not (tmp_path / "run").exists()


TRAIN = [
    "data.scenes=24",
    "data.scene_size=[48, 64]",
    "data.crop=[32, 32]",
    "data.workers=1",
    "train.batch_size=8",
    "model.arch=pico",
    "train.device=cpu",
    "log.digest=true",
    "log.every=1",
    "log.tensorboard=false",
]


@pytest.mark.ray
def test_ray_data_trains_an_epoch_on_two_ranks_with_each_sample_once(nodes, tmp_path):
    def train(out: str, *more: str) -> subprocess.CompletedProcess[str]:
        torchrun = [
            str(Path(sys.executable).parent / "torchrun"),
            "--nproc-per-node",
            "2",
            "-m",
            "segtrain",
            "train",
        ]
        return subprocess.run(
            [*torchrun, *TRAIN, *more, f"out={tmp_path / out}"],
            cwd=tmp_path,
            text=True,
            capture_output=True,
            env={
                **nodes.environment,
                "SEGTRAIN_CACHE": str(tmp_path / "cache"),
                "OMP_NUM_THREADS": "1",
            },
            timeout=300,
        )

    def samples(out: str) -> int:
        """The sum of the checksums of all samples: each step has that of its own."""
        return sum(one["digest"] for one in read_journal(tmp_path / out) if one["event"] == "step")

    for out, more in (("alone", ()), ("ray", ("data.helpers=ray-data",))):
        done = train(out, "train.duration=1ep", *more)
        assert done.returncode == 0, done.stderr
    assert "this run cannot resume" in done.stdout + done.stderr
    assert samples("ray") == samples("alone")
    again = train("ray", "train.duration=1ep")
    assert again.returncode == 1  # torchrun's own
    assert "data.helpers" in again.stderr


def test_the_seats_of_all_ranks_are_all_seats():
    def node(name: str, cores: int, role: str = "help", alive: bool = True) -> dict[str, Any]:
        labels = {cluster.ROLE: role}
        return {
            "NodeID": name,
            "NodeManagerHostname": f"host-{name}",
            "NodeManagerAddress": "",
            "Alive": alive,
            "Labels": labels,
            "Resources": {"CPU": float(cores)} if cores else {},
        }

    nodes = [
        node("b", 3),
        node("a", 2),
        node("c", 4, "gpu"),
        node("d", 4, alive=False),
        node("e", 0),
    ]
    every = slots_of(nodes, "auto", 0, 1)
    assert [(slot.node, slot.number) for slot in every] == [
        ("a", 0),
        ("b", 0),
        ("a", 1),
        ("b", 1),
        ("b", 2),
    ]
    assert slots_of(nodes, 3, 0, 1) == every[:3]
    for world in (2, 3, 7):
        shares = [slots_of(nodes, "auto", rank, world) for rank in range(world)]
        assert sorted(map(str, every)) == sorted(str(slot) for share in shares for slot in share)
