"""The data in a host's input/data: downloaded from the rehearsal's S3 server, or a folder in place
of a file system.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.core.rehearse.buckets import BucketServer
from launch.core.rehearse.cluster import RehearsalCluster, RehearsalHost
from launch.platforms.sagemaker.rehearse import hosts as trees
from launch.platforms.sagemaker.request import code_uri


def divided(sample: Path, request: Mapping[str, Any]) -> bool:
    """Whether a sample has a folder for each of several channels. Else every channel gets the whole
    sample.
    """
    names = [channel["ChannelName"] for channel in of_data(request)]
    return len(names) > 1 and all((sample / name).is_dir() for name in names)


def of_data(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The channels of the request, except the channel of the code."""
    uri = code_uri(request)
    return [
        channel
        for channel in request.get("InputDataConfig", [])
        if channel["DataSource"].get("S3DataSource", {}).get("S3Uri") != uri
    ]


def upload(store: BucketServer, request: Mapping[str, Any], sample: Path | None) -> int:
    """Upload the sample to the S3 prefixes of the channels. Returns the number of files."""
    count = 0
    if sample is None:
        return count
    several = divided(sample, request)
    for channel in of_data(request):
        s3 = channel["DataSource"].get("S3DataSource")
        if s3 and not store.keys(s3["S3Uri"]):
            folder = sample / channel["ChannelName"] if several else sample
            count += store.put_folder(folder, s3["S3Uri"])
    return count


def fill(
    store: BucketServer,
    request: Mapping[str, Any],
    stage: RehearsalCluster,
    host: RehearsalHost,
    base: Path,
    sample: Path | None,
    bind: bool,
) -> None:
    """Fill a host's input/data. ``bind``: the sample is bind-mounted in place of a file system
    (read-only if the channel is); else it is a symbolic link.
    """
    several = sample is not None and divided(sample, request)
    for channel in trees.channels(request, host):
        name, place = channel["ChannelName"], base / "input/data" / channel["ChannelName"]
        s3 = channel["DataSource"].get("S3DataSource")
        if s3:
            place.mkdir(parents=True, exist_ok=True)
            _download(store, s3, stage, host, place)
        elif sample is not None:
            folder = (sample / name if several else sample).resolve()
            _mount(
                folder,
                place,
                bind,
                channel["DataSource"]["FileSystemDataSource"]["FileSystemAccessMode"],
            )


def _download(
    store: BucketServer,
    s3: Mapping[str, Any],
    stage: RehearsalCluster,
    host: RehearsalHost,
    place: Path,
) -> None:
    """Download the whole prefix, or this host's share of its keys."""
    groups = s3.get("InstanceGroupNames") or [group for group, _ in stage.groups]
    sharing = [member for member in stage.hosts if member.group in groups]
    mine = sharing.index(host)
    if s3.get("S3DataDistributionType") == "ShardedByS3Key":
        store.get_folder(s3["S3Uri"], place, (mine, len(sharing)))
    elif mine == 0:
        store.get_folder(s3["S3Uri"], place)
    else:  # copy the files that the first host has downloaded
        first = place.parents[3] / sharing[0].name / place.relative_to(place.parents[2])
        shutil.copytree(first, place, dirs_exist_ok=True)


def _mount(folder: Path, place: Path, bind: bool, access: str) -> None:
    if not bind:
        if not place.is_symlink():
            place.symlink_to(folder, target_is_directory=True)
        return
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", str(folder), str(place)], check=True)
    # fails for an unprivileged user if the folder's own mount has more restrictions
    if access == "ro":
        subprocess.run(
            ["mount", "-o", "remount,bind,ro", str(place)], check=False, capture_output=True
        )


def release(base: Path) -> None:
    """Remove the mounts and links in input/data before a host is cleared, so that their files are
    not deleted.
    """
    for place in (base / "input/data").glob("*"):
        if place.is_symlink():
            place.unlink()
        elif place.is_mount():
            subprocess.run(["umount", str(place)], check=True)
