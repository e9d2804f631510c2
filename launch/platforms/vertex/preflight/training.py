"""Checks of the training config for Vertex AI: its data and weights exist there, and checkpoints
outlive a machine.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from launch.core import job_checks, preflight
from launch.core.findings import Finding, error, note, warning
from launch.core.forecast import on_type
from launch.core.preflight import Read
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.machines import GPUS, machine_of
from launch.platforms.vertex.preflight.machines import gpus, local_ranks, ranks
from segtrain.machines import gpus as rates

if TYPE_CHECKING:
    from segtrain.config import Config
    from segtrain.insight.plan.offers import Offers


def training(job: VertexJob, bundled: Collection[str]) -> Iterator[Finding]:
    """Findings about the training config. ``bundled``: names of the files in the code bundle; empty
    if unknown.
    """
    config_read = read(job)
    yield from job_checks.trains(job, config_read, _machines(job), predicted, bundled)
    if (config := config_read.config) is not None:
        yield from _data(job, config, config_read)
        yield from _weights(job, config)
        yield from _kept(job, config)


def read(job: VertexJob) -> Read:
    settings = {**({"out": job.checkpoints} if job.checkpoints else {}), **job.settings}
    return preflight.read_config(replace(job, settings=settings), job.data, "gs://BUCKET/FOLDER")


def predicted(job: VertexJob, config: Config) -> Offers:
    return on_type(job, config, _row(job), job.hosts, ranks(job))


def _machines(job: VertexJob) -> preflight.Machines:
    machine, accelerator = machine_of(job.machine), gpus(job)
    machines = preflight.Machines(job.machine, job.hosts, ranks(job), local_ranks(job))
    if machine is None:
        return machines
    name = GPUS.get(accelerator.type, "") if accelerator else ""
    gpu = rates().get(name)
    return replace(
        machines,
        gpus=accelerator.count if accelerator else 0,
        vcpus=machine.vcpus,
        gpu=name,
        arch=gpu.arch if gpu else "",
    )


def _row(job: VertexJob) -> str:
    """The name of the job's machine in segtrain/machines/vertex.csv, such as
    n1-standard-32+4xT4.
    """
    accelerator, machine = gpus(job), machine_of(job.machine)
    if (
        accelerator is None
        or machine is None
        or machine.accelerator is not None
        or accelerator.type not in GPUS
    ):
        return job.machine
    return f"{job.machine}+{accelerator.count}x{GPUS[accelerator.type]}"


def _data(job: VertexJob, config: Config, read: Read) -> Iterator[Finding]:
    root = str(read.setting("data", "root"))
    yield from preflight.data(job, job.data, read, "--data gs://BUCKET/FOLDER")
    if read.reads_files and root and not job.data and not re.match(r"\w+://|/gcs/|/mnt/", root):
        yield error(
            "data-place",
            f"data.root={root!r} is a folder of this machine",
            "--data gs://BUCKET/FOLDER",
        )
    if read.reads_files and job.data:
        yield from preflight.class_names(config)


def _weights(job: VertexJob, config: Config) -> Iterator[Finding]:
    """Checks that the container can read the weights. The bundle has only code: weights are in a
    bucket, a mount, or in the image.
    """
    if job.network or job.psc_attachment:
        where, cure = "in a VPC that needs Cloud NAT", "a file below /gcs/BUCKET/weights, and "
        yield from preflight.download(config, note, where, cure)
    yield from job_checks.missing_weights(
        job,
        config,
        lambda place: place.startswith(("/gcs/", "/mnt/")),
        "/gcs/",
        lambda key, place: (
            f"gcloud storage cp -r {quote(place)} gs://BUCKET/weights/, "
            f"then {key}=/gcs/BUCKET/weights/{quote(Path(place).name)}"
        ),
    )


def _outlives(place: str) -> bool:
    """Whether a place is in a bucket or on a mounted disk, which outlive the machine."""
    from segtrain.bucket import CLOUDS, scheme_of

    return scheme_of(place) in CLOUDS or place.startswith("/mnt/")


def _kept(job: VertexJob, config: Config) -> Iterator[Finding]:
    """Checks that checkpoints survive a machine. Without ``out``, the run folder is the job's
    AIP_CHECKPOINT_DIR.
    """
    if config.out and config.out.startswith("/gcs/"):
        yield warning(
            "out-mounted",
            f"out={config.out!r}: a mount of a bucket has no atomic renames",
            f"remove out=, and give --checkpoints gs://{quote(config.out.removeprefix('/gcs/'))}",
        )
    elif config.out and not _outlives(config.out):
        lost = job.scheduling == "SPOT"
        yield (error if lost else warning)(
            "spot-without-checkpoints" if lost else "out",
            f"out={config.out!r} is on the disk of the machine, which is deleted with it"
            + (": a machine that is taken away takes the checkpoints along" if lost else ""),
            "remove out=, or give --checkpoints gs://BUCKET/FOLDER",
            "Vertex AI: use Spot VMs with training" if lost else "",
        )
    if not job.disable_retries:
        level = error if job.scheduling == "SPOT" or job.restart_all else warning
        yield from job_checks.resume_off(config, level, "every restart of a worker")
