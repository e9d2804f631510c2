"""Checks of the training config for SageMaker: it finds its data and weights in channels, and its
results are kept.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from launch.core import job_checks, preflight
from launch.core.findings import Finding, error, note, warning
from launch.core.forecast import on_type
from launch.core.preflight import Read, files_of_weights
from launch.platforms.sagemaker.instances import INSTANCES
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.preflight.cost import price_of
from launch.platforms.sagemaker.preflight.machines import ranks
from launch.platforms.sagemaker.request import CHANNELS, data_place, lies_in

if TYPE_CHECKING:
    from segtrain.config import Config
    from segtrain.insight.plan.offers import Offers


def training(job: SageMakerJob, bundled: Collection[str]) -> Iterator[Finding]:
    """``bundled``: the names of the files in the code bundle; empty if they are not known."""
    config_read = read(job)
    yield from job_checks.trains(job, config_read, _machines(job), predicted, bundled)
    if (config := config_read.config) is not None:
        yield from _data(job, config, config_read)
        yield from job_checks.missing_weights(job, config, partial(_held, job), "/opt/ml/", _copy)
        yield from _kept(job, config)


def _held(job: SageMakerJob, place: str) -> bool:
    """Whether a channel holds a place: the container cannot see this machine's folders."""
    return any(lies_in(place, channel.name) for channel in job.data)


def _copy(key: str, place: str) -> str:
    """How to bring weights in a channel."""
    folder = os.path.isdir(place) or not Path(place).suffix
    copy, inside = (" --recursive", "") if folder else ("", f"/{shlex.quote(Path(place).name)}")
    return (
        f"aws s3 cp{copy} {shlex.quote(place)} s3://BUCKET/weights/, then --data "
        "weights=s3://BUCKET/weights/ "
        f"(beside --data train=...) and {key}={CHANNELS}/weights{inside}"
    )


def read(job: SageMakerJob) -> Read:
    return preflight.read_config(job, data_place(job), f"{CHANNELS}/train")


def predicted(job: SageMakerJob, config: Config) -> Offers:
    price, _ = price_of(job, job.training_type)
    return on_type(job, config, job.training_type, job.training_hosts, ranks(job), price)


def _machines(job: SageMakerJob) -> preflight.Machines:
    instance = INSTANCES.get(job.training_type)
    machines = preflight.Machines(job.training_type, job.training_hosts, ranks(job))
    if instance is None:
        return machines
    return replace(
        machines,
        local=max(1, instance.gpus if job.strategy not in ("single", "dp") else 1),
        gpus=instance.gpus,
        vcpus=instance.vcpus,
        gpu=instance.gpu,
        arch=instance.arch,
    )


def _data(job: SageMakerJob, config: Config, read: Read) -> Iterator[Finding]:
    layout = config.data.layout
    if not read.reads_files:
        places = [place for _, place in files_of_weights(config)]
        idle = [
            channel.name
            for channel in job.data
            if not any(lies_in(place, channel.name) for place in places)
        ]
        if idle:
            yield warning(
                "data-unused",
                f"data.layout=scenes draws its own images: data.{idle[0]} would be mounted and "
                "never read",
                "set data.layout, or leave --data out",
            )
        return
    if not job.data:
        yield error(
            "data-missing",
            f"config {job.config}: data.layout={layout} reads files, but the job has no "
            "data channel",
            "--data s3://BUCKET/PREFIX/, or --fsx fs-...:/MOUNTNAME/FOLDER",
        )
    elif not data_place(job):
        names = ", ".join(channel.name for channel in job.data)
        yield error(
            "channel-train",
            f"data: none of the channels {names} is called 'train', so which holds the data "
            "set is not clear",
            f"--data train=s3://..., or data.root={CHANNELS}/{job.data[0].name}",
        )
    if job.data:
        yield from preflight.data_twice(read, data_place(job))
        yield from preflight.class_names(config)
    for channel in job.data:
        if channel.mode == "FastFile" and not channel.is_file_system and layout != "shards":
            yield warning(
                "fastfile-small-files",
                f"data.{channel.name} with mode=FastFile and data.layout={layout}: each small file "
                "is a request to S3 of its own, again in every epoch",
                "--mode File, or pack shards: segtrain data pack",
                "SageMaker developer guide, model-access-training-data (FastFile for files of "
                "50 MB and more)",
            )


def _kept(job: SageMakerJob, config: Config) -> Iterator[Finding]:
    """Findings for results that are lost with the machine, restarts that begin again, and weights
    that need NAT.
    """
    if config.out and not config.out_bucket and not config.out.startswith("/opt/ml/"):
        yield warning(
            "out",
            f"out={config.out!r}: in the container only /opt/ml/checkpoints, /opt/ml/model and "
            "/opt/ml/output are kept",
            "leave out= out of the settings",
        )
    if job.spot or job.retries:
        yield from job_checks.resume_off(config, error, "every restart")
    cure = f"--data weights=s3://BUCKET/weights/ and, below {CHANNELS}/weights, "
    if job.network_isolation:
        level, holds = (
            (warning, f", unless {job.image} holds it in HF_HOME") if job.image else (error, "")
        )
        yield from preflight.download(
            config, level, f"network_isolation=true forbids it{holds}", cure
        )
    elif job.subnets:
        yield from preflight.download(config, note, "in a VPC that needs a NAT gateway", cure)
