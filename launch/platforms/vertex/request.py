"""The body of projects.locations.customJobs.create for a job. Pure functions: the same job, name,
and image give the same request. It has the form that Google's own SDK sends
(tests/contracts/vertex).

What the containers get:

* Worker pool 0 is one replica, the primary; pool 1 has the other hosts. All replicas have one
  image, command, and arguments. Vertex AI itself adds CLUSTER_SPEC, the AIP_ variables, and the
  buckets below /gcs.
* Command, with ``start: bundle``: ``python3 -c TEXT``, where TEXT is docker/vertex/start.py without
  its comments. It reads the bundle at SEGTRAIN_BUNDLE (gs://.../bundle.tar.gz) from the mount below
  /gcs, or else by HTTP with the token of the machine's service account. It unpacks the bundle into
  SEGTRAIN_CODE (default: /tmp/segtrain-code), installs the bundle's requirements.txt with pip
  unless SEGTRAIN_PIP=0, and replaces itself in that folder by ``python3 -m
  segtrain.platforms.vertex ARGUMENTS``, which is then PID 1. With ``start: image`` there is no
  command and no SEGTRAIN_BUNDLE: the image's own entry point gets the arguments.
* Arguments: the config's name in the bundle, then section.key=VALUE with VALUE as JSON. They
  include ``parallel.strategy``, ``data.root`` (from the job's ``data``), and ``out`` (from the
  job's ``checkpoints``).
* One process is started per host; it starts one rank per GPU.
* Environment: SEGTRAIN_BUNDLE, SEGTRAIN_JOB (the job's name), and the job's own pairs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from launch.core.bundle import data_setting, script_lines
from launch.core.job import config_name
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.job_parts import Accelerator
from launch.platforms.vertex.machines import accelerator_of

DEFAULT_REGION = "us-central1"
PLACEHOLDER_PROJECT = "MY-PROJECT"
BUNDLE, JOB = "SEGTRAIN_BUNDLE", "SEGTRAIN_JOB"
# The label identifies one submission, so that a lost answer does not lead to a second job.
LABEL = "segtrain-job"
STAMPED = 24  # characters of "-2026-11-21-03-56-05-089"


def job_name(job: VertexJob, now: datetime) -> str:
    """A name such as ``segtrain-2026-11-21-03-56-05-089``: lower case, at most 63 characters, as it
    is a label too.
    """
    base = re.sub(r"[^a-z0-9]+", "-", job.name.lower())[: 63 - STAMPED].strip("-") or "segtrain"
    return f"{base}-{now:%Y-%m-%d-%H-%M-%S}-{now.microsecond // 1000:03d}"


def region(job: VertexJob) -> str:
    return job.region or DEFAULT_REGION


def project(job: VertexJob) -> str:
    return job.project or PLACEHOLDER_PROJECT


def default_bucket(job: VertexJob) -> str:
    """The name of the bucket that Google's own SDK uses for staging. The first upload creates
    it.
    """
    return f"{project(job)}-vertex-staging-{region(job)}"


def output(job: VertexJob) -> str:
    """The gs:// folder of everything that jobs write, without a trailing slash."""
    return (job.output or f"gs://{default_bucket(job)}/segtrain").rstrip("/")


def code_place(job: VertexJob, name: str) -> str:
    """The gs:// address of a job's bundle."""
    return f"{(job.staging or output(job)).rstrip('/')}/{name}/source/bundle.tar.gz"


def parent(job: VertexJob) -> str:
    """The parent resource of the job: its project and region."""
    return f"projects/{project(job)}/locations/{region(job)}"


def custom_job(job: VertexJob, *, image: str, name: str) -> dict[str, Any]:
    """The request's body. ``name``: from ``job_name``; ``image``: URI of the container image."""
    request: dict[str, Any] = {
        "displayName": name,
        "jobSpec": _spec(job, image, name),
        "labels": {**job.labels, LABEL: name},
    }
    if job.kms:
        request["encryptionSpec"] = {"kmsKeyName": job.kms}
    return request


def arguments(job: VertexJob) -> list[str]:
    """The container's arguments: the config, then the settings with JSON values, in which strings
    keep their quotes.
    """
    data = data_setting(job, job.data)
    settings: dict[str, Any] = {**data, **({"out": job.checkpoints} if job.checkpoints else {})}
    settings |= {**job.settings, "parallel.strategy": job.strategy, **data}
    return [
        *([config_name(job)] if job.config else []),
        *(f"{key}={json.dumps(value)}" for key, value in settings.items()),
    ]


def environment(job: VertexJob, name: str) -> dict[str, str]:
    ours = {BUNDLE: code_place(job, name)} if job.start == "bundle" else {}
    return {**ours, JOB: name, **job.environment}


def experiment_names(job: VertexJob) -> dict[str, str]:
    """The resource names of experiment and run in the project's metadata store; {} if the job has
    no experiment.
    """
    if not job.experiment:
        return {}
    store = f"{parent(job)}/metadataStores/default/contexts"
    names = {"experiment": f"{store}/{job.experiment}"}
    return names | (
        {"experimentRun": f"{store}/{job.experiment}-{job.experiment_run}"}
        if job.experiment_run
        else {}
    )


def _spec(job: VertexJob, image: str, name: str) -> dict[str, Any]:
    pools = [
        _pool(job, image, name, count) for count in ((1, job.hosts - 1) if job.hosts > 1 else (1,))
    ]
    spec: dict[str, Any] = {"workerPoolSpecs": pools, "scheduling": _scheduling(job)}
    texts = {
        "serviceAccount": job.service_account,
        "network": job.network,
        "persistentResourceId": job.persistent_resource,
        "tensorboard": job.tensorboard,
    }
    spec |= {key: text for key, text in texts.items() if text}
    spec["baseOutputDirectory"] = {"outputUriPrefix": f"{output(job)}/{name}"}
    if job.reserved_ip_ranges:
        spec["reservedIpRanges"] = list(job.reserved_ip_ranges)
    if job.psc_attachment:
        spec["pscInterfaceConfig"] = {"networkAttachment": job.psc_attachment}
    if job.web_access:
        spec["enableWebAccess"] = True
    return spec | experiment_names(job)


def _pool(job: VertexJob, image: str, name: str, replicas: int) -> dict[str, Any]:
    """One worker pool. ``replicaCount`` is a string, as Google's JSON writes 64-bit integers."""
    container: dict[str, Any] = {"imageUri": image}
    if job.start == "bundle":
        container["command"] = ["python3", "-c", "\n".join(script_lines("vertex/start.py"))]
    container["args"] = arguments(job)
    container["env"] = [
        {"name": key, "value": text} for key, text in environment(job, name).items()
    ]
    pool: dict[str, Any] = {
        "machineSpec": _machine(job, job.accelerator or accelerator_of(job.machine)),
        "replicaCount": str(replicas),
        "diskSpec": {"bootDiskType": job.disk_type, "bootDiskSizeGb": job.disk_gb},
        "containerSpec": container,
    }
    if job.nfs:
        pool["nfsMounts"] = [
            {"server": mount.server, "path": mount.path, "mountPoint": mount.mount_point}
            for mount in job.nfs
        ]
    if job.lustre:
        pool["lustreMounts"] = [
            {
                "filesystem": mount.filesystem,
                "instanceIp": mount.instance_ip,
                "volumeHandle": mount.volume_handle,
                "mountPoint": mount.mount_point,
            }
            for mount in job.lustre
        ]
    return pool


def _machine(job: VertexJob, accelerator: Accelerator | None) -> dict[str, Any]:
    machine: dict[str, Any] = {"machineType": job.machine}
    if accelerator is not None:
        machine |= {"acceleratorType": accelerator.type, "acceleratorCount": accelerator.count}
    if job.reservation:
        machine["reservationAffinity"] = {
            "reservationAffinityType": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [job.reservation],
        }
    return machine


def _scheduling(job: VertexJob) -> Mapping[str, Any]:
    scheduling: dict[str, Any] = {"timeout": f"{job.max_run}s", "strategy": job.scheduling}
    if job.restart_all:
        scheduling["restartJobOnWorkerRestart"] = True
    if job.disable_retries:
        scheduling["disableRetries"] = True
    if job.max_wait is not None:
        scheduling["maxWaitDuration"] = f"{job.max_wait}s"
    return scheduling
