"""Preparation of a SageMaker job before it is sent: its request, the S3 address of its code, and
the findings of the offline checks.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from launch.core.findings import Finding, note, require
from launch.platforms.sagemaker.arguments import DEFAULT_REGION, default_region
from launch.platforms.sagemaker.bundle import build
from launch.platforms.sagemaker.cloud import AwsClients, connect, upload
from launch.platforms.sagemaker.images import choose
from launch.platforms.sagemaker.job import SageMakerJob, load_job
from launch.platforms.sagemaker.preflight.offline import offline
from launch.platforms.sagemaker.request import (
    code_uri,
    create_training_job,
    output,
    training_job_name,
)

Source = str | Path | Mapping[str, Any] | SageMakerJob


def read(job: Source, settings: Sequence[str]) -> SageMakerJob:
    """The job as a SageMakerJob, from any form that a user may pass."""
    return job if isinstance(job, SageMakerJob) else load_job(job, {}, settings)


def sound(
    job: Source, settings: Sequence[str], place: str = ""
) -> tuple[SageMakerJob, dict[str, Any]]:
    """The job and its request. Prints the warnings and notes of the checks, and raises ConfigError
    for their errors.
    """
    checked = read(job, settings)
    checked, request, findings = prepare(replace(checked, region=checked.region or place))
    require(findings)
    return checked, request


def located(job: SageMakerJob) -> tuple[SageMakerJob, list[Finding]]:
    """The job with a region: its own, else that of the environment, else the default, with a
    note.
    """
    region = default_region(job.region)
    if job.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        return replace(job, region=region), []
    missing = note(
        "region", f"no region is set: {DEFAULT_REGION}", "--region NAME, or set AWS_REGION"
    )
    return replace(job, region=region), [missing]


def prepare(job: SageMakerJob) -> tuple[SageMakerJob, dict[str, Any], list[Finding]]:
    """The job with its region and role, its request, and the findings of all checks that make no
    call to AWS.
    """
    now = datetime.now(timezone.utc)
    job, findings = located(replace(job, role=job.role or os.environ.get("SAGEMAKER_ROLE", "")))
    choice = choose(
        job.training_type, job.strategy, job.region, job.image, unknown_type_ok=job.unknown_type_ok
    )
    name = training_job_name(job, now)
    request = create_training_job(job, image=choice.uri, name=name, code=code_place(job, name))
    findings += choice.findings
    findings += offline(job, request, choice=choice, now=now.date())
    if choice.why:
        findings.append(note("image", f"image {choice.uri}: {choice.why}"))
    return job, request, findings


def code_place(job: SageMakerJob, name: str) -> str:
    """The S3 address of a job's bundle."""
    return f"{output(job)}/{name}/source/sourcedir.tar.gz"


def upload_code(job: Source, request: Mapping[str, Any]) -> None:
    """Upload the code of a job to the S3 address in its request."""
    job = read(job, ())
    send_code(job, connect(located(job)[0].region), request)


def send_code(job: SageMakerJob, clients: AwsClients, request: Mapping[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "sourcedir.tar.gz"
        build(job, bundle)
        upload(clients, bundle, code_uri(request))
