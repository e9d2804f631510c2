"""Checks of a job's names, networks, times, and restarts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launch.core import job_checks
from launch.core.findings import Finding, error, warning
from launch.core.preflight import variables
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.request import BUNDLE, JOB, LABEL, region

API = "Vertex AI API v1, CustomJob and CustomJobSpec (google-cloud-aiplatform 2.7.0)"
# Variables that Vertex AI or the launcher sets in a container.
# International letters are allowed too, but no capitals.
_LABEL = re.compile(r"[^\W\d_][\w-]{0,62}=[\w-]{0,63}")
_RESERVED = re.compile(rf"CLUSTER_SPEC|TF_CONFIG|AIP_\w+|CLOUD_ML_\w+|{BUNDLE}|{JOB}")


def names(job: VertexJob) -> Iterator[Finding]:
    if LABEL in job.labels:
        yield error(
            "label-reserved",
            f"labels.{LABEL}: the launcher sets this label",
            "give it another name",
        )
    for label in map("=".join, job.labels.items()):
        if label != label.lower() or not _LABEL.fullmatch(label):
            yield error(
                "label",
                f"label {label!r}: lowercase letters, digits, _ and -, and a letter first",
                f"--label {label.lower()}",
                API,
            )
    yield from variables(job)
    for key in job.environment:
        if _RESERVED.fullmatch(key):
            yield error(
                "environment-reserved",
                f"environment.{key}: Vertex AI or the launcher sets this variable, and the "
                "training reads it",
                "leave it out",
            )
    cure = "keep it in Secret Manager, and read it as the service account of the job"
    yield from job_checks.secrets({"environment": job.environment}, cure)
    yield from _account(job)
    yield from _regions(job)


def _account(job: VertexJob) -> Iterator[Finding]:
    for key in ("tensorboard", "experiment"):
        if getattr(job, key) and not job.service_account:
            yield error(
                f"{key}-service-account",
                f"{key}={getattr(job, key)!r} needs a service account: the default agent may "
                "not write there",
                "--service-account NAME@PROJECT.iam.gserviceaccount.com with roles/aiplatform.user "
                "and roles/storage.admin",
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
            "experiment-missing",
            f"experiment_run={job.experiment_run!r} without an experiment",
            "--experiment NAME",
        )


def _regions(job: VertexJob) -> Iterator[Finding]:
    """Resources must be in the job's region."""
    place = region(job)
    for key in ("tensorboard", "kms", "reservation", "psc_attachment"):
        there = re.search(r"/(?:locations|zones|regions)/([^/]+)/", getattr(job, key))
        if there and not f"{there[1]}-".startswith(f"{place}-"):
            flag = key.replace("_", "-")
            yield error(
                f"{key.partition('_')[0]}-region",
                f"{key}={getattr(job, key)!r} is not in {place}, as the job is",
                f"choose one in {place} for --{flag}",
                API,
            )


def network(job: VertexJob) -> Iterator[Finding]:
    if job.network and job.psc_attachment:
        yield error(
            "network-twice",
            "network (peering) and psc_attachment (Private Service Connect) exclude each other",
            "leave one of them out",
        )
    if job.reserved_ip_ranges and not job.network:
        yield error(
            "ranges-without-network",
            f"reserved_ip_ranges={', '.join(job.reserved_ip_ranges)} are ranges of a network, "
            "and the job has none",
            "--network projects/PROJECT-NUMBER/global/networks/NAME",
            API,
        )
    folders = [share.folder for share in job.nfs] + [instance.folder for instance in job.lustre]
    if folders and not job.network and not job.psc_attachment:
        yield error(
            "mount-without-network",
            f"{folders[0]} is on a server of your network, and the job is in none",
            "--network projects/PROJECT-NUMBER/global/networks/NAME",
            "Vertex AI: mount an NFS share for training",
        )


SHORT_S = 300


def times(job: VertexJob) -> Iterator[Finding]:
    yield from job_checks.short_run(job, SHORT_S)
    if job.max_wait is not None and job.scheduling != "FLEX_START":
        yield error(
            "wait-without-flex",
            f"max_wait={job.max_wait} s: only scheduling=FLEX_START waits; {job.scheduling} "
            "would ignore it",
            "--scheduling flex-start, or leave --max-wait out",
            API,
        )
    if job.disable_retries and job.restart_all:
        yield error(
            "restart-contradiction",
            "restart_all and disable_retries contradict each other: the service then "
            "restarts nothing",
            "leave one of them out",
            API,
        )
    if job.disable_retries and job.scheduling == "SPOT":
        yield error(
            "spot-without-retries",
            "scheduling=SPOT with disable_retries: the first machine that is taken away "
            "ends the job",
            "leave --disable-retries out",
            "Vertex AI: use Spot VMs with training",
        )
    if job.start == "image" and job.hosts > 1 and not job.restart_all:
        yield warning(
            "restart-static",
            f"start=image on {job.hosts} hosts without restart_all: unless the image starts "
            "segtrain.platforms.vertex, a restarted worker waits for ranks that went on without it",
            "--restart-all",
            "Vertex AI: distributed training, restart_job_on_worker_restart",
        )
