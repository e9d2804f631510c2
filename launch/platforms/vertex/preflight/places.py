"""Checks of a job's addresses in Cloud Storage: output, staging, checkpoints, and data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from launch.core import job_checks
from launch.core.findings import Finding, error, warning
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.request import output

# Placeholders in the names of the examples, which a user must replace.
PLACEHOLDER = re.compile(r"\bMY-|\bPROJECT\b|\bBUCKET\b")
_IN_BUCKET = re.compile(rf"gs://(.*({PLACEHOLDER.pattern}).*|[a-z0-9][a-z0-9._-]+[a-z0-9](/.*)?)")
FUSE = "Vertex AI: use Cloud Storage as a mounted file system (its mount takes no options)"


def places(job: VertexJob) -> Iterator[Finding]:
    yield from job_checks.unset(placeholders(job), warning)
    for key in ("output", "staging", "checkpoints"):
        yield from _written(key, getattr(job, key))
    yield from _data(job)
    if job.data.startswith("gs://"):
        results = {"output": output(job), "checkpoints": job.checkpoints, "staging": job.staging}
        yield from job_checks.results_in_data("data", job.data, results)


def placeholders(job: VertexJob) -> list[str]:
    """Settings that still have a placeholder, with their values; also the project, if it is not
    set.
    """
    keys = (
        "project",
        "output",
        "staging",
        "checkpoints",
        "data",
        "service_account",
        "network",
        "tensorboard",
        "image",
    )
    values = {key: getattr(job, key) for key in keys}
    return [
        f"{key}={value!r}"
        for key, value in values.items()
        if PLACEHOLDER.search(value) or (key == "project" and not value)
    ]


def _written(key: str, place: str) -> Iterator[Finding]:
    if place and not _IN_BUCKET.fullmatch(place):
        yield error(
            f"{key}-uri",
            f"{key}={place!r} is not the address of a bucket (in lowercase): what a job writes "
            "elsewhere is gone with its machines",
            f"--{key} gs://BUCKET/FOLDER",
        )


def _data(job: VertexJob) -> Iterator[Finding]:
    data = job.data
    mounts = [*(share.folder for share in job.nfs), *(instance.folder for instance in job.lustre)]
    if not data or any(f"{data}/".startswith(f"{folder}/") for folder in mounts):
        return
    scheme = data.partition("://")[0]
    if data.startswith("/gcs/"):
        yield warning(
            "data-mounted",
            f"data={data!r} reads through a mount that cannot be tuned on Vertex AI: each file "
            "waits for requests",
            f"--data gs://{quote(data.removeprefix('/gcs/'))}, which segtrain reads ahead",
            FUSE,
        )
    elif scheme in ("s3", "az", "abfs", "abfss"):
        yield warning(
            "data-elsewhere",
            f"data={data!r} is in another cloud: each byte has a fee, and the job needs "
            "credentials",
            "copy it with the Storage Transfer Service, then --data gs://BUCKET/FOLDER",
        )
    elif not _IN_BUCKET.fullmatch(data):
        yield error(
            "data-place",
            f"data={data!r} is neither in a bucket (in lowercase), nor in a mount of the job "
            f"({', '.join(mounts) or 'it has none'})",
            "gcloud storage rsync -r FOLDER gs://BUCKET/FOLDER, then --data gs://BUCKET/FOLDER",
        )
