"""The description of a SageMaker job: what every job has, and its machines, channels, prices, and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from launch.core import job
from launch.core import job_values as values
from launch.core.job import option
from launch.platforms.sagemaker import job_parts as parts
from launch.platforms.sagemaker.job_parts import DEFAULT_METRICS, Channel, Fallback, Group, Metric
from segtrain.errors import ConfigError

COMMAND = job.command("sagemaker")


@dataclass(frozen=True)
class SageMakerJob(job.Job):
    """A SageMaker training job. ``output``: s3://...; ``max_run`` and all other times: seconds."""

    instances: int = option(values.whole, default=1)
    type: str = option(values.text, default="ml.g5.12xlarge")
    # A type that neither the table nor botocore knows is a warning instead of an error.
    unknown_type_ok: bool = option(values.switch, default=False)
    # Instead of instances and type.
    groups: tuple[Group, ...] = option(parts.groups, default=())
    # Time after which a helping host that has not joined is named, and whether the training needs all of them.
    helpers_join: int = option(values.seconds, default=600)
    helpers_required: bool = option(values.switch, default=False)
    data: tuple[Channel, ...] = option(parts.channels, default=())
    # Size of the data, for the check of the volume and the estimate.
    data_gb: float | None = option(values.amount, default=None)
    # S3 prefix of the checkpoints: s3://.../
    checkpoints: str = option(values.text, default="")
    role: str = option(values.text, default="")
    region: str = option(values.text, default="")
    spot: bool = option(values.switch, default=False)
    # From the start of the wait for spot machines to the end of the job.
    max_wait: int | None = option(values.seconds, default=None)
    retries: int = option(values.whole, default=0)
    warm_pool: int = option(values.seconds, default=0)
    volume_gb: int = option(values.whole, default=100)
    subnets: tuple[str, ...] = option(values.texts, default=())
    security_groups: tuple[str, ...] = option(values.texts, default=())
    tags: Mapping[str, str] = option(values.pairs, flag="--tag", default_factory=dict)
    metrics: tuple[Metric, ...] = option(parts.metrics, default=DEFAULT_METRICS)
    # Milliseconds between samples of the system profile; 0: off.
    profile_ms: int = option(values.whole, default=500)
    # Dollars per hour of one instance that trains; overrides the table.
    price: float | None = option(values.amount, default=None)
    # Types to take, in this order, while ``type`` has no capacity.
    fallbacks: tuple[Fallback, ...] = option(parts.fallbacks, flag="--fallback", default=())
    # ARN of a training plan: reserved capacity of this ``type``.
    training_plan: str = option(values.text, default="")
    # The longest wait for capacity.
    max_pending: int | None = option(values.seconds, default=None)
    # KMS key of the machines' disks: its ID or ARN.
    volume_kms: str = option(values.text, default="")
    # KMS key of the files that the job writes to S3.
    output_kms: str = option(values.text, default="")
    # The containers can reach only each other.
    network_isolation: bool = option(values.switch, default=False)
    # Encrypt the traffic between the containers.
    encrypt_traffic: bool = option(values.switch, default=False)
    # Allow a shell in the containers through AWS Systems Manager.
    remote_debug: bool = option(values.switch, default=False)
    # Further members of the CreateTrainingJob request.
    request: Mapping[str, Any] = option(parts.members, default_factory=dict)

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
        return sum(group.instances for group in self.training_groups) if self.groups else self.instances

    @property
    def training_type(self) -> str:
        """The machine type of the group that trains."""
        return self.training_groups[0].type if self.groups else self.type


def load_job(
    source: str | Path | Mapping[str, Any] | None, flags: Mapping[str, Any], overrides: Sequence[str] = ()
) -> SageMakerJob:
    """A job from a file or its keys, flags, and overrides, as ``launch.core.job.load_job``. ``flags`` may also hold the
    short forms ``fsx``, ``mode``, and ``group``.
    """
    short = {key: flags[key] for key in ("fsx", "mode", "group") if flags.get(key) not in (None, [], ())}
    described = job.described(SageMakerJob, source)
    given = job.given(SageMakerJob, {key: value for key, value in flags.items() if key not in ("fsx", "mode", "group")})
    _refuse_two_shapes(described, {**given, **short}, job.label(source))
    given["data"] = _with_flags(described.pop("data", ()), given.pop("data", ()), short)
    if "group" in short:
        given["groups"] = parts.groups(short["group"], "--group")
        described = {key: value for key, value in described.items() if key not in ("instances", "type")}
    return job.build(SageMakerJob, described, given, overrides)


def _refuse_two_shapes(described: Mapping[str, Any], given: Mapping[str, Any], source: str) -> None:
    """Raises ConfigError for groups together with instances or type: which was meant cannot be guessed."""
    for mine, source_of_mine in ((described, source), (given, "the flags")):
        for key in ("instances", "type"):
            if key in mine and ("groups" in mine or "group" in mine):
                raise ConfigError(
                    f"{source_of_mine}: {key} and groups exclude each other, for each group has its own: remove {key}"
                )
    for key in ("instances", "type"):
        if key in given and "groups" in described:
            raise ConfigError(
                f"--{key} {given[key]}: {source} has groups "
                f"({', '.join(group.name for group in described['groups'])}), and the "
                "flag does not say for which group: describe every group with --group, as --group "
                "gpu=ml.g5.xlarge*2:train --group cpu=ml.c5.4xlarge*2"
            )


def _with_flags(data: tuple[Channel, ...], more: tuple[Channel, ...], short: Mapping[str, Any]) -> tuple[Channel, ...]:
    """The channels of the file (``data``), overridden by --data (``more``), then by --fsx and --mode (in ``short``)."""
    found = {channel.name: channel for channel in data}
    flagged = {channel.name: channel for channel in more}
    if (fsx := short.get("fsx")) is not None:
        if "train" in flagged:
            raise ConfigError(f"--fsx {fsx} and --data {flagged['train'].uri}: both are the channel 'train': give one")
        flagged["train"] = parts.channel("train", fsx, "--fsx")
    for name, channel in flagged.items():
        old = found.get(name)
        both_s3 = old is not None and not old.is_file_system and not channel.is_file_system
        # An S3 channel keeps the mode, distribution, and groups of the file: only its prefix changes.
        found[name] = replace(cast(Channel, old), uri=channel.uri) if both_s3 else channel
    if (mode := short.get("mode")) is not None:
        parts.mode(mode, "--mode")
        on_s3 = any(not channel.is_file_system for channel in found.values())
        # If all channels are file systems, --mode has no effect. It is kept here, so that the preflight reports it.
        found = {
            name: channel if channel.is_file_system and on_s3 else replace(channel, mode=mode)
            for name, channel in found.items()
        }
    return tuple(found.values())
