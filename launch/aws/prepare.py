"""A SageMaker job made ready to be sent: its request, where its code will lie, and everything that can be found wrong
offline.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from launch.aws.arguments import DEFAULT_REGION
from launch.aws.bundle import build
from launch.aws.images import choose
from launch.aws.job import SageMakerJob, load_job
from launch.aws.preflight.offline import offline
from launch.aws.request import code_uri, create_training_job, output, training_job_name
from launch.findings import Finding, errors, show
from launch.job import ROOT
from segtrain.errors import ConfigError

Source = str | Path | Mapping[str, Any] | SageMakerJob


def read(job: Source, settings: Sequence[str]) -> SageMakerJob:
    """A job from any form in which a user may give it."""
    return job if isinstance(job, SageMakerJob) else load_job(job, {}, settings)


def sound(job: Source, settings: Sequence[str], place: str = "") -> tuple[SageMakerJob, dict[str, Any]]:
    """The job and its request. Raises ConfigError where a check finds an error, and prints what else was found."""
    known = read(job, settings)
    known, asked, findings = prepare(replace(known, region=known.region or place))
    bad = errors(findings)
    say([finding for finding in findings if finding not in bad])
    if bad:
        raise ConfigError(f"{len(bad)} of the job's settings would fail:\n{show(bad)}")
    return known, asked


def located(job: SageMakerJob) -> tuple[SageMakerJob, list[Finding]]:
    """The job with a region: its own, that of the environment, or the default with a note about it."""
    for region in (job.region, os.environ.get("AWS_REGION"), os.environ.get("AWS_DEFAULT_REGION")):
        if region:
            return replace(job, region=region), []
    note = Finding("note", "region", f"no region is set: {DEFAULT_REGION}", "--region NAME, or set AWS_REGION")
    return replace(job, region=DEFAULT_REGION), [note]


def prepare(job: SageMakerJob) -> tuple[SageMakerJob, dict[str, Any], list[Finding]]:
    """The request, and everything that can be found wrong with it without asking AWS."""
    now = datetime.now(timezone.utc)
    job, findings = located(replace(job, role=job.role or os.environ.get("SAGEMAKER_ROLE", "")))
    choice = choose(job.training_type, job.strategy, job.region, job.image, unknown_type_ok=job.unknown_type_ok)
    name = training_job_name(job, now)
    request = create_training_job(job, image=choice.uri, name=name, code=code_place(job, name))
    findings += choice.findings
    findings += offline(job, request, root=ROOT, choice=choice, now=now.date())
    if choice.why:
        findings.append(Finding("note", "image", f"image {choice.uri}: {choice.why}"))
    return job, request, findings


def code_place(job: SageMakerJob, name: str) -> str:
    """The S3 address of a job's bundle."""
    return f"{output(job)}/{name}/source/sourcedir.tar.gz"


def upload_code(job: Source, asked: Mapping[str, Any]) -> None:
    """Put the code of a job where its request says that it is."""
    from launch.aws.cloud import connect, upload

    job = read(job, ())
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "sourcedir.tar.gz"
        build(ROOT, job, bundle)
        upload(connect(located(job)[0].region), bundle, code_uri(asked))


def say(findings: list[Finding]) -> None:
    if findings:
        print(show(findings), file=sys.stderr, flush=True)


def refused(findings: list[Finding], what: str) -> bool:
    say(findings)
    bad = errors(findings)
    if bad:
        print(f"error: {what}: {len(bad)} of the findings above must be fixed first", file=sys.stderr)
    return bool(bad)
