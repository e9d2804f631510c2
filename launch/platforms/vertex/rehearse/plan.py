"""Hosts of a rehearsed Vertex AI job, and the variables and commands of its containers. Pure
functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from launch.core.job import ALONE
from launch.core.rehearse.cluster import MOST_HOSTS, RehearsalCluster, RehearsalHost
from launch.core.rehearse.network import refuse_addresses
from launch.platforms.vertex.job import VertexJob
from segtrain.errors import ConfigError

DEFAULT_HOSTS = 3
PORT = 2222
# the entry point of an image built from docker/
ENTRY = ("python3", "-m", "segtrain.platforms.vertex")


def set_stage(request: Mapping[str, Any], *, hosts: int | None, isolated: bool) -> RehearsalCluster:
    """The hosts of the rehearsal. ``hosts``: their number (None: as in the request, at most 3).
    Raises ConfigError.
    """
    pools = request["jobSpec"]["workerPoolSpecs"]
    replicas = sum(int(pool["replicaCount"]) for pool in pools)
    count = min(replicas, DEFAULT_HOSTS) if hosts is None else hosts
    if count < 1 or count > MOST_HOSTS:
        raise ConfigError(
            f"--hosts {count}: give 1 to {MOST_HOSTS}",
            code="rehearsal-hosts",
            found=count,
            expected=MOST_HOSTS,
        )
    said = () if count == replicas else (f"{count} host{'s' * (count > 1)} instead of {replicas}",)
    if not isolated:
        refuse_addresses(count)
    machine = pools[0]["machineSpec"]["machineType"]
    places = [(0, 0), *((1, index) for index in range(count - 1))]  # pool, and index in it
    stage = tuple(
        RehearsalHost(
            _name(pool, index) if isolated else f"127.0.0.{n}",
            n,
            f"workerpool{pool}",
            machine,
            True,
        )
        for n, (pool, index) in enumerate(places, 1)
    )
    return RehearsalCluster(stage, "eth0" if isolated else "lo", stage[0], {}, said)


def local_ranks(job: VertexJob, procs: int | None) -> int:
    """The number of ranks on each host of a rehearsal. ``procs``: the one that is asked for. Raises
    ConfigError.
    """
    if procs is not None and procs < 1:
        raise ConfigError(
            f"--procs {procs}: at least one process must train", code="rehearsal-procs", found=procs
        )
    if procs is not None and procs > 1 and job.strategy in ALONE:
        raise ConfigError(
            f"--procs {procs}: strategy={job.strategy} is one process: leave --procs out",
            code="rehearsal-procs",
            found=procs,
        )
    return procs or 1


def _name(pool: int, index: int) -> str:
    return f"cmle-training-workerpool{pool}-0a1b2c3d4e-{index}"


def cluster_spec(
    host: RehearsalHost, stage: RehearsalCluster, request: Mapping[str, Any], port: int = PORT
) -> str:
    """The value of CLUSTER_SPEC for a replica, in the form that Vertex AI documents."""
    cluster: dict[str, list[str]] = {}
    for member in stage.hosts:
        cluster.setdefault(member.group, []).append(f"{member.name}:{port}")
    index = cluster[host.group].index(f"{host.name}:{port}")
    task = {"type": host.group, "index": index, "trial": ""}
    return json.dumps(
        {"cluster": cluster, "environment": "cloud", "task": task, "job": request["jobSpec"]}
    )


def variables(request: Mapping[str, Any]) -> dict[str, str]:
    """What Vertex AI adds to the environment of each container, besides CLUSTER_SPEC."""
    spec = request["jobSpec"]
    variables = {"CLOUD_ML_PROJECT_ID": "000000000000", "CLOUD_ML_JOB_ID": "rehearsal"}
    base = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "").rstrip("/")
    if base:
        variables |= {
            "AIP_MODEL_DIR": f"{base}/model/",
            "AIP_CHECKPOINT_DIR": f"{base}/checkpoints/",
            "AIP_TENSORBOARD_LOG_DIR": f"{base}/logs/",
        }
    return variables


def container_of(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container spec, which is the same for all replicas."""
    container: Mapping[str, Any] = request["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    return container


def environment_of(container: Mapping[str, Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in container.get("env", ())}


def command(container: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """The command and arguments of the request, where the rehearsal's settings replace or extend
    the job's own.
    """
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
    return sorted(
        {
            text.removeprefix("gs://").partition("/")[0]
            for text in addresses
            if text.startswith("gs://")
        }
    )
