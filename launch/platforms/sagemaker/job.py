"""The description of a SageMaker job: what every job has, and its machines, channels, prices, and
limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from launch.core import job
from launch.core import job_values as values
from launch.core.job import DATA, MACHINES, TIME, option
from launch.platforms.sagemaker import job_parts as parts
from launch.platforms.sagemaker.job_parts import DEFAULT_METRICS, Channel, Fallback, Group, Metric
from segtrain.errors import ConfigError

COMMAND = job.command("sagemaker")


@dataclass(frozen=True)
class SageMakerJob(job.Job):
    """A SageMaker training job. ``output``: s3://...; ``max_run`` and all other times: seconds."""

    instances: int = option(1, "N", "number of instances (default: 1)", MACHINES)
    type: str = option(
        "ml.g5.12xlarge",
        "TYPE",
        "instance type, such as ml.p4d.24xlarge (default: ml.g5.12xlarge)",
        MACHINES,
    )
    unknown_type_ok: bool = option(
        False, "", "allow a type that neither segtrain nor botocore knows", MACHINES
    )
    # Instead of instances and type.
    groups: tuple[Group, ...] = option(
        (),
        "NAME=TYPE*N[:train|:help]",
        "an instance group: the one with :train trains, those with :help make samples for it; "
        "repeatable",
        MACHINES,
        read=parts.groups,
        flag="--group",
    )
    helpers_join: int = option(
        600,
        "TIME",
        "time for the hosts of :help to join the training (default: 10m)",
        MACHINES,
        read=values.seconds,
    )
    helpers_required: bool = option(
        False,
        "",
        "train only with all hosts of :help (default: go on without those that do not join)",
        MACHINES,
    )
    image: str = option(
        "", "URI", "container image (default: chosen for the type and the strategy)", MACHINES
    )
    data: tuple[Channel, ...] = option(
        (),
        "[NAME=]s3://...",
        "a channel from S3 (default name: train); repeatable",
        DATA,
        read=parts.channels,
    )
    data_gb: float | None = option(None, "GB", "size of the data, for checks and estimates", DATA)
    output: str = option(
        "",
        "s3://...",
        "place of model and report (default: the account's bucket)",
        DATA,
        read=values.place,
    )
    checkpoints: str = option(
        "", "s3://.../", "place of the checkpoints during training", DATA, read=values.place
    )
    role: str = option("", "ARN", "execution role of the job (default: SAGEMAKER_ROLE)")
    region: str = option("", "NAME", "default: AWS_REGION or us-east-1")
    spot: bool = option(False, "", "use spot instances at a lower price; needs --checkpoints", TIME)
    max_wait: int | None = option(
        None,
        "TIME",
        "limit of the time for waiting for spot instances and training",
        TIME,
        read=values.seconds,
    )
    retries: int = option(0, "N", "restart after an internal error of AWS, up to 30 times", TIME)
    warm_pool: int = option(
        0, "TIME", "keep the instances for the next job, up to 1h", TIME, read=values.seconds
    )
    volume_gb: int = option(100, "GB", "disk of each instance (default: 100)", MACHINES)
    subnets: tuple[str, ...] = option(
        (), "A,B", "subnets of the VPC; FSx needs them", read=values.listed
    )
    security_groups: tuple[str, ...] = option(
        (), "A,B", "security groups of the VPC; FSx needs them", read=values.listed
    )
    tags: Mapping[str, str] = option(dict, "KEY=VALUE", "tag of the job; repeatable", flag="--tag")
    metrics: tuple[Metric, ...] = option(DEFAULT_METRICS, read=parts.metrics)
    profile_ms: int = option(
        500, "MS", "interval of the system profile in milliseconds; 0: off (default: 500)"
    )
    price: float | None = option(
        None, "USD", "price per hour of a training instance, instead of the table's", TIME
    )
    fallbacks: tuple[Fallback, ...] = option(
        (),
        "TYPE[*N]",
        "a type to use while --type has no capacity; repeatable, in order",
        MACHINES,
        read=parts.fallbacks,
        flag="--fallback",
    )
    training_plan: str = option("", "ARN", "reserved capacity of --type", MACHINES)
    max_pending: int | None = option(
        None,
        "TIME",
        "limit of the time for waiting for instances, 30m or more",
        TIME,
        read=values.seconds,
    )
    volume_kms: str = option("", "KEY", "KMS key of the instances' disks (ID or ARN)")
    output_kms: str = option("", "KEY", "KMS key of the files that the job writes to S3")
    network_isolation: bool = option(False, "", "containers can reach only each other")
    encrypt_traffic: bool = option(False, "", "encrypt the traffic between containers")
    remote_debug: bool = option(False, "", "allow a shell in the containers: aws ssm start-session")
    request: Mapping[str, Any] = option(
        dict,
        "MEMBER.MEMBER=VALUE",
        "any other member of the request; it is checked; repeatable",
        read=parts.members,
    )

    @property
    def hosts(self) -> int:
        return sum(group.instances for group in self.groups) if self.groups else self.instances

    @property
    def training_groups(self) -> tuple[Group, ...]:
        """The groups that are marked to train; if none is marked, all groups that do not help."""
        marked = tuple(group for group in self.groups if group.train)
        return marked or tuple(group for group in self.groups if not group.help) or self.groups

    @property
    def helping_groups(self) -> tuple[Group, ...]:
        """The groups that make samples for those that train."""
        return tuple(group for group in self.groups if group.help)

    @property
    def training_hosts(self) -> int:
        return (
            sum(group.instances for group in self.training_groups)
            if self.groups
            else self.instances
        )

    @property
    def training_type(self) -> str:
        """The machine type of the group that trains."""
        return self.training_groups[0].type if self.groups else self.type


def load_job(
    source: str | Path | Mapping[str, Any] | None,
    flags: Mapping[str, Any],
    overrides: Sequence[str] = (),
) -> SageMakerJob:
    """A job from a file or its keys, flags, and overrides, as ``launch.core.job.load_job``.
    ``flags`` may also hold the short forms ``fsx`` and ``mode``.
    """
    described = job.described(SageMakerJob, source)
    flag_fields = job.flag_fields(SageMakerJob, flags)
    _refuse_two_shapes(described, flag_fields, job.label(source))
    flag_fields["data"] = _with_flags(
        described.pop("data", ()), flag_fields.pop("data", ()), flags.get("fsx"), flags.get("mode")
    )
    if "groups" in flag_fields:
        described = {
            key: value for key, value in described.items() if key not in ("instances", "type")
        }
    return job.build(SageMakerJob, described, flag_fields, overrides)


def _refuse_two_shapes(
    described: Mapping[str, Any], flag_fields: Mapping[str, Any], source: str
) -> None:
    """Raises ConfigError for groups together with instances or type: which was meant cannot be
    guessed.
    """
    for key in ("instances", "type"):
        for fields, name in ((described, source), (flag_fields, "the flags")):
            if {key, "groups"} <= set(fields):
                raise ConfigError(
                    f"{name}: {key} and groups exclude each other, for each group has its own: "
                    f"remove {key}",
                    code="groups-and-type",
                    key=key,
                )
        if key in flag_fields and "groups" in described:
            raise ConfigError(
                f"--{key} {flag_fields[key]}: {source} has groups "
                f"({', '.join(group.name for group in described['groups'])}), and the flag does "
                "not say for which: describe every group with --group, as --group "
                "gpu=ml.g5.xlarge*2:train --group cpu=ml.c5.4xlarge*2",
                code="groups-and-type",
                key=key,
            )


def _with_flags(
    data: tuple[Channel, ...], more: tuple[Channel, ...], fsx: str | None, mode: str | None
) -> tuple[Channel, ...]:
    """The channels of the file (``data``), overridden by --data (``more``), then by --fsx and
    --mode.
    """
    channels = {channel.name: channel for channel in data}
    flagged = {channel.name: channel for channel in more}
    if fsx is not None:
        if "train" in flagged:
            raise ConfigError(
                f"--fsx {fsx} and --data {flagged['train'].uri}: both are the channel 'train': "
                "give one",
                code="channel-twice",
                key="train",
            )
        flagged["train"] = parts.channel("train", fsx, "--fsx")
    for name, channel in flagged.items():
        old = channels.get(name)
        if old is not None and not old.is_file_system and not channel.is_file_system:
            # An S3 channel keeps the mode, distribution, and groups of the file: only its prefix
            # changes.
            channel = replace(old, uri=channel.uri)
        channels[name] = channel
    if mode is not None:
        parts.mode(mode, "--mode")
        on_s3 = any(not channel.is_file_system for channel in channels.values())
        # If all channels are file systems, --mode has no effect. It is kept here, so that the
        # preflight reports it.
        for name, channel in channels.items():
            if not (channel.is_file_system and on_s3):
                channels[name] = replace(channel, mode=cast(Any, mode))
    return tuple(channels.values())
