"""Tests of trainings on Ray: what is found wrong before the start, and a real cluster that loses
and gains nodes.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, refused
from golden_findings import check_findings

from launch.platforms.ray import checks
from launch.platforms.ray.arguments import build_parser
from launch.platforms.ray.job import RayJob, arguments, load
from launch.platforms.ray.start import cluster
from segtrain.config import Config
from segtrain.parallel.cluster import discover
from segtrain.platforms import RANK_SOURCES
from segtrain.platforms.ray import hosts as ray_hosts
from segtrain.platforms.ray import worker as ray_worker

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="the extra 'ray' is not installed")


def asked(*words: str) -> RayJob:
    return load(vars(build_parser("ray").parse_intermixed_args(list(words))))


def test_the_code_that_came_along_goes_before_a_nodes_own(tmp_path, monkeypatch):
    (tmp_path / "sent/segtrain").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'sent'}:{tmp_path / 'own'}")
    assert ray_worker._bundle() == str(tmp_path / "sent")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'own'}:{tmp_path / 'sent'}")
    assert ray_worker._bundle() == str(ROOT)


def test_seconds_until_a_node_is_taken_away(monkeypatch):
    preemption = SimpleNamespace(preemption_info=None)
    context = SimpleNamespace(preemption_context=preemption)
    module = SimpleNamespace(get_train_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray.train.v2._internal.execution.context", module)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    assert ray_worker._preemption() is None
    for deadline_ms, seconds in ((0, 0.0), (1_030_000, 30.0), (990_000, 0.0)):
        preemption.preemption_info = SimpleNamespace(deadline_ms=deadline_ms)
        assert ray_worker._preemption() == seconds


def test_the_mark_that_nodes_must_see_is_a_file(tmp_path):
    assert checks.mark(tmp_path / "run").is_file()


def test_a_job_is_read_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = asked(
        "configs/camvid.yaml",
        "train.seed=3",
        "--elastic",
        "1:4",
        "--label",
        "zone=a",
        "--grace",
        "2m",
    )
    assert (job.config, job.least, job.most, job.elastic, job.grace) == (
        "configs/camvid.yaml",
        1,
        4,
        (1, 4),
        120,
    )
    assert job.labels == {"zone": "a"}
    words = arguments(job, "configs/camvid.yaml", {"data.root": "/data"})
    assert words[0] == "configs/camvid.yaml"
    assert {
        "train.seed=3",
        'data.root="/data"',
        f'out="{tmp_path}/runs/segtrain"',
        'parallel.strategy="ddp"',
    } <= set(words)
    assert asked("--workers", "2").least == 2


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--elastic", "4:1"), "value-invalid"),
        (("--elastic", "1:4", "--workers", "2"), "flags-together"),
        (("--workers", "auto", "--autoscaling"), "flags-together"),
        (("--strategy", "smddp"), "strategy-not-on-ray"),
    ],
)
def test_a_job_that_cannot_be_is_refused(words, code):
    with refused(code):
        asked(*words)


def node(
    labels: dict[str, str] | None = None, alive: bool = True, **resources: float
) -> dict[str, Any]:
    return {"Alive": alive, "Labels": labels or {}, "Resources": resources}


ROOMS: list[tuple[RayJob, int, list[Any]]] = [
    (RayJob(workers=2), 0, [node(CPU=1.0), node(CPU=1.0)]),
    (RayJob(workers=2), 0, [node(CPU=1.0), node(CPU=1.0, alive=False)]),
    (RayJob(workers=2, cpus=2), 0, [node(CPU=3.0), node(CPU=1.0)]),
    (RayJob(workers=2), 1, [node(CPU=8.0, GPU=1.0), node(CPU=8.0)]),
    (RayJob(workers=2), 1, [node(CPU=8.0, GPU=2.0)]),
    (RayJob(elastic=(1, 4)), 0, [node(CPU=1.0)]),
    (RayJob(elastic=(2, 4)), 0, [node(CPU=1.0)]),
    (RayJob(workers=2, autoscaling=True), 0, [node(CPU=1.0)]),
    (RayJob(labels={"zone": "a"}), 0, [node(CPU=1.0)]),
    (RayJob(labels={"zone": "a"}), 0, [node(CPU=1.0), node({"zone": "a"}, CPU=1.0)]),
    (RayJob(workers=2, labels={"zone": "a"}), 0, [node(CPU=1.0), node({"zone": "a"}, CPU=1.0)]),
]


def test_findings_of_room_and_labels():
    jobs = {
        str(number): list(checks.room(job, nodes, gpus))
        for number, (job, gpus, nodes) in enumerate(ROOMS)
    }
    check_findings("findings/ray-room", jobs, [])


def test_auto_is_as_many_ranks_as_there_is_room_for():
    nodes = [node(CPU=8.0, GPU=2.0), node(CPU=1.0, GPU=2.0), node(alive=False, CPU=8.0, GPU=8.0)]
    nodes += [node({"zone": "a"}, CPU=2.0)]
    job = asked("--workers", "auto")

    def chosen(gpus: int, batch: int = 0, job: RayJob = job) -> tuple[int, list[str]]:
        config = Config(train={"batch_size": batch}) if batch else None
        sized, findings = checks.sized(job, config, nodes, gpus)
        return sized.workers, [finding.message for finding in findings]

    assert chosen(1) == (3, ["--workers auto: 3 ranks, 1 CPU and 1 GPU each"])
    assert chosen(0)[0] == 11
    assert chosen(1, batch=6)[0] == 3
    rest = "there is room for 3, which do not divide a micro-batch evenly"
    assert chosen(1, batch=8) == (2, [f"--workers auto: 2 ranks, 1 CPU and 1 GPU each; {rest}"])
    assert chosen(0, job=asked("--workers", "auto", "--label", "zone=a"))[0] == 2
    assert chosen(0, job=asked("--workers", "auto", "--cpus", "16")) == (1, [])
    assert checks.sized(RayJob(workers=7), None, nodes, 0) == (RayJob(workers=7), [])


def seen(
    host: str, sees: bool = True, python: str = "3.11", torch: str | None = "2.8.0"
) -> dict[str, Any]:
    return {"host": host, "sees": sees, "python": python, "packages": {"torch": torch}}


LOOKS = [
    [seen("a"), seen("b")],
    [seen("a"), seen("b", sees=False)],
    [seen("a"), seen("b", python="3.12")],
    [seen("a"), seen("b", torch="2.7.1")],
    [seen("a"), seen("b", torch=None)],
]


def test_findings_of_nodes_that_differ():
    run = Path("/shared/runs/a")
    jobs = {str(number): list(checks.alike(looks, run)) for number, looks in enumerate(LOOKS)}
    check_findings("findings/ray-nodes", jobs, [])


def test_a_batch_that_is_too_small_for_the_most_ranks_is_found():
    findings, _ = checks.offline(RayJob(elastic=(1, 8), settings={"train.batch_size": 4}))
    assert "batch-small" in {finding.code for finding in findings}


def test_a_rank_takes_its_place_from_ray():
    places = {"world_rank": 2, "world_size": 4, "local_rank": 0, "local_world_size": 2}
    context = SimpleNamespace(
        **{f"get_{name}": lambda value=value: value for name, value in places.items()}
    )
    cluster = discover(RANK_SOURCES, ray_hosts.environment(context, "10.0.0.7", 1234))
    assert (cluster.rank, cluster.world_size, cluster.local_rank, cluster.local_world_size) == (
        2,
        4,
        0,
        2,
    )
    assert (cluster.master_addr, cluster.master_port, cluster.source) == (
        "10.0.0.7",
        1234,
        ray_hosts.RAY,
    )


def test_a_node_says_what_it_has(tmp_path):
    mark = tmp_path / "mark"
    found = ray_worker.describe_node(str(mark))
    assert (found["host"], found["sees"]) == (platform.node(), False)
    assert found["packages"].keys() == set(ray_worker.COMPARED)
    mark.touch()
    assert ray_worker.describe_node(str(mark))["sees"]
    assert ray_worker.describe_node("")["sees"]


@needs_ray
def test_an_address_where_nothing_answers_is_refused_at_once():
    with refused("ray-not-reached", address="127.0.0.1:9"), cluster(RayJob(address="127.0.0.1:9")):
        pass
