"""The checks of a Vertex AI job that must ask Google: rights, quota, buckets, image, and resources.

All calls only read. A call that is denied becomes a note, never an error: the job's account may
have rights that the caller lacks.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from launch.core import job_checks
from launch.core.calls import CallResult
from launch.core.findings import Finding, error, warning
from launch.platforms.vertex.cloud import GoogleClients, split_uri
from launch.platforms.vertex.images import OWN
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.preflight.buckets import bucket_checks
from launch.platforms.vertex.preflight.calls import GoogleReadOnlyCalls
from launch.platforms.vertex.preflight.machines import gpus
from launch.platforms.vertex.preflight.places import placeholders
from launch.platforms.vertex.request import code_place, output, parent

OF_THE_CALLER = (
    "aiplatform.customJobs.create",
    "aiplatform.customJobs.get",
    "aiplatform.customJobs.cancel",
)
# Roles of a project or a bucket that let an account read and write objects.
_WRITES = (
    "roles/storage.admin",
    "roles/storage.objectAdmin",
    "roles/storage.objectUser",
    "roles/owner",
    "roles/editor",
)
_READS = (*_WRITES, "roles/storage.objectViewer", "roles/viewer")


def online(job: VertexJob, request: Mapping[str, Any], clients: GoogleClients) -> list[Finding]:
    """All online findings. ``request``: the request as it would be sent."""
    if unset := list(job_checks.unset(placeholders(job), error)):
        return unset
    ask = GoogleReadOnlyCalls(clients)
    image = request["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["imageUri"]
    findings = [
        *_caller(job, ask),
        *(_upload(job, ask) if job.start == "bundle" else ()),
        *_account(job, ask),
        *bucket_checks(job, ask),
        *_quota(job, ask),
        *_resources(job, ask),
        *_image(job, image, ask),
    ]
    return list(dict.fromkeys([*findings, *ask.notes]))


def _caller(job: VertexJob, ask: GoogleReadOnlyCalls) -> Iterator[Finding]:
    answer = ask(
        "your rights in the project",
        ask.clients.service("cloudresourcemanager", "v1").post,
        f"projects/{job.project}:testIamPermissions",
        {"permissions": list(OF_THE_CALLER)},
    )
    if answer.absent:
        yield error(
            "project-missing",
            f"project={job.project!r}: there is no such project, or you may not see it",
            "--project ID",
        )
    missing = [right for right in OF_THE_CALLER if _lacks(answer, right)]
    if missing:
        yield error(
            "caller-rights",
            f"project={job.project}: you may not {', '.join(missing)}",
            f"gcloud projects add-iam-policy-binding {shlex.quote(job.project)} --member=user:YOU "
            "--role=roles/aiplatform.user",
        )


def _lacks(answer: CallResult, right: str) -> bool:
    """Whether the answer to testIamPermissions leaves out a right."""
    return answer.value is not None and right not in answer.items("permissions")


def _upload(job: VertexJob, ask: GoogleReadOnlyCalls) -> Iterator[Finding]:
    """Checks the caller's right to upload the code. A bucket that does not exist is reported
    elsewhere, or created.
    """
    bucket, right = split_uri(code_place(job, ""))[0], "storage.objects.create"
    answer = ask(
        f"your rights in gs://{bucket}",
        ask.clients.storage.get,
        f"b/{quote(bucket)}/iam/testPermissions",
        permissions=right,
    )
    if _lacks(answer, right):
        yield error(
            "caller-bucket",
            f"you may not write the code to gs://{bucket} ({right})",
            f"gcloud storage buckets add-iam-policy-binding gs://{shlex.quote(bucket)} "
            "--member=user:YOU --role=roles/storage.objectUser, or --staging gs://ANOTHER-BUCKET",
        )


def _account(job: VertexJob, ask: GoogleReadOnlyCalls) -> Iterator[Finding]:
    if not job.service_account:
        return
    account, api = job.service_account, ask.clients.service("iam", "v1")
    place = f"projects/-/serviceAccounts/{quote(account)}"
    answer = ask("the service account", api.get, place)
    if answer.absent:
        yield error(
            "service-account-missing",
            f"service_account={account}: there is no such account",
            f"gcloud iam service-accounts list --project={shlex.quote(job.project)}",
        )
        return
    if answer.value and answer.value.get("disabled"):
        yield error(
            "service-account-disabled",
            f"service_account={account} is disabled",
            f"gcloud iam service-accounts enable {shlex.quote(account)}",
        )
    act_as = "iam.serviceAccounts.actAs"
    rights = ask(
        "your right to act as the account",
        api.post,
        f"{place}:testIamPermissions",
        {"permissions": [act_as]},
    )
    if _lacks(rights, act_as):
        yield error(
            "caller-act-as",
            f"service_account={account}: you may not run jobs as it ({act_as})",
            f"gcloud iam service-accounts add-iam-policy-binding {shlex.quote(account)} "
            "--member=user:YOU --role=roles/iam.serviceAccountUser",
        )
    policy = ask(
        "the account's rights",
        ask.clients.service("cloudresourcemanager", "v1").post,
        f"projects/{job.project}:getIamPolicy",
        {},
    )
    if policy.value is None:
        return
    buckets: dict[str, tuple[str, ...]] = {}
    code = job.staging if job.start == "bundle" else ""
    for place, roles in (
        (output(job), _WRITES),
        (job.checkpoints, _WRITES),
        (code, _READS),
        (job.data, _READS),
    ):
        if place.startswith("gs://"):
            buckets.setdefault(split_uri(place)[0], roles)
    for bucket, wanted in buckets.items():
        own = ask(f"who may use gs://{bucket}", ask.clients.storage.get, f"b/{quote(bucket)}/iam")
        if own.value is not None and not any(
            _grants(answer.value, account, wanted) for answer in (policy, own)
        ):
            yield warning(
                "account-bucket",
                f"service_account={account}: no role of the project or of gs://{bucket} lets it "
                f"{'write' if wanted is _WRITES else 'read'} there",
                f"gcloud storage buckets add-iam-policy-binding gs://{shlex.quote(bucket)} "
                f"--member=serviceAccount:{shlex.quote(account)} "
                f"--role=roles/storage.{'objectUser' if wanted is _WRITES else 'objectViewer'}",
            )


def _grants(policy: Mapping[str, Any], account: str, roles: tuple[str, ...]) -> bool:
    """Whether a policy may give the account one of the roles. The contents of groups and of custom
    roles are not known here, so these count as a yes.
    """
    for binding in policy.get("bindings", ()):
        named = any(
            member == f"serviceAccount:{account}"
            or member.startswith(("group:", "principalSet:", "allUsers", "allAuthenticatedUsers"))
            for member in binding.get("members", ())
        )
        if named and (binding["role"] in roles or not binding["role"].startswith("roles/")):
            return True
    return False


def _quota(job: VertexJob, ask: GoogleReadOnlyCalls) -> Iterator[Finding]:
    """Checks the quota's limit only, not how much of it other jobs use at the moment."""
    accelerator = gpus(job)
    if accelerator is None or job.persistent_resource:
        return
    # NVIDIA_TESLA_T4 is nvidia_t4, NVIDIA_H100_80GB is nvidia_h100, and NVIDIA_A100_80GB keeps its
    # memory.
    kind = re.sub(r"tesla_|(?<!a100)_\d+gb$", "", accelerator.type.lower())
    spot = "" if job.scheduling == "STANDARD" else "preemptible_"
    metric = f"aiplatform.googleapis.com/custom_model_training_{spot}{kind}_gpus"
    wanted = job.hosts * accelerator.count
    service = f"projects/{job.project}/services/aiplatform.googleapis.com"
    answer = ask(
        "the quota",
        ask.clients.service("serviceusage", "v1beta1").get,
        f"{service}/consumerQuotaMetrics/{quote(metric, safe='')}",
    )
    if answer.absent:
        ask.unchecked(f"the quota {metric}", "Google knows none of that name")
    limit = _limit_in(answer, job.region)
    if limit is not None and 0 <= limit < wanted:
        yield error(
            "quota",
            f"{job.hosts} x {accelerator.count} x {accelerator.type} in {job.region}: the "
            f"limit is {limit} ({metric})",
            "ask for more in the console (IAM, Quotas), or fewer --hosts, or another --region",
        )


def _limit_in(metric: CallResult, region: str) -> int | None:
    """The limit in a region, else the one for all regions; -1: unlimited; None if the answer has
    neither.
    """
    effective: int | None = None
    for limit in metric.items("consumerQuotaLimits"):
        for bucket in limit.get("quotaBuckets", ()):
            place = bucket.get("dimensions", {}).get("region")
            if place == region or (place is None and effective is None):
                effective = int(bucket.get("effectiveLimit", 0))
    return effective


def _resources(job: VertexJob, ask: GoogleReadOnlyCalls) -> Iterator[Finding]:
    named = {"tensorboard": job.tensorboard}
    if job.persistent_resource:
        named["persistent_resource"] = (
            f"{parent(job)}/persistentResources/{job.persistent_resource}"
        )
    if job.experiment:
        named["experiment"] = f"{parent(job)}/metadataStores/default/contexts/{job.experiment}"
    for key, place in named.items():
        if not place:
            continue
        answer = ask(f"the {key}", ask.clients.vertex.get, place)
        if answer.absent:
            yield error(
                f"{key.partition('_')[0]}-missing",
                f"{key}={getattr(job, key)!r}: there is none in {job.region}",
                f"--{key.replace('_', '-')} of that region, or leave it out",
            )
        state = (answer.value or {}).get("state")
        if answer.value and key == "persistent_resource" and state != "RUNNING":
            yield error(
                "persistent-state",
                f"persistent_resource={job.persistent_resource!r} is {state}",
                "wait until it is RUNNING, or leave it out",
            )


def _image(job: VertexJob, image: str, ask: GoogleReadOnlyCalls) -> Iterator[Finding]:
    """Checks that the user's image in Artifact Registry exists, and has an entry point if
    start=image.
    """
    match = OWN.fullmatch(image)
    if match is None or match[2] == "vertex-ai":
        return
    host, path = f"{match[1]}-docker.pkg", "/".join(match.groups()[1:])
    tag = image.partition("@")[2] or image.rpartition("/")[2].partition(":")[2] or "latest"
    registry = ask.clients.service(host, "v2")
    manifest = ask("the image", registry.get, f"{path}/manifests/{tag}")
    if manifest.absent:
        yield error(
            "image-missing",
            f"image={image}: there is no such image",
            f"docker push {shlex.quote(image)}",
        )
    if job.start != "image" or "config" not in (manifest.value or ()):
        return
    digest = manifest.value["config"]["digest"]
    config = ask("the image's entry point", registry.get, f"{path}/blobs/{digest}")
    if config.value is None:
        return
    inside = config.value.get("config", {})
    if not inside.get("Entrypoint"):
        yield error(
            "image-entry-point",
            f"start=image: {image} has no entry point (its command is "
            f"{json.dumps(inside.get('Cmd'))}), and the settings would be run as a command",
            'ENTRYPOINT ["python", "-m", "segtrain.platforms.vertex"] in its Dockerfile, or '
            "--start bundle",
        )
