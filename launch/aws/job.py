"""The description of a SageMaker job: machines, channels, prices, and limits beside what every job has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from launch import job
from launch import job_values as values
from launch.aws import job_parts as parts
from launch.aws.job_parts import DEFAULT_METRICS, Channel, Fallback, Group, Metric
from launch.job import option
from segtrain.errors import ConfigError

COMMAND = job.command("sagemaker")


@dataclass(frozen=True)
class SageMakerJob(job.Job):
    """A training job. ``output``: s3://...; ``max_run``: seconds, as all times."""

    instances: int = option(values.whole, default=1)
    type: str = option(values.text, default="ml.g5.12xlarge")
    # A type that neither the table nor botocore knows is a warning.
    unknown_type_ok: bool = option(values.switch, default=False)
    # Instead of instances and type.
    groups: tuple[Group, ...] = option(parts.groups, default=())
    data: tuple[Channel, ...] = option(parts.channels, default=())
    # Size of the data, for the check of the volume and the estimate.
    data_gb: float | None = option(values.amount, default=None)
    # s3://.../
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
    # ARN of reserved capacity, of ``type``.
    training_plan: str = option(values.text, default="")
    # The longest wait for capacity.
    max_pending: int | None = option(values.seconds, default=None)
    # Key of the machines' disks: its ID or ARN.
    volume_kms: str = option(values.text, default="")
    # Key of what the job leaves in S3.
    output_kms: str = option(values.text, default="")
    # No calls out of or into the containers, except among themselves.
    network_isolation: bool = option(values.switch, default=False)
    # Between the containers.
    encrypt_traffic: bool = option(values.switch, default=False)
    # A shell in the containers, by AWS Systems Manager.
    remote_debug: bool = option(values.switch, default=False)
    # Further members of the CreateTrainingJob request.
    request: Mapping[str, Any] = option(parts.members, default_factory=dict)

    @property
    def hosts(self) -> int:
        return sum(group.instances for group in self.groups) if self.groups else self.instances

    @property
    def training_groups(self) -> tuple[Group, ...]:
        """The groups that train; where none says so, all of them."""
        return tuple(group for group in self.groups if group.train) or self.groups

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
    """As ``launch.job.load_job``, with the short forms ``--fsx``, ``--mode``, and ``--group`` among the flags."""
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
    """Groups, or instances and type: which was meant cannot be guessed."""
    for mine, source_of_mine in ((described, source), (given, "the flags")):
        for key in ("instances", "type"):
            if key in mine and ("groups" in mine or "group" in mine):
                raise ConfigError(
                    f"{source_of_mine}: {key} and groups exclude each other: each group has its own: remove {key}"
                )
    for key in ("instances", "type"):
        if key in given and "groups" in described:
            raise ConfigError(
                f"--{key} {given[key]}: {source} has groups "
                f"({', '.join(group.name for group in described['groups'])}), and the "
                "flag does not say which: give all of them, as --group gpu=ml.g5.xlarge*2:train --group "
                "cpu=ml.c5.4xlarge*2"
            )


def _with_flags(data: tuple[Channel, ...], more: tuple[Channel, ...], short: Mapping[str, Any]) -> tuple[Channel, ...]:
    """The channels of the file after those of --data (``more``), and after --fsx and --mode (of ``short``)."""
    found = {channel.name: channel for channel in data}
    flagged = {channel.name: channel for channel in more}
    if (fsx := short.get("fsx")) is not None:
        if "train" in flagged:
            raise ConfigError(f"--fsx {fsx} and --data {flagged['train'].uri}: both are the channel 'train': give one")
        flagged["train"] = parts.channel("train", fsx, "--fsx")
    for name, channel in flagged.items():
        old = found.get(name)
        both_s3 = old is not None and not old.is_file_system and not channel.is_file_system
        # Another prefix of the same kind: how it is read stays as the file says.
        found[name] = replace(cast(Channel, old), uri=channel.uri) if both_s3 else channel
    if (mode := short.get("mode")) is not None:
        parts.mode(mode, "--mode")
        on_s3 = any(not channel.is_file_system for channel in found.values())
        # With file systems alone it has no meaning, which the preflight says: nothing that was typed is dropped unseen.
        found = {
            name: channel if channel.is_file_system and on_s3 else replace(channel, mode=mode)
            for name, channel in found.items()
        }
    return tuple(found.values())
