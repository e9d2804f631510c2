"""The hosts that train in a SageMaker job, which of them is first, and the network interface that
they use.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segtrain.errors import ConfigError
from segtrain.parallel.cluster import LAUNCHERS, Cluster, RankStarter, checked, discover
from segtrain.parallel.launchers import number

GROUPS_KEY = "sagemaker_distribution_instance_groups"
# hyperparameter with the groups that make samples for the groups that train
HELPERS_KEY = "helpers.groups"


@dataclass(frozen=True)
class Hosts:
    """Hosts of a job. ``training``: those that train, in the order of AWS's toolkit, which gives
    the first one rank 0.

    ``current``: this host. An empty string means unknown. ``helping``: hosts that make samples for
    those that train.
    """

    current: str
    training: tuple[str, ...]
    type: str = ""
    group: str = ""
    interface: str = ""
    helping: tuple[str, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether this host is in a group that trains."""
        return self.current in self.training


def base_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of SageMaker's files in a container: /opt/ml, or SAGEMAKER_BASE_DIR, a variable of
    AWS's toolkit.
    """
    return Path(environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml")


def resource_config(environ: Mapping[str, str] = os.environ) -> Path:
    return base_folder(environ) / "input/config/resourceconfig.json"


def ranks(environ: Mapping[str, str]) -> Cluster | None:
    """The place of a process of a SageMaker job, by its launcher, else by its host; None outside
    SageMaker.

    In a job of several hosts, the ranks use the network interface that SageMaker's file names,
    because NCCL and gloo might choose another one.
    """
    path = resource_config(environ)
    if not path.is_file():
        return None
    hosts = read_hosts(path)
    cluster = discover(LAUNCHERS, {"MASTER_ADDR": hosts.training[0], **environ})
    if cluster.alone:
        cluster = _one_per_host(hosts, environ)
    return replace(
        cluster, machine=hosts.type, interface=hosts.interface if len(hosts.training) > 1 else ""
    )


def _one_per_host(hosts: Hosts, environ: Mapping[str, str]) -> Cluster:
    """One process per host, when the container's entry point started no launcher.

    Hosts are sorted here because instance groups list them in any order; the first need not be
    algo-1.
    """
    if not hosts.trains:
        text = (
            f"the host {hosts.current} is in the group {hosts.group!r}, which does not train: "
            "start nothing on it"
        )
        raise ConfigError(text, code="host-does-not-train", host=hosts.current)
    names = sorted(hosts.training)
    port = number(environ, "MASTER_PORT", "29500")
    return checked(
        Cluster(
            names.index(hosts.current), len(names), 0, 1, names[0], port, RankStarter("sagemaker")
        )
    )


def decoded(value: Any) -> Any:
    """The value of a hyperparameter: version 2 of the SageMaker SDK writes it as JSON, and version
    3 as plain text.
    """
    try:
        return json.loads(value)
    except (TypeError, ValueError):
        return value


def read_hosts(path: Path) -> Hosts:
    """Read resourceconfig.json, and hyperparameters.json beside it. Raises ConfigError if a host or
    group is unknown.

    A group lists its hosts in any order, and algo-1 may be in a group that does not train.
    """
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        current, everyone = described["current_host"], sorted(described["hosts"])
        groups = {
            group["instance_group_name"]: group["hosts"]
            for group in described.get("instance_groups", ())
        }
        if current not in everyone:
            raise ValueError(f"current_host {current!r} is not one of the hosts")
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = (
            f"cannot read current_host and hosts from {path} ({error!r}): if this is not "
            "SageMaker, delete the file"
        )
        raise ConfigError(text, code="bad-resource-config", file=str(path)) from None
    own = str(described.get("current_group_name", ""))
    parameters = path.with_name("hyperparameters.json")
    chosen = _listed(parameters, GROUPS_KEY) or ([own] if own in groups else list(groups))
    unknown = [name for name in chosen if name not in groups]
    if groups and unknown:
        raise ConfigError(
            f"the hyperparameter {GROUPS_KEY} names the instance group {unknown[0]!r}, but this "
            f"job has only {', '.join(groups)}: set it to the groups that train",
            code="unknown-instance-group",
            found=unknown[0],
        )
    training = [host for name, hosts in groups.items() if name in chosen for host in hosts]
    return Hosts(
        current=str(current),
        training=tuple(training or everyone),
        type=str(described.get("current_instance_type", "")),
        group=own,
        interface=str(described.get("network_interface_name", "")),
        helping=tuple(
            host for name in _listed(parameters, HELPERS_KEY) for host in groups.get(name, ())
        ),
    )


def _listed(path: Path, key: str) -> list[str]:
    """The list in a hyperparameter; empty if there is none."""
    try:
        names = decoded(json.loads(path.read_text(encoding="utf-8")).get(key))
    except (OSError, ValueError, AttributeError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []
