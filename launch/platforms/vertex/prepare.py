"""Prepares a Vertex AI job to be sent: builds its request, and runs all offline checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from launch.core.findings import Finding, note, require
from launch.core.job import load_job
from launch.platforms.vertex.images import choose
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.preflight.machines import gpus
from launch.platforms.vertex.preflight.offline import offline
from launch.platforms.vertex.request import DEFAULT_REGION, custom_job, job_name

Source = str | Path | Mapping[str, Any] | VertexJob


def read(job: Source, settings: Sequence[str] = ()) -> VertexJob:
    """A job from any form in which a user may give it."""
    return job if isinstance(job, VertexJob) else load_job(VertexJob, job, {}, settings)


def sound(job: Source, settings: Sequence[str] = ()) -> dict[str, Any]:
    """The request of a job without errors. Raises ConfigError if a check finds an error; prints all
    other findings.
    """
    _, request, findings = prepare(read(job, settings))
    require(findings)
    return request


def located(job: VertexJob) -> tuple[VertexJob, list[Finding]]:
    """The job with its own project and region, or those of the environment. A default region comes
    with a note.
    """
    from segtrain.platforms.vertex.google_api import known_project, known_region

    job = replace(job, project=job.project or known_project(), region=job.region or known_region())
    if job.region:
        return job, []
    missing = note(
        "region", f"no region is set: {DEFAULT_REGION}", "--region NAME, or set CLOUDSDK_AI_REGION"
    )
    return replace(job, region=DEFAULT_REGION), [missing]


def prepare(job: VertexJob) -> tuple[VertexJob, dict[str, Any], list[Finding]]:
    """The job with project and region, its request, and the findings of all checks that do not ask
    Google.
    """
    job, findings = located(job)
    accelerator = gpus(job)
    choice = choose(job, job.region, accelerator)
    request = custom_job(job, image=choice.uri, name=job_name(job, datetime.now(timezone.utc)))
    findings += offline(job, choice=choice)
    if choice.why:
        findings.append(note("image", f"image {choice.uri}: {choice.why}"))
    if accelerator is not None and job.accelerator is None:
        findings.append(
            note(
                "accelerator", f"machine {job.machine} has {accelerator.count} x {accelerator.type}"
            )
        )
    return job, request, findings
