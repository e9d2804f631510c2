"""Tests of trainings on Ray: what is found wrong before the start, and a real cluster that loses and gains nodes."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import refused

from launch.raytrain import checks
from launch.raytrain.arguments import build_parser
from launch.raytrain.job import RayJob, arguments, load
from launch.raytrain.start import cluster
from segtrain.observe.journal import read_journal
from segtrain.parallel import ray_hosts
from segtrain.parallel.cluster import discover
from segtrain.platforms import ray_worker

ROOT = Path(__file__).parents[1]
SETTINGS = [
    "data.scene_size=[40,48]", "data.crop=[32,32]", "data.workers=1", "train.batch_size=4", "train.progressive=[]",
    "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}", "optim.name=sgd", "log.every=1",
    "log.profile_ms=0", "log.pictures=0", "log.tensorboard=false", "checkpoint.every=5st", "train.device=cpu",
]  # fmt: skip
HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="the extra 'ray' is not installed")


def asked(*words: str) -> RayJob:
    return load(vars(build_parser("ray").parse_intermixed_args(list(words))))


def test_a_job_is_read_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = asked("configs/camvid.yaml", "train.seed=3", "--elastic", "1:4", "--label", "zone=a", "--grace", "2m")
    assert (job.config, job.least, job.most, job.elastic, job.grace) == ("configs/camvid.yaml", 1, 4, (1, 4), 120)
    assert job.labels == {"zone": "a"}
    words = arguments(job, "configs/camvid.yaml", {"data.root": "/data"})
    assert words[0] == "configs/camvid.yaml"
    assert {"train.seed=3", 'data.root="/data"', f'out="{tmp_path}/runs/segtrain"', 'parallel.strategy="ddp"'} <= set(
        words
    )
    assert asked("--workers", "2").least == 2


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--elastic", "4:1"), "value-invalid"),
        (("--elastic", "1:4", "--workers", "2"), "flags-together"),
        (("--workers", "0"), "number-too-small"),
        (("--strategy", "smddp"), "strategy-not-on-ray"),
    ],
)
def test_a_job_that_cannot_be_is_refused(words: tuple[str, ...], code: str) -> None:
    with refused(code):
        asked(*words)


def node(labels: dict[str, str] | None = None, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "Labels": labels or {}, "Resources": resources}


@pytest.mark.parametrize(
    ("job", "gpus", "nodes", "expected"),
    [
        (RayJob(workers=2), 0, [node(CPU=1.0), node(CPU=1.0)], []),
        (RayJob(workers=2), 0, [node(CPU=1.0), node(CPU=1.0, alive=False)], ["error ray-room"]),
        (RayJob(workers=2, cpus=2), 0, [node(CPU=3.0), node(CPU=1.0)], ["error ray-room"]),
        (RayJob(workers=2), 1, [node(CPU=8.0, GPU=1.0), node(CPU=8.0)], ["error ray-room"]),
        (RayJob(workers=2), 1, [node(CPU=8.0, GPU=2.0)], []),
        (RayJob(elastic=(1, 4)), 0, [node(CPU=1.0)], []),
        (RayJob(elastic=(2, 4)), 0, [node(CPU=1.0)], ["error ray-room"]),
        (RayJob(workers=2, autoscaling=True), 0, [node(CPU=1.0)], ["note ray-room"]),
        (RayJob(labels={"zone": "a"}), 0, [node(CPU=1.0)], ["error ray-labels"]),
        (RayJob(labels={"zone": "a"}), 0, [node(CPU=1.0), node({"zone": "a"}, CPU=1.0)], []),
        (RayJob(workers=2, labels={"zone": "a"}), 0, [node(CPU=1.0), node({"zone": "a"}, CPU=1.0)], ["error ray-room"]),
    ],
)
def test_room_and_labels_are_checked(job: RayJob, gpus: int, nodes: list[Any], expected: list[str]) -> None:
    assert [f"{finding.level} {finding.code}" for finding in checks.room(job, nodes, gpus)] == expected


def seen(host: str, sees: bool = True, python: str = "3.11", torch: str | None = "2.8.0") -> dict[str, Any]:
    return {"host": host, "sees": sees, "python": python, "packages": {"torch": torch}}


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([seen("a"), seen("b")], []),
        ([seen("a"), seen("b", sees=False)], ["run-folder-not-shared"]),
        ([seen("a"), seen("b", python="3.12")], ["node-versions"]),
        ([seen("a"), seen("b", torch="2.7.1")], ["node-versions"]),
        ([seen("a"), seen("b", torch=None)], ["node-lacks-package"]),
    ],
)
def test_nodes_that_differ_are_named(looks: list[Any], expected: list[str], tmp_path: Path) -> None:
    found = list(checks.alike(looks, tmp_path))
    assert [finding.code for finding in found] == expected
    assert all("b" in finding.message for finding in found)


def test_a_batch_that_is_too_small_for_the_most_ranks_is_found() -> None:
    findings, _ = checks.offline(RayJob(elastic=(1, 8), settings={"train.batch_size": 4}), ROOT)
    assert "batch-small" in {finding.code for finding in findings}


def test_a_rank_takes_its_place_from_ray(tmp_path: Path) -> None:
    places = {"world_rank": 2, "world_size": 4, "local_rank": 0, "local_world_size": 2}
    context = SimpleNamespace(**{f"get_{name}": lambda value=value: value for name, value in places.items()})
    cluster = discover(ray_hosts.environment(context, "10.0.0.7", 1234), tmp_path / "none.json")
    assert (cluster.rank, cluster.world_size, cluster.local_rank, cluster.local_world_size) == (2, 4, 0, 2)
    assert (cluster.master_addr, cluster.master_port, cluster.source) == ("10.0.0.7", 1234, "ray")


def test_a_node_says_what_it_has(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    found = ray_worker.look(str(mark))
    assert (found["host"], found["sees"]) == (platform.node(), False)
    assert found["packages"].keys() == set(ray_worker.COMPARED)
    mark.touch()
    assert ray_worker.look(str(mark))["sees"]
    assert ray_worker.look("")["sees"]


@needs_ray
def test_an_address_where_nothing_answers_is_refused_at_once() -> None:
    with refused("ray-not-reached", address="127.0.0.1:9"), cluster(RayJob(address="127.0.0.1:9")):
        pass


class Nodes:
    """A real Ray of several nodes with one core each, and trainings that are attached to it."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})

    def add(self) -> Any:
        return self.cluster.add_node(num_cpus=1)

    def train(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "launch/ray.py", "configs/scenes.yaml", "--output", str(self.folder), "--name", name]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, "--address", self.cluster.address, *SETTINGS, *words], cwd=ROOT, stdout=log,
                stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        journal = self.folder / name / "journal.jsonl"
        return [event for event in read_journal(journal.parent) if event["event"] == kind] if journal.exists() else []

    def step(self, name: str) -> int:
        return max((event["step"] for event in self.events(name, "step")), default=0)

    def until(self, ready: Callable[[], Any], process: subprocess.Popen[bytes], limit_s: float = 150.0) -> None:
        end = time.monotonic() + limit_s
        while not ready():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setenv("RAY_TMPDIR", f"/tmp/st-{os.getpid()}")
    found = Nodes(tmp_path)
    yield found
    found.cluster.shutdown()


@needs_ray
@pytest.mark.slow
def test_two_nodes_train_one_run(nodes: Nodes) -> None:
    nodes.add(), nodes.add()
    process = nodes.train("two", "--workers", "2", "train.duration=6st")
    assert process.wait(200) == 0, nodes.log("two")
    assert nodes.step("two") == 6
    assert nodes.events("two", "run_start")[0]["world_size"] == 2
    assert nodes.train("three", "--workers", "3", "train.duration=6st").wait(100) == 2  # there is room for two
    assert not nodes.events("three", "run_start")
