"""Checks of data channels: addresses, FSx paths, input modes, groups, and space on the disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from launch.core.findings import Finding, error, note, warning
from launch.platforms.sagemaker.instances import INSTANCES
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.job_parts import Channel
from launch.platforms.sagemaker.preflight.places import API, BUCKET_RULE, s3_parts, stands_for

FSX_DOCS = "SageMaker developer guide, model-access-training-data, 2023-02-18"
FASTFILE_DOCS = "SageMaker developer guide, model-access-training-data, 2023-02-18"
NVME_DOCS = "ResourceConfig in the SageMaker API reference"
SPARE_GB = 10  # needed in addition to the data, for code, packages, checkpoints, and the model


def channels(job: SageMakerJob) -> Iterator[Finding]:
    for channel in job.data:
        yield from _file_system(channel) if channel.is_file_system else _s3(channel, job)
    yield from _groups(job)
    yield from _room(job)


def _s3(channel: Channel, job: SageMakerJob) -> Iterator[Finding]:
    where = f"data.{channel.name}={channel.uri!r}"
    parts = s3_parts(channel.uri)
    if parts is None and not stands_for(channel.uri):
        yield error(
            "channel-uri",
            f"{where} is not an S3 address ({BUCKET_RULE})",
            "upload it: aws s3 sync FOLDER s3://BUCKET/PREFIX/; then --data "
            f"{quote(channel.name)}=s3://BUCKET/PREFIX/",
        )
    elif parts and parts[1] and not channel.uri.endswith("/"):
        yield warning(
            "prefix-slash",
            f"{where} does not end in a slash: other prefixes that begin alike "
            f"({channel.uri}-old/) match too, and FastFile refuses a partial folder name",
            f"--data {quote(f'{channel.name}={channel.uri}/')}",
            FASTFILE_DOCS,
        )
    readers = job.training_hosts + sum(group.instances for group in job.helping_groups)
    if channel.distribution == "ShardedByS3Key" and readers > 1:
        yield error(
            "channel-sharded",
            f"data.{channel.name} with distribution=ShardedByS3Key: each of {readers} hosts would "
            "get other files, but every rank draws from one list of all samples",
            "leave distribution out; for less on each disk take FastFile with shards (segtrain "
            "data pack), or FSx",
        )


def _file_system(channel: Channel) -> Iterator[Finding]:
    where = f"data.{channel.name} on {channel.file_system}"
    if channel.mode != "File":
        yield error(
            "fsx-fastfile",
            f"{where} with mode={channel.mode}: a file system is mounted, FastFile is for S3",
            "leave --mode out",
            FSX_DOCS,
        )
    if channel.groups:
        yield error(
            "fsx-groups",
            f"{where} with groups={','.join(channel.groups)}: only S3 channels can be given "
            "to groups",
            "leave groups out: every group mounts it",
            API,
        )
    yield from _path(channel)


def _path(channel: Channel) -> Iterator[Finding]:
    """Findings for a path that does not begin with a slash, or, on Lustre, with the mount name:
    ``fsx``, or eight characters from AWS.
    """
    where = f"data.{channel.name}: path={channel.path!r} on {channel.file_system}"
    mount = channel.path.removeprefix("/").partition("/")[0]
    if not channel.path.startswith("/"):
        yield error("fsx-path", f"{where} does not begin with a slash", "as /FOLDER")
    if channel.file_system_type != "FSxLustre" or stands_for(mount):
        return
    cure = "--fsx ID:/MOUNTNAME/FOLDER; aws fsx describe-file-systems tells MountName"
    source = f"{FSX_DOCS}; aws/sagemaker-python-sdk#4257"
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,8}", mount):
        yield error("fsx-path", f"{where} is not /MOUNTNAME/FOLDER", cure, source)
    elif mount != "fsx" and not re.fullmatch(r"[a-z0-9]{8}", mount):
        yield warning(
            "fsx-path", f"{where}: a mount name is fsx, or eight letters and digits", cure, source
        )


def _groups(job: SageMakerJob) -> Iterator[Finding]:
    names = {group.name for group in job.groups}
    with_groups = [channel for channel in job.data if channel.groups]
    for channel in with_groups:
        for unknown in [name for name in channel.groups if name not in names]:
            there = (
                f"the groups are {', '.join(sorted(names))}" if names else "the job has no groups"
            )
            yield error(
                "channel-group",
                f"data.{channel.name}: there is no group {unknown!r} ({there})",
                "name one of them, or leave groups out",
            )
    free = [channel for channel in job.data if not channel.groups]
    assigned = [channel for channel in with_groups if not channel.is_file_system]
    if assigned and free:
        yield error(
            "channel-groups-mixed",
            f"data.{assigned[0].name} has groups={','.join(assigned[0].groups)}, "
            f"data.{free[0].name} has none: "
            "the service wants groups on all channels or on none, and a file system can have none",
            f"give data.{free[0].name} groups too ({', '.join(sorted(names))}), or leave them out",
            "aws/sagemaker-python-sdk#5225, #6089",
        )
    trains = {group.name for group in job.training_groups}
    if assigned and not free and not any(trains & set(channel.groups) for channel in assigned):
        yield error(
            "channel-group",
            f"no channel reaches the group that trains ({', '.join(sorted(trains))}): "
            f"data.{assigned[0].name} goes to {', '.join(assigned[0].groups)}",
            f"add {min(trains)} to its groups",
        )


def _room(job: SageMakerJob) -> Iterator[Finding]:
    """Findings for disks that are too small: each host downloads all of a File channel before the
    training.
    """
    instance = INSTANCES.get(job.training_type)
    nvme = instance.nvme_gb if instance else 0
    if nvme and job.volume_gb > nvme:
        yield error(
            "volume-over-nvme",
            f"volume_gb={job.volume_gb}, but {job.training_type} uses its own disks of {nvme} GB "
            "instead: the service does not allow a larger volume_gb",
            f"--volume-gb {nvme} or less",
            NVME_DOCS,
        )
        return
    copied = [
        channel.name
        for channel in job.data
        if not channel.is_file_system and channel.mode == "File"
    ]
    if not copied:
        return
    if job.data_gb is None:
        yield note(
            "data-size-unknown",
            f"data.{copied[0]} is copied to each host before training; whether it fits the "
            "disk is not known here",
            "--data-gb GB (with an account, S3 is asked for the size before sending)",
        )
    else:
        yield from small_disk(job, job.data_gb)


def small_disk(job: SageMakerJob, data_gb: float) -> Iterator[Finding]:
    """An error if data of this size, copied to each host, do not fit its disk."""
    instance = INSTANCES.get(job.training_type)
    room = (instance.nvme_gb if instance else 0) or job.volume_gb
    if data_gb + SPARE_GB > room:
        yield error(
            "volume-small",
            f"{data_gb:,.0f} GB of data and {SPARE_GB} GB for the rest do not fit the {room} GB of "
            "a host's disks; mode=File copies all of it to each host",
            f"--volume-gb {round(data_gb * 1.2) + SPARE_GB}, or --mode FastFile with shards, "
            "or --fsx",
        )
