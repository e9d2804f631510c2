"""Checks of times and scheduling: spot, flex-start, waits, restarts, persistent resources, and reservations."""

from __future__ import annotations

from collections.abc import Iterator

from launch.findings import Finding, error, note, warning
from launch.gcp.job import VertexJob
from launch.gcp.preflight.machines import gpus
from launch.gcp.preflight.names import API

SHORT_S = 300
WEEK_S = 7 * 86400
FLEX = "Vertex AI: Dynamic Workload Scheduler, as known on 2026-11-23"


def times(job: VertexJob) -> Iterator[Finding]:
    yield from _limit(job)
    yield from _wait(job)
    yield from _restarts(job)
    yield from _machines_of_their_own(job)


def _limit(job: VertexJob) -> Iterator[Finding]:
    if job.max_run < SHORT_S:
        yield warning(
            "max-run-short",
            f"max_run={job.max_run} s is short: the containers alone take minutes to start",
            f"--max-run {job.max_run}h, if hours were meant",
        )
    if job.scheduling == "FLEX_START" and job.max_run > WEEK_S:
        yield error(
            "max-run-flex",
            f"max_run={job.max_run} s: machines of flex-start stay for 7 days at most",
            "--max-run 7d",
            FLEX,
        )


def _wait(job: VertexJob) -> Iterator[Finding]:
    if job.max_wait is not None and job.scheduling != "FLEX_START":
        yield error(
            "wait-without-flex",
            f"max_wait={job.max_wait} s: only scheduling=FLEX_START waits; {job.scheduling} would ignore it",
            "--scheduling flex-start, or leave --max-wait out",
            API,
        )
    if job.scheduling != "FLEX_START":
        return
    if job.max_wait == 0:
        yield warning("wait-endless", "max_wait=0: the job waits for machines without a limit", "--max-wait 24h", API)
    elif job.max_wait is None:
        yield note(
            "wait-default",
            "scheduling=FLEX_START without max_wait: the job waits for a day at most",
            "--max-wait TIME",
            API,
        )
    if gpus(job) is None:
        yield error(
            "flex-without-gpu",
            f"scheduling=FLEX_START on {job.machine}: the queue is for machines with GPUs",
            "--scheduling standard, or a machine with GPUs",
            FLEX,
        )


def _restarts(job: VertexJob) -> Iterator[Finding]:
    if job.disable_retries and job.restart_all:
        yield error(
            "restart-contradiction",
            "restart_all and disable_retries contradict each other: the service then restarts nothing",
            "leave one of them out",
            API,
        )
    if job.disable_retries and job.scheduling == "SPOT":
        yield error(
            "spot-without-retries",
            "scheduling=SPOT with disable_retries: the first machine that is taken away ends the job",
            "leave --disable-retries out",
            "Vertex AI: use Spot VMs with training",
        )
    if job.start == "image" and job.hosts > 1 and not job.restart_all:
        yield warning(
            "restart-static",
            f"start=image on {job.hosts} hosts without restart_all: unless the image starts segtrain.platforms.vertex, "
            "a restarted worker waits for ranks that went on without it",
            "--restart-all",
            "Vertex AI: distributed training, restart_job_on_worker_restart",
        )


def _machines_of_their_own(job: VertexJob) -> Iterator[Finding]:
    """Checks of persistent resources and reservations, which are capacity that is already paid for."""
    if job.persistent_resource and job.scheduling != "STANDARD":
        yield error(
            "persistent-scheduling",
            f"persistent_resource={job.persistent_resource!r} and scheduling={job.scheduling}: its machines are up",
            "leave --scheduling out",
            API,
        )
    if job.persistent_resource and job.reservation:
        yield error(
            "persistent-reservation",
            f"persistent_resource={job.persistent_resource!r} and reservation={job.reservation!r} exclude each other",
            "leave --reservation out",
            API,
        )
    if job.reservation and job.scheduling == "SPOT":
        yield error(
            "reservation-spot", f"reservation={job.reservation!r} has no spot machines", "leave --scheduling out", API
        )
