"""Checks of a job's machines: type, accelerators, region, number of hosts, and strategy."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launch.core import job_checks
from launch.core.bundle import all_settings
from launch.core.findings import Finding, error, warning
from launch.core.job import ALONE
from launch.platforms.vertex import machines as table
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.job_parts import Accelerator
from launch.platforms.vertex.machines import DATED, GPUS, MACHINES, NOT_STANDARD, machine_of
from launch.platforms.vertex.preflight.names import API
from launch.platforms.vertex.request import region


def gpus(job: VertexJob) -> Accelerator | None:
    """The accelerators of each host."""
    return job.accelerator or table.accelerator_of(job.machine)


def ranks(job: VertexJob) -> int:
    return job.hosts * local_ranks(job)


def local_ranks(job: VertexJob) -> int:
    """The ranks that the container of each host starts: one per GPU, unless the strategy or
    parallel.procs differs.
    """
    accelerator, procs = gpus(job), _procs(job)
    if job.strategy in ALONE:
        return 1
    return procs or (accelerator.count if accelerator else 1)


def _procs(job: VertexJob) -> int:
    """The setting parallel.procs; 0 for "auto"."""
    procs = all_settings(job).get("parallel.procs")
    return procs if isinstance(procs, int) and procs > 0 else 0


def machines(job: VertexJob) -> Iterator[Finding]:
    yield from _type(job)
    yield from _accelerator(job)
    place = region(job)
    if not re.fullmatch(r"[a-z]+-[a-z]+\d+", place):
        near = re.match(r"[a-z]+-[a-z]+\d+(?=-[a-f]$)", place)  # of a zone
        yield error(
            "region-unknown",
            f"region={place!r} is not the name of a region",
            f"--region {near[0] if near else 'us-central1'}",
        )
    accelerator = gpus(job)
    yield from job_checks.one_process(
        job, job.hosts, accelerator.count if accelerator else 0, job.machine
    )
    yield from job_checks.no_smddp(job)
    procs, backend = _procs(job), all_settings(job).get("parallel.backend")
    if accelerator and procs and job.strategy not in ALONE:
        words = (
            f"parallel.procs={procs} of the config or the settings: each host has "
            f"{accelerator.count} GPUs"
        )
        if procs < accelerator.count:
            yield warning("gpus-idle", words, "parallel.procs=auto")
        if procs > accelerator.count and backend != "gloo":
            yield error("gpus-few", words, "parallel.procs=auto")


def _type(job: VertexJob) -> Iterator[Finding]:
    if machine_of(job.machine) is not None:
        if job.machine in NOT_STANDARD and job.scheduling == "STANDARD" and not job.reservation:
            yield error(
                "machine-scheduling",
                f"machine={job.machine} is offered for spot and flex-start only, but "
                "scheduling=STANDARD",
                "--scheduling spot, or --scheduling flex-start --max-wait 6h, or --machine "
                "a3-highgpu-8g",
                DATED,
            )
        return
    # A newer type of a known family may be one that the table does not have.
    newer = job.machine.rpartition("-")[0] in {name.rpartition("-")[0] for name in MACHINES}
    yield (warning if newer else error)(
        "machine-unknown",
        f"machine={job.machine!r} is not a machine type that segtrain knows",
        "--machine takes a Compute Engine name, such as g2-standard-12",
        DATED,
    )


def _accelerator(job: VertexJob) -> Iterator[Finding]:
    accelerator, machine = job.accelerator, machine_of(job.machine)
    if accelerator is None:
        return
    if accelerator.type not in GPUS:
        yield error(
            "accelerator-unknown",
            f"accelerator={accelerator.type!r} is none of the GPUs that segtrain trains on: "
            f"{', '.join(GPUS)}",
            f"--accelerator TYPE:{accelerator.count}, one of these",
            API,
        )
        return
    if machine is None:
        return
    legal = table.counts(machine, accelerator.type)
    better = f"--machine, one of {', '.join(table.taking(accelerator))}"
    if not legal:
        has = (
            f"has {machine.accelerator.count} x {machine.accelerator.type}"
            if machine.accelerator
            else "takes no GPU of this kind"
        )
        yield error(
            "accelerator-machine",
            f"accelerator={accelerator.type}: {machine.name} {has}",
            better,
            DATED,
        )
    elif accelerator.count not in legal:
        yield error(
            "accelerator-count",
            f"accelerator={accelerator.type}:{accelerator.count}: {machine.name} takes "
            f"{' or '.join(map(str, legal))} of them",
            better,
            DATED,
        )
