"""Checks of groups that do not train: each helps, gets the data, and is worth its price, or is said to do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from launch.aws.instances import INSTANCES
from launch.aws.job import SageMakerJob
from launch.aws.job_parts import Group
from launch.bundle import all_settings
from launch.findings import Finding, error, warning

NONE = "none"  # value of data.helpers without helping hosts
MEASURED = "measured on two hosts, 2026-11-22: docs/helpers.md"


def helpers(job: SageMakerJob, root: Path) -> Iterator[Finding]:
    settings = all_settings(job, root)
    asked = settings.get("data.helpers") not in (None, "", NONE)
    yield from _marks(job)
    if job.helping_groups and not asked:
        names = ", ".join(group.name for group in job.helping_groups)
        yield error(
            "helpers-unused",
            f"groups {names}: their hosts join the training, but data.helpers is not set, so no sample comes from them",
            "data.helpers=ray",
        )
    elif asked and not job.helping_groups:
        yield error(
            "helpers-missing",
            f"data.helpers={settings['data.helpers']}, but no group helps",
            "--group NAME=TYPE*N:train --group cpu=ml.c5.4xlarge*1:help, or leave data.helpers out",
        )
    for group in job.helping_groups:
        yield from _data(job, group)
        yield _need(group, bool(settings.get("data.transforms")))


def _marks(job: SageMakerJob) -> Iterator[Finding]:
    for group in job.groups:
        if group.help and group in job.training_groups:
            yield error("group-marks", f"groups.{group.name} would both train and help", "mark another group :train")
        elif group not in job.training_groups and not group.help:
            yield warning(
                "group-idle",
                f"groups.{group.name}: {group.instances} x {group.type}{_hourly(group)} will do nothing: its hosts end "
                "at once, but are billed for as long as the job runs",
                f"leave the group {group.name} out, or let it make samples for the group that trains: "
                f"--group {group.name}={group.type}*{group.instances}:help data.helpers=ray",
            )


def _data(job: SageMakerJob, group: Group) -> Iterator[Finding]:
    """A helping host reads the same files as a training host."""
    trains = {one.name for one in job.training_groups}
    for channel in job.data:
        if trains & set(channel.groups) and group.name not in channel.groups:
            yield error(
                "helpers-without-data",
                f"data.{channel.name} goes to {', '.join(channel.groups)}, but not to the helping group {group.name}, "
                "which reads the same files",
                f"add {group.name} to its groups",
            )


def _need(group: Group, transforms: bool) -> Finding:
    """A warning with the price: whether helping hosts pay depends on rates that are not known before the training."""
    what = f"groups.{group.name}: {group.instances} x {group.type}{_hourly(group)}"
    if transforms:
        return warning(
            "helpers-need",
            f"{what}: whether helping hosts pay is not shown: they do where data.transforms take far longer than 10 ms "
            "of a core for a sample, and the cores of the training hosts cannot keep up",
            "measure both: segtrain bench data CONFIG --device-ms MS",
            MEASURED,
        )
    return warning(
        "helpers-need",
        f"{what} are not likely to pay: without data.transforms a sample takes 5 to 8 ms of a core, and receiving one "
        "from another host takes 3 ms",
        f"leave the group {group.name} out, or take a type with more vCPUs per GPU",
        MEASURED,
    )


def _hourly(group: Group) -> str:
    price = INSTANCES[group.type].price if group.type in INSTANCES else None
    return f" (${group.instances * price:.2f}/h)" if price else ""
