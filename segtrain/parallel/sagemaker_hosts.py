"""The hosts that train in a SageMaker job, the first of them, and the network interface they use."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segtrain.errors import ConfigError

GROUPS_KEY = "sagemaker_distribution_instance_groups"


@dataclass(frozen=True)
class Hosts:
    """``training``: in the order of AWS's toolkit, where the first host has rank 0. Empty names are unknown."""

    current: str
    training: tuple[str, ...]
    type: str = ""
    group: str = ""
    interface: str = ""

    @property
    def trains(self) -> bool:
        """Whether this host is in a group that trains."""
        return self.current in self.training


def base_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where SageMaker puts a container's files: the name of AWS's toolkit for another place than /opt/ml."""
    return Path(environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml")


def resource_config(environ: Mapping[str, str] = os.environ) -> Path:
    return base_folder(environ) / "input/config/resourceconfig.json"


def decoded(value: Any) -> Any:
    """A hyperparameter as it was meant: SDK 2 writes each value as JSON, SDK 3 writes bare texts."""
    try:
        return json.loads(value)
    except (TypeError, ValueError):
        return value


def read_hosts(path: Path) -> Hosts:
    """Read resourceconfig.json, and hyperparameters.json beside it. Raises ConfigError where they name no host.

    Hosts of a group come in any order, and algo-1 may be in a group that does not train.
    """
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        current, everyone = described["current_host"], sorted(described["hosts"])
        groups = {group["instance_group_name"]: group["hosts"] for group in described.get("instance_groups", ())}
        if current not in everyone:
            raise ValueError(f"current_host {current!r} is not one of the hosts")
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"cannot read current_host and hosts from {path} ({error!r}): if this is not SageMaker, delete the file"
        raise ConfigError(text, code="bad-resource-config", file=str(path)) from None
    own = str(described.get("current_group_name", ""))
    chosen = _chosen(path.with_name("hyperparameters.json")) or ([own] if own in groups else list(groups))
    unknown = [name for name in chosen if name not in groups]
    if groups and unknown:
        raise ConfigError(
            f"the hyperparameter {GROUPS_KEY} names the instance group {unknown[0]!r}, but this job has only "
            f"{', '.join(groups)}: set it to the groups that train",
            code="unknown-instance-group", found=unknown[0],
        )  # fmt: skip
    training = [host for name, hosts in groups.items() if name in chosen for host in hosts]
    return Hosts(
        current=str(current),
        training=tuple(training or everyone),
        type=str(described.get("current_instance_type", "")),
        group=own,
        interface=str(described.get("network_interface_name", "")),
    )


def _chosen(path: Path) -> list[str]:
    try:
        names = decoded(json.loads(path.read_text(encoding="utf-8")).get(GROUPS_KEY))
    except (OSError, ValueError, AttributeError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []
