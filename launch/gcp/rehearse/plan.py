"""Hosts of a rehearsed Vertex AI job, and the variables and commands of its containers. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from launch.gcp.job import VertexJob
from launch.gcp.preflight.machines import ALONE
from launch.rehearse.cluster import MOST_HOSTS, RehearsalCluster, RehearsalHost
from launch.rehearse.network import refuse_addresses
from segtrain.errors import ConfigError

DEFAULT_HOSTS = 3
PORT = 2222
TRAINING = (0, 1)  # worker pools that train
ENTRY = ("python3", "-m", "segtrain.platforms.vertex")  # the entry point of an image built from docker/


def set_stage(request: Mapping[str, Any], *, hosts: int | None, isolated: bool) -> RehearsalCluster:
    """The hosts of the rehearsal. ``hosts``: their number (None: as in the request, at most 3). Raises ConfigError."""
    said: list[str] = []
    numbered: list[tuple[int, int, str]] = []  # pool, index, machine
    for pool, index, machine in _replicas(request):
        if pool not in TRAINING:
            said.append(f"worker pool {pool} is left out: it runs an image of its own")
        else:
            numbered.append((pool, index, machine))
    asked = len(numbered)
    count = min(asked, DEFAULT_HOSTS) if hosts is None else hosts
    if count < 1 or count > MOST_HOSTS:
        raise ConfigError(
            f"--hosts {count}: give 1 to {MOST_HOSTS}", code="rehearsal-hosts", found=count, expected=MOST_HOSTS
        )
    if count > asked:
        numbered += [(1, index, numbered[-1][2]) for index in range(asked - 1, count - 1)]
    if count != asked:
        said.append(f"{count} host{'s' * (count > 1)} instead of {asked}")
    if not isolated:
        refuse_addresses(count)
    stage = tuple(
        RehearsalHost(_name(pool, index) if isolated else f"127.0.0.{n}", n, f"workerpool{pool}", machine, True)
        for n, (pool, index, machine) in enumerate(numbered[:count], 1)
    )
    return RehearsalCluster(stage, "eth0" if isolated else "lo", stage[0], {}, tuple(dict.fromkeys(said)))


def local_ranks(job: VertexJob, procs: int | None) -> int:
    """The number of ranks on each host of a rehearsal. ``procs``: the one that is asked for. Raises ConfigError."""
    if procs is not None and procs < 1:
        raise ConfigError(f"--procs {procs}: at least one process must train", code="rehearsal-procs", found=procs)
    if procs is not None and procs > 1 and job.strategy in ALONE:
        raise ConfigError(
            f"--procs {procs}: strategy={job.strategy} is one process: leave --procs out",
            code="rehearsal-procs", found=procs,
        )  # fmt: skip
    return procs or 1


def _replicas(request: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    pools = request["jobSpec"]["workerPoolSpecs"]
    return [
        (pool, index, spec["machineSpec"]["machineType"])
        for pool, spec in enumerate(pools)
        if spec
        for index in range(int(spec.get("replicaCount", 1)))
    ]


def _name(pool: int, index: int) -> str:
    return f"cmle-training-workerpool{pool}-0a1b2c3d4e-{index}"


def pool_of(host: RehearsalHost) -> int:
    return int(host.group.removeprefix("workerpool"))


def cluster_spec(host: RehearsalHost, stage: RehearsalCluster, request: Mapping[str, Any], port: int = PORT) -> str:
    """The value of CLUSTER_SPEC for a replica, in the form that Vertex AI documents."""
    cluster: dict[str, list[str]] = {}
    for member in stage.hosts:
        cluster.setdefault(member.group, []).append(f"{member.name}:{port}")
    index = cluster[host.group].index(f"{host.name}:{port}")
    task = {"type": host.group, "index": index, "trial": ""}
    return json.dumps({"cluster": cluster, "environment": "cloud", "task": task, "job": request["jobSpec"]})


def variables(request: Mapping[str, Any]) -> dict[str, str]:
    """What Vertex AI adds to the environment of each container, besides CLUSTER_SPEC."""
    spec = request["jobSpec"]
    found = {"CLOUD_ML_PROJECT_ID": "000000000000", "CLOUD_ML_JOB_ID": "rehearsal"}
    base = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "").rstrip("/")
    if base:
        found |= {
            "AIP_MODEL_DIR": f"{base}/model/",
            "AIP_CHECKPOINT_DIR": f"{base}/checkpoints/",
            "AIP_TENSORBOARD_LOG_DIR": f"{base}/logs/",
        }
    return found


def container_of(host: RehearsalHost, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container spec of a host's pool. A host beyond the request's own gets that of the last pool."""
    pools = [spec for spec in request["jobSpec"]["workerPoolSpecs"] if spec]
    spec = pools[min(pool_of(host), len(pools) - 1)]
    found: Mapping[str, Any] = spec["containerSpec"]
    return found


def environment_of(container: Mapping[str, Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in container.get("env", ())}


def command(container: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """The command and arguments of the request, where the rehearsal's settings replace or extend the job's own."""
    words = list(container.get("args", ()))
    for key, value in settings.items():
        text = f"{key}={json.dumps(value)}"
        places = [k for k, word in enumerate(words) if word.startswith(f"{key}=")]
        if places:
            words[places[0]] = text
        else:
            words.append(text)
    return [*(container.get("command") or ENTRY), *words]


def buckets(addresses: Sequence[str]) -> list[str]:
    """The names of the buckets of gs:// addresses."""
    return sorted({text.removeprefix("gs://").partition("/")[0] for text in addresses if text.startswith("gs://")})
