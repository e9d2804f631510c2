"""Checks of the names of a job: its own, labels, environment, project, service account, experiment, and resources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from launch.findings import Finding, error, warning
from launch.gcp.job import VertexJob
from launch.gcp.request import BUNDLE, JOB, LABEL, STAMPED, region
from launch.preflight import looks_secret

API = "Vertex AI API v1, CustomJob and CustomJobSpec (google-cloud-aiplatform 2.7.0)"
LABELS = "Google Cloud, requirements for labels"
# Variables that Vertex AI or the launcher sets in a container.
_RESERVED = re.compile(rf"CLUSTER_SPEC|TF_CONFIG|AIP_\w+|CLOUD_ML_\w+|{BUNDLE}|{JOB}")


def names(job: VertexJob) -> Iterator[Finding]:
    yield from _name(job)
    yield from _labels(job)
    yield from _environment(job)
    if job.project and not re.fullmatch(
        r"[a-z][a-z0-9-]{4,28}[a-z0-9]|\d+|[a-z0-9.]+:[a-z][a-z0-9-]+|MY-PROJECT", job.project
    ):
        yield error(
            "project-form",
            f"project={job.project!r} is neither the ID of a project nor its number",
            "--project ID: 6 to 30 lower case letters, digits, and hyphens (`gcloud projects list`)",
        )
    yield from _account(job)
    yield from _experiment(job)
    yield from _resources(job)


def _name(job: VertexJob) -> Iterator[Finding]:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", job.name):
        plain = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-") or "segtrain"
        yield error(
            "name-characters",
            f"name={job.name!r}: it is the value of a label too: lower case letters, digits, and single hyphens",
            f"--name {plain}",
            LABELS,
        )
    if len(job.name) > 63 - STAMPED:
        yield error(
            "name-long",
            f"name={job.name!r} has {len(job.name)} characters; {63 - STAMPED} are left when the time is added",
            f"--name {job.name[: 63 - STAMPED].strip('-')}",
            LABELS,
        )


def _labels(job: VertexJob) -> Iterator[Finding]:
    for key, text in job.labels.items():
        if key == LABEL or key.startswith("goog"):
            yield error(
                "label-reserved", f"labels.{key}: this label is not yours to set", "give it another name", LABELS
            )
        elif not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key):
            yield error(
                "label-key",
                f"labels.{key}: a key begins with a lower case letter, and has lower case letters, digits, _ and -",
                f"--label {re.sub(r'[^a-z0-9_-]+', '-', key.lower()).strip('-_')[:63]}={quote(text)}",
                LABELS,
            )
        if not re.fullmatch(r"[a-z0-9_-]{0,63}", text):
            yield error(
                "label-value",
                f"labels.{key}={text!r}: a value has at most 63 lower case letters, digits, _ and -",
                f"--label {quote(key)}={re.sub(r'[^a-z0-9_-]+', '-', text.lower())[:63]}",
                LABELS,
            )
    if len(job.labels) > 63:
        yield error(
            "label-count", f"{len(job.labels)} labels and that of the launcher: 64 are allowed", "fewer", LABELS
        )


def _environment(job: VertexJob) -> Iterator[Finding]:
    for key, text in job.environment.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII):
            yield error(
                "environment-name", f"environment: {key!r} is not the name of a variable", "letters, digits, and _"
            )
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
    if len(job.environment) > 98:
        yield error(
            "environment-count",
            f"{len(job.environment)} variables and two of the launcher: 100 are allowed",
            "fewer",
            API,
        )


def _account(job: VertexJob) -> Iterator[Finding]:
    account = job.service_account
    if account and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*@[a-z0-9.:-]+\.gserviceaccount\.com", account):
        yield error(
            "service-account-form",
            f"service_account={account!r} is not the e-mail address of a service account",
            "--service-account NAME@PROJECT.iam.gserviceaccount.com",
        )
    for key in ("tensorboard", "experiment"):
        if getattr(job, key) and not account:
            yield error(
                f"{key}-service-account",
                f"{key}={getattr(job, key)!r} needs a service account: the default agent may not write there",
                "--service-account NAME@PROJECT.iam.gserviceaccount.com with roles/aiplatform.user and "
                "roles/storage.admin",
                "Vertex AI: TensorBoard with custom training; aiplatform.CustomJob.submit",
            )


def _experiment(job: VertexJob) -> Iterator[Finding]:
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
    for key in ("experiment", "experiment_run"):
        name = getattr(job, key)
        if name and not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,127}", name):
            yield error(
                "experiment-name",
                f"{key}={name!r}: lower case letters, digits, and hyphens, at most 128, and no hyphen first",
                f"--{key.replace('_', '-')} {re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-') or 'streets'}",
            )


def _resources(job: VertexJob) -> Iterator[Finding]:
    """Checks that resources are given by their full names, and are in the job's region."""
    place = region(job)
    forms = {
        "tensorboard": (
            r"projects/[^/]+/locations/([^/]+)/tensorboards/\d+",
            f"projects/PROJECT/locations/{place}/tensorboards/NUMBER",
        ),
        "kms": (
            r"projects/[^/]+/locations/([^/]+)/keyRings/[^/]+/cryptoKeys/[^/]+",
            f"projects/PROJECT/locations/{place}/keyRings/RING/cryptoKeys/KEY",
        ),
        "reservation": (
            r"projects/[^/]+/zones/([^/]+)/reservations/[^/]+",
            f"projects/PROJECT/zones/{place}-a/reservations/NAME",
        ),
    }
    for key, (form, example) in forms.items():
        text = getattr(job, key)
        match = re.fullmatch(form, text)
        if text and match is None:
            yield error(f"{key}-form", f"{key}={text!r} is not the name of a resource", f"--{key} {example}", API)
        elif match is not None and not f"{match[1]}-".startswith(f"{place}-"):
            yield error(
                f"{key}-region", f"{key}={text!r} is in {match[1]}, the job in {place}", f"--{key} {example}", API
            )
    if job.persistent_resource and not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", job.persistent_resource):
        yield error(
            "persistent-form",
            f"persistent_resource={job.persistent_resource!r} is not an ID: lower case letters, digits, and hyphens",
            "--persistent-resource ID (`gcloud ai persistent-resources list`)",
            API,
        )
