"""Checks of the names of a job: its variables, what its service account writes to, and the region of its resources.

The form of names is left to Vertex AI, which refuses a request with a wrong one at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from launch.core.findings import Finding, error, warning
from launch.core.preflight import looks_secret, variables
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.request import BUNDLE, JOB, LABEL, region

API = "Vertex AI API v1, CustomJob and CustomJobSpec (google-cloud-aiplatform 2.7.0)"
# Variables that Vertex AI or the launcher sets in a container.
_RESERVED = re.compile(rf"CLUSTER_SPEC|TF_CONFIG|AIP_\w+|CLOUD_ML_\w+|{BUNDLE}|{JOB}")


def names(job: VertexJob) -> Iterator[Finding]:
    if LABEL in job.labels:
        yield error("label-reserved", f"labels.{LABEL}: the launcher sets this label", "give it another name")
    yield from variables(job)
    yield from _environment(job)
    yield from _account(job)
    yield from _regions(job)


def _environment(job: VertexJob) -> Iterator[Finding]:
    for key, text in job.environment.items():
        if _RESERVED.fullmatch(key):
            yield error(
                "environment-reserved",
                f"environment.{key}: Vertex AI or the launcher sets this variable, and the training reads it",
                "leave it out",
            )
        if looks_secret(key, text):
            yield warning(
                "secret",
                f"environment.{key} looks like a secret: everybody who may see the job can read it",
                "keep it in Secret Manager, and read it as the service account of the job",
            )


def _account(job: VertexJob) -> Iterator[Finding]:
    for key in ("tensorboard", "experiment"):
        if getattr(job, key) and not job.service_account:
            yield error(
                f"{key}-service-account",
                f"{key}={getattr(job, key)!r} needs a service account: the default agent may not write there",
                "--service-account NAME@PROJECT.iam.gserviceaccount.com with roles/aiplatform.user and "
                "roles/storage.admin",
                "Vertex AI: TensorBoard with custom training; aiplatform.CustomJob.submit",
            )
    if job.experiment and job.tensorboard:
        yield error(
            "experiment-tensorboard",
            f"experiment={job.experiment!r} and tensorboard={job.tensorboard!r} exclude each other",
            "leave --tensorboard out: the experiment has its own",
            "aiplatform.CustomJob.submit",
        )
    if job.experiment_run and not job.experiment:
        yield error(
            "experiment-missing", f"experiment_run={job.experiment_run!r} without an experiment", "--experiment NAME"
        )


def _regions(job: VertexJob) -> Iterator[Finding]:
    """Resources must be in the job's region."""
    place = region(job)
    for key in ("tensorboard", "kms", "reservation", "psc_attachment"):
        there = re.search(r"/(?:locations|zones|regions)/([^/]+)/", getattr(job, key))
        if there and not f"{there[1]}-".startswith(f"{place}-"):
            flag = key.replace("_", "-")
            yield error(
                f"{key.partition('_')[0]}-region", f"{key}={getattr(job, key)!r} is not in {place}, as the job is",
                f"--{flag} with one in {place}", API,
            )  # fmt: skip
