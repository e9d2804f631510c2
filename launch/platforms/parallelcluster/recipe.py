"""A cluster configuration of AWS ParallelCluster as read from YAML: its queues, compute resources,
and file systems.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from launch.core.findings import Finding, error
from launch.core.job_values import read_mapping
from segtrain.errors import ConfigError

VERSION = "3.16.1"  # of aws-parallelcluster: the one that the recipes were checked with
Keys = Mapping[str, Any]
# Keys that other checks walk through, and what they hold.
_LISTS = {
    "LoginNodes": ("Pools",),
    "Scheduling": ("SlurmQueues",),
    "": ("SharedStorage", "Tags"),
}


@dataclass(frozen=True)
class Resource:
    """One compute resource of a queue. ``place`` is its path in the file; ``types`` may be
    empty.
    """

    place: str
    queue: Keys
    keys: Keys
    types: tuple[str, ...]

    @property
    def capacity(self) -> str:
        return str(self.queue.get("CapacityType", "ONDEMAND"))

    @property
    def efa(self) -> bool:
        return mapping(self.keys, "Efa").get("Enabled") is True

    @property
    def most(self) -> int:
        return whole(self.keys.get("MaxCount"), 10)

    @property
    def least(self) -> int:
        return whole(self.keys.get("MinCount"), 0)


def read(path: str | Path) -> dict[str, Any]:
    """The recipe in a file. Raises ConfigError for what is none."""
    recipe = read_mapping(path)
    if "AWSTemplateFormatVersion" in recipe:
        raise ConfigError(
            f"{path} is a CloudFormation template, not a cluster: aws cloudformation deploy "
            f"--template-file {quote(str(path))}",
            code="cluster-template",
            file=str(path),
        )
    if not {"HeadNode", "Scheduling"} & set(recipe):
        raise ConfigError(
            f"{path} has neither HeadNode nor Scheduling: give a cluster configuration, such as "
            "configs/clusters/research.yaml",
            code="cluster-none",
            file=str(path),
        )
    return recipe


def mapping(keys: Any, *names: str) -> Keys:
    """The mapping at a path of keys; empty where there is none."""
    for name in names:
        keys = keys.get(name) if isinstance(keys, Mapping) else None
    return keys if isinstance(keys, Mapping) else {}


def entries(keys: Any, name: str) -> list[Keys]:
    """The mappings in the list under a key; empty where there is none."""
    found = keys.get(name) if isinstance(keys, Mapping) else None
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def whole(value: Any, default: int) -> int:
    """A number as ParallelCluster's schema reads it: also one in quotes."""
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def queues(recipe: Keys) -> list[Keys]:
    return entries(mapping(recipe, "Scheduling"), "SlurmQueues")


def resources(recipe: Keys) -> Iterator[Resource]:
    """Every compute resource of every queue."""
    for queue in queues(recipe):
        for keys in entries(queue, "ComputeResources"):
            one = keys.get("InstanceType")
            named = (
                [one] if one else [kind.get("InstanceType") for kind in entries(keys, "Instances")]
            )
            place = f"queue {queue.get('Name')}, compute resource {keys.get('Name')}"
            yield Resource(place, queue, keys, tuple(str(name) for name in named if name))


def lustre(recipe: Keys) -> Iterator[tuple[str, Keys, Keys]]:
    """Name, storage, and settings of every FSx for Lustre file system."""
    for storage in entries(recipe, "SharedStorage"):
        if storage.get("StorageType") == "FsxLustre":
            yield (
                f"SharedStorage {storage.get('Name')}",
                storage,
                mapping(storage, "FsxLustreSettings"),
            )


def always_on(recipe: Keys) -> list[tuple[str, Keys]]:
    """Place and section of the head node and of each pool of login nodes, which run day and
    night.
    """
    pools = entries(mapping(recipe, "LoginNodes"), "Pools")
    return [
        ("HeadNode", mapping(recipe, "HeadNode")),
        *((f"LoginNodes pool {pool.get('Name')}", pool) for pool in pools),
    ]


def all_nodes(recipe: Keys) -> list[tuple[str, Keys]]:
    """Place and section of all nodes: those of the queues, too."""
    return [
        *always_on(recipe),
        *((f"queue {queue.get('Name')}", queue) for queue in queues(recipe)),
    ]


def scripts(recipe: Keys) -> Iterator[tuple[str, Keys, str]]:
    """Place, owner (with its rights), and address of every custom action."""
    for place, owner in all_nodes(recipe):
        for name, action in mapping(owner, "CustomActions").items():
            several = entries(action, "Sequence") if isinstance(action, Mapping) else []
            for one in several or [action]:
                if isinstance(one, Mapping) and one.get("Script"):
                    yield f"{place}, {name}", owner, str(one["Script"])


def shapes(recipe: Keys) -> list[Finding]:
    """Sections that are not what they must be: the other checks see them as empty."""
    findings = []
    for section in ("Image", "HeadNode", "Scheduling"):
        if section in recipe and not isinstance(recipe[section], Mapping):
            findings.append(_shape(section, recipe[section], "keys with values"))
    for section, names in _LISTS.items():
        keys = mapping(recipe, section) if section else recipe
        for name in names:
            value = keys.get(name)
            if value is not None and not (
                isinstance(value, list) and all(isinstance(one, Mapping) for one in value)
            ):
                findings.append(
                    _shape(
                        f"{section}/{name}".strip("/"), value, "a list of entries, each with keys"
                    )
                )
    if not queues(recipe):
        findings.append(
            error("queue-none", "Scheduling has no SlurmQueues: nothing could run", "add a queue")
        )
    for queue in queues(recipe):
        if not entries(queue, "ComputeResources"):
            findings.append(
                error(
                    "queue-empty",
                    f"queue {queue.get('Name')} has no ComputeResources: no node could "
                    "start for it",
                    "add one with Name, InstanceType, MinCount and MaxCount, or take the queue out",
                )
            )
    return findings


def _shape(place: str, value: Any, wanted: str) -> Finding:
    return error("recipe-shape", f"{place} is a {type(value).__name__}", f"it must hold {wanted}")
