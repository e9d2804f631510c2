"""Checks of times and scheduling: spot, waits, and restarts.

What Vertex AI refuses at once, such as flex-start without GPUs, is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from launch.core.findings import Finding, error, warning
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.preflight.names import API

SHORT_S = 300


def times(job: VertexJob) -> Iterator[Finding]:
    if job.max_run < SHORT_S:
        yield warning(
            "max-run-short",
            f"max_run={job.max_run} s is short: the containers alone take minutes to start",
            f"--max-run {job.max_run}h, if hours were meant",
        )
    if job.max_wait is not None and job.scheduling != "FLEX_START":
        yield error(
            "wait-without-flex",
            f"max_wait={job.max_wait} s: only scheduling=FLEX_START waits; {job.scheduling} would ignore it",
            "--scheduling flex-start, or leave --max-wait out",
            API,
        )
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
