"""Hosts of a rehearsed SageMaker job, their groups, and hyperparameters that differ from the cloud.
Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from launch.core.rehearse.cluster import MOST_HOSTS, RehearsalCluster, RehearsalHost
from launch.core.rehearse.network import refuse_addresses
from launch.platforms.sagemaker.progress import machines
from segtrain.errors import ConfigError

SMDDP = "sagemaker_distributed_dataparallel_enabled"
ONE_GROUP = "homogeneousCluster"  # SageMaker's name for the only group of a job without groups


def set_stage(
    request: Mapping[str, Any],
    *,
    hosts: int | None,
    procs: int | None,
    isolated: bool,
    settings: Mapping[str, Any],
    lacking: str = "mpirun",
) -> RehearsalCluster:
    """The hosts and hyperparameters of a rehearsal. ``hosts``: number of hosts in each group that
    trains (None: as in the request, at most 3). A group that helps has at most 3 hosts, and a group
    without work has one. ``settings``: changed settings of segtrain, for this rehearsal only.
    ``lacking``: what a start by mpirun lacks here. Raises ConfigError.
    """
    hyperparameters: Mapping[str, str] = request.get("HyperParameters", {})
    said: list[str] = []
    counted = _counted(request, hosts, said)
    trains = _training_groups(hyperparameters, [name for name, _, _ in counted])
    numbered = [(name, kind) for name, kind, count in counted for _ in range(count)]
    # Hosts that do not train come first, so that code that wrongly expects algo-1 to train fails
    # here.
    numbered.sort(key=lambda item: item[0] in trains)
    if len(numbered) > MOST_HOSTS:
        raise ConfigError(
            f"--hosts: {len(numbered)} hosts on one machine are too many: at most {MOST_HOSTS}",
            code="rehearsal-hosts",
        )
    if not isolated:
        refuse_addresses(len(numbered))
    stage = tuple(
        RehearsalHost(f"algo-{n}" if isolated else f"127.0.0.{n}", n, group, kind, group in trains)
        for n, (group, kind) in enumerate(numbered, 1)
    )
    # AWS's toolkit puts rank 0 on the first host in the training group's list, which ``members``
    # returns reversed.
    leader = [host for host in stage if host.trains][-1]
    parameters = _hyperparameters(hyperparameters, procs, settings, lacking, said)
    return RehearsalCluster(stage, "eth0" if isolated else "lo", leader, parameters, tuple(said))


def _counted(
    request: Mapping[str, Any], hosts: int | None, said: list[str]
) -> list[tuple[str, str, int]]:
    """Name, type, and number of hosts of each group."""
    if hosts is not None and hosts < 1:
        raise ConfigError(f"--hosts {hosts}: at least one host must train", code="rehearsal-hosts")
    resources = request["ResourceConfig"]
    groups = resources.get("InstanceGroups")
    requested = [
        (g["InstanceGroupName"], g["InstanceType"], int(g["InstanceCount"])) for g in groups or []
    ]
    if not requested:
        requested = [(ONE_GROUP, *machines(resources)[0])]
    hyperparameters, names = request.get("HyperParameters", {}), [name for name, _, _ in requested]
    trains, helps = (
        _training_groups(hyperparameters, names),
        json.loads(hyperparameters.get("helpers.groups", "[]")),
    )
    counted = []
    for name, kind, count in requested:
        here = (hosts or min(count, 3)) if name in trains else min(count, 3 if name in helps else 1)
        if here != count:
            said.append(f"{here} host{'s' * (here > 1)} of group {name} instead of {count}")
        counted.append((name, kind, here))
    return counted


def _training_groups(hyperparameters: Mapping[str, str], names: list[str]) -> list[str]:
    """The groups in which AWS's toolkit starts its launcher."""
    text = hyperparameters.get("sagemaker_distribution_instance_groups")
    return [name for name in json.loads(text) if name in names] if text else names


def _hyperparameters(
    hyperparameters: Mapping[str, str],
    procs: int | None,
    settings: Mapping[str, Any],
    lacking: str,
    said: list[str],
) -> dict[str, str]:
    parameters = dict(hyperparameters)
    smddp = parameters.get(SMDDP) == "true"
    if smddp:
        said.append("strategy smddp: an SMDDP stand-in that has the same restrictions")
    if smddp and lacking:
        for key in [
            key for key in parameters if key.startswith("sagemaker_distributed_dataparallel_")
        ]:
            del parameters[key]
        parameters["sagemaker_torch_distributed_enabled"] = "true"
        said.append(f"torchrun starts the ranks instead of mpirun and sshd (missing: {lacking})")
    if procs is not None:
        if procs < 1:
            raise ConfigError(
                f"--procs {procs}: at least one process must train", code="rehearsal-procs"
            )
        parameters["sagemaker_mpi_num_of_processes_per_host"] = json.dumps(procs)
        said.append(f"{procs} process{'es' * (procs > 1)} per host instead of one per GPU")
    for key, value in settings.items():
        before, parameters[key] = parameters.get(key), json.dumps(value)
        if before != parameters[key]:
            said.append(
                f"{key}={parameters[key]}" + (f" instead of {before}" if before is not None else "")
            )
    return parameters


def starts_ranks(parameters: Mapping[str, str]) -> bool:
    """Whether the toolkit starts the ranks of one process group (torchrun, mpirun). Else it starts
    one process per host.
    """
    return "true" in (parameters.get("sagemaker_torch_distributed_enabled"), parameters.get(SMDDP))
