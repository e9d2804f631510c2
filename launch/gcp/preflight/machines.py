"""Checks of a job's machines: type, accelerators, region, number of hosts, boot disk, and strategy."""

from __future__ import annotations

from collections.abc import Iterator

from launch.bundle import all_settings
from launch.findings import Finding, error, warning
from launch.gcp import machines as table
from launch.gcp.job import VertexJob
from launch.gcp.job_parts import Accelerator
from launch.gcp.machines import DATED, GPUS, MACHINES, NOT_STANDARD, REGIONS, REGIONS_DATED, TPUS
from launch.gcp.preflight.names import API
from launch.gcp.request import region
from launch.job import ROOT
from segtrain.errors import closest

DISKS = ("pd-ssd", "pd-standard", "hyperdisk-balanced")
ALONE = ("single", "dp")  # strategies of one process


def gpus(job: VertexJob) -> Accelerator | None:
    """The accelerators of each host."""
    return job.accelerator or table.accelerator_of(job.machine)


def ranks(job: VertexJob) -> int:
    return max(1, job.hosts) * local_ranks(job)


def local_ranks(job: VertexJob) -> int:
    """The ranks that the container of each host starts: one per GPU, unless the strategy or parallel.procs differs."""
    found, procs = gpus(job), _procs(job)
    if job.strategy in ALONE:
        return 1
    return procs or (found.count if found else 1)


def _procs(job: VertexJob) -> int:
    """The setting parallel.procs; 0 for "auto"."""
    procs = all_settings(job, ROOT).get("parallel.procs")
    return procs if isinstance(procs, int) and procs > 0 else 0


def machines(job: VertexJob) -> Iterator[Finding]:
    yield from _type(job)
    yield from _accelerator(job)
    yield from _region(job)
    yield from _hosts(job)
    yield from _disk(job)
    yield from _strategy(job)


def _type(job: VertexJob) -> Iterator[Finding]:
    if job.machine in MACHINES:
        if job.machine in NOT_STANDARD and job.scheduling == "STANDARD" and not job.reservation:
            yield error(
                "machine-scheduling",
                f"machine={job.machine} is offered for spot and flex-start only, but scheduling=STANDARD",
                "--scheduling spot, or --scheduling flex-start --max-wait 6h, or --machine a3-highgpu-8g",
                DATED,
            )
        return
    near = table.nearest(job.machine)
    cure = f"--machine {near}" if near else "--machine takes a Compute Engine name, such as g2-standard-12"
    words = f"machine={job.machine!r} is not a machine type that segtrain knows" + (f"; near: {near}" if near else "")
    yield (
        warning("machine-unknown", words, cure, DATED)
        if _well_formed(job.machine)
        else error("machine-unknown", words, cure, DATED)
    )


def _well_formed(name: str) -> bool:
    """Whether a name could be a newer type of a known family."""
    return name.count("-") == 2 and name.rpartition("-")[0] in {one.rpartition("-")[0] for one in MACHINES}


def _accelerator(job: VertexJob) -> Iterator[Finding]:
    asked, machine = job.accelerator, MACHINES.get(job.machine)
    if asked is None:
        return
    if asked.type in TPUS:
        yield error(
            "accelerator-tpu", f"accelerator={asked.type}: segtrain has no code for TPUs", "a GPU, as NVIDIA_L4", API
        )
        return
    if asked.type not in GPUS:
        yield error(
            "accelerator-unknown",
            f"accelerator={asked.type!r} is not a name of the API",
            _instead(job, table.meant(asked.type), asked.count),
            API,
        )
        return
    if GPUS[asked.type].retired:
        yield error(
            "accelerator-retired",
            f"accelerator={asked.type}: Google no longer offers it",
            _instead(job, "NVIDIA_TESLA_T4", asked.count),
            API,
        )
        return
    if machine is None:
        return
    legal = table.counts(machine, asked.type)
    better = table.advise(machine, asked, _standard(job))
    if not legal:
        has = (
            f"has {machine.accelerator.count} x {machine.accelerator.type}"
            if machine.accelerator
            else "takes no GPU of this kind"
        )
        yield error("accelerator-machine", f"accelerator={asked.type}: {machine.name} {has}", better, DATED)
    elif asked.count not in legal:
        yield error(
            "accelerator-count",
            f"accelerator={asked.type}:{asked.count}: {machine.name} takes {' or '.join(map(str, legal))} of them",
            better,
            DATED,
        )


def _standard(job: VertexJob) -> bool:
    return job.scheduling == "STANDARD" and not job.reservation


def _instead(job: VertexJob, gpu: str, count: int) -> str:
    """Flags for ``count`` GPUs of another kind, and for a machine that takes them if the job's does not."""
    named, machine = f"--accelerator {gpu}:{count}", MACHINES.get(job.machine)
    if machine is None or count in table.counts(machine, gpu):
        return named
    flags = table.advise(machine, Accelerator(gpu, count), _standard(job))
    return flags if "--accelerator" in flags else f"{flags} {named}"


def _region(job: VertexJob) -> Iterator[Finding]:
    place = region(job)
    if place not in REGIONS:
        near = closest(place, REGIONS, 0.6)
        if place in {f"{known}-{zone}" for known in REGIONS for zone in "abcdef"}:
            near = place[:-2]
        yield error(
            "region-unknown",
            f"region={place!r} is not a region of Vertex AI" + (f"; near: {near}" if near else ""),
            f"--region {near or 'us-central1'}",
            REGIONS_DATED,
        )
        return
    found = gpus(job)
    gpu = GPUS.get(found.type) if found else None
    if gpu is not None and gpu.regions and place not in gpu.regions:
        yield warning(
            "accelerator-region",
            f"region={place}: Google's page does not list {gpu.name} for training there",
            f"--region one of {', '.join(gpu.regions)}",
            REGIONS_DATED,
        )


def _hosts(job: VertexJob) -> Iterator[Finding]:
    if job.hosts < 1:
        yield error(
            "hosts-range",
            f"hosts={job.hosts}: pool 0 has exactly one replica, so a job has 1 host or more",
            "--hosts 1",
            API,
        )
    elif job.hosts > 1 and job.strategy in ALONE:
        yield error(
            "strategy-hosts",
            f"strategy={job.strategy} is one process: {job.hosts} hosts would each train a model of their own",
            "--strategy ddp, or --hosts 1",
        )


def _disk(job: VertexJob) -> Iterator[Finding]:
    if not 100 <= job.disk_gb <= 64000:
        yield error(
            "disk-range",
            f"disk_gb={job.disk_gb}: a boot disk has 100 to 64000 GB",
            f"--disk-gb {min(max(job.disk_gb, 100), 64000)}",
            API,
        )
    if job.disk_type not in DISKS:
        near = closest(job.disk_type, DISKS, 0.4) or DISKS[0]
        yield error(
            "disk-type", f"disk_type={job.disk_type!r} is not one of {', '.join(DISKS)}", f"--disk-type {near}", API
        )


def _strategy(job: VertexJob) -> Iterator[Finding]:
    found = gpus(job)
    if job.strategy == "smddp":
        yield error("strategy-smddp", "strategy=smddp is a library of SageMaker's images", "--strategy ddp")
    if found and found.count > 1 and job.strategy == "single":
        yield warning("gpus-idle", f"strategy=single uses one of {found.count} GPUs of each host", "--strategy ddp")
    procs, backend = _procs(job), all_settings(job, ROOT).get("parallel.backend")
    if found and procs and job.strategy not in ALONE:
        words = f"parallel.procs={procs} of the config or the settings: each host has {found.count} GPUs"
        if procs < found.count:
            yield warning("gpus-idle", words, "parallel.procs=auto")
        if procs > found.count and backend != "gloo":
            yield error("gpus-few", words, "parallel.procs=auto")
    if job.strategy == "dp" and (not found or found.count == 1):
        yield warning(
            "strategy-pointless", f"strategy=dp on {job.machine}, which has no second GPU", "--strategy single"
        )
