"""Files under /opt/ml before a container starts: the folders and input/config of one host."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.core.rehearse.cluster import RehearsalCluster, RehearsalHost

DEFAULT_CHECKPOINTS = "/opt/ml/checkpoints"


def base_folder(folder: Path, host: RehearsalHost) -> Path:
    """The folder on this machine that is the host's /opt/ml."""
    return folder / "hosts" / host.name


def checkpoint_folder(base: Path, request: Mapping[str, Any]) -> Path | None:
    """The folder that is synchronized with the checkpoints in S3; None if the job has none, or
    outside of /opt/ml.
    """
    described = request.get("CheckpointConfig")
    if not described:
        return None
    local = Path(described.get("LocalPath") or DEFAULT_CHECKPOINTS)
    return base / local.relative_to("/opt/ml") if local.is_relative_to("/opt/ml") else None


def clear(base: Path) -> None:
    """Empty a host's folder, as on a new machine. The folder itself stays: it may be a mount."""
    if base.is_dir():
        for item in base.iterdir():
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item)
            else:
                item.unlink()


def lay_out(
    base: Path, host: RehearsalHost, stage: RehearsalCluster, request: Mapping[str, Any]
) -> None:
    for name in ("input/config", "input/data", "model", "output/data", "code"):
        (base / name).mkdir(parents=True, exist_ok=True)
    if (checkpoints := checkpoint_folder(base, request)) is not None:
        checkpoints.mkdir(parents=True, exist_ok=True)
    for name, content in described(host, stage, request).items():
        (base / "input/config" / name).write_text(json.dumps(content))


def described(
    host: RehearsalHost, stage: RehearsalCluster, request: Mapping[str, Any]
) -> dict[str, Any]:
    """The files of input/config, by name."""
    files: dict[str, Any] = {
        "hyperparameters.json": dict(stage.hyperparameters),
        "resourceconfig.json": {
            "current_host": host.name,
            "current_instance_type": host.type,
            "current_group_name": host.group,
            "hosts": sorted(member.name for member in stage.hosts),
            "instance_groups": [
                {"instance_group_name": group, "instance_type": kind, "hosts": stage.members(group)}
                for group, kind in stage.groups
            ],
            "network_interface_name": stage.interface,
        },
        "inputdataconfig.json": {
            channel["ChannelName"]: _channel(channel, request)
            for channel in channels(request, host)
        },
    }
    if request.get("CheckpointConfig"):
        files["checkpointconfig.json"] = {
            "LocalPath": DEFAULT_CHECKPOINTS,
            **request["CheckpointConfig"],
        }
    if request.get("ProfilerConfig"):
        files["profilerconfig.json"] = dict(request["ProfilerConfig"])
    return files


def channels(request: Mapping[str, Any], host: RehearsalHost) -> list[Mapping[str, Any]]:
    """The channels that this host gets: all except those of other groups."""
    host_channels = []
    for channel in request.get("InputDataConfig", []):
        groups = channel["DataSource"].get("S3DataSource", {}).get("InstanceGroupNames")
        if not groups or host.group in groups:
            host_channels.append(channel)
    return host_channels


def _channel(channel: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, str]:
    source = channel["DataSource"].get("S3DataSource", {})
    mode = channel.get("InputMode") or request["AlgorithmSpecification"].get(
        "TrainingInputMode", "File"
    )
    return {
        "TrainingInputMode": mode,
        "S3DistributionType": source.get("S3DataDistributionType", "FullyReplicated"),
        "RecordWrapperType": "None",
    }


def failure(base: Path) -> str:
    """The first 1024 characters of the container's failure file, which DescribeTrainingJob shows;
    "" without a file.
    """
    try:
        return (base / "output/failure").read_text(errors="replace")[:1024].strip()
    except OSError:
        return ""


def files_below(folder: Path) -> dict[str, int]:
    """Path of each file, relative to the folder -> size in bytes."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
