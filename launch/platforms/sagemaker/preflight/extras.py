"""Checks that encryption, isolation, training plans, and fallback types fit the rest of the job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from launch.core.findings import Finding, error, note, warning
from launch.platforms.sagemaker.images import SageMakerImageChoice, runs_on
from launch.platforms.sagemaker.instances import INSTANCES, like
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.preflight.machines import ranks
from launch.platforms.sagemaker.preflight.places import API


def extras(job: SageMakerJob, choice: SageMakerImageChoice) -> Iterator[Finding]:
    yield from _keys(job)
    # Findings for keys and training plans of another region. The output's bucket, and so its key,
    # may be in another region, so that is only a warning.
    for key, level in (("training_plan", error), ("volume_kms", error), ("output_kms", warning)):
        parts = str(getattr(job, key)).split(":")
        place = parts[3] if parts[0] == "arn" and len(parts) > 5 else ""
        if place and job.region and place != job.region:
            yield level(
                "other-region",
                f"{key}={':'.join(parts)} is in {place}, the job in {job.region}",
                f"--{key.replace('_', '-')} of {job.region}, or --region {place}",
                API,
            )
    yield from _isolation(job, choice)
    yield from _fallbacks(job, choice)
    if job.training_plan and job.spot:
        yield warning(
            "plan-spot",
            f"training_plan={job.training_plan} with spot=true: a plan is reserved capacity, but "
            "spot is spare capacity",
            "leave out --spot or --training-plan",
        )


def types(job: SageMakerJob) -> list[str]:
    """Every type that the job may run on."""
    return [group.type for group in job.groups] or [
        job.type,
        *(other.type for other in job.fallbacks),
    ]


def _keys(job: SageMakerJob) -> Iterator[Finding]:
    if not job.volume_kms:
        return
    for name in types(job):
        instance = INSTANCES.get(name)
        if instance is not None and instance.nvme_gb:
            yield error(
                "volume-kms-nvme",
                f"volume_kms={job.volume_kms}: {name} has local disks, which its hardware "
                "encrypts; the service refuses a key",
                "leave out --volume-kms: these disks are encrypted all the same",
                API,
            )
    if "alias/" in job.volume_kms:
        yield error(
            "volume-kms-alias",
            f"volume_kms={job.volume_kms} is an alias: for volumes the service takes the key's "
            "ID or its ARN",
            "aws kms describe-key --key-id ALIAS prints both",
            API,
        )


def _isolation(job: SageMakerJob, choice: SageMakerImageChoice) -> Iterator[Finding]:
    if not job.network_isolation:
        return
    if choice.image is not None:
        yield error(
            "isolation-packages",
            f"network_isolation=true with AWS's own image {choice.image.tag}: pip cannot install "
            "segtrain's packages there",
            "--image URI of an image that holds them (docker/sagemaker/Dockerfile)",
        )
    else:
        yield note(
            "isolation-packages",
            f"network_isolation=true: nothing is downloaded in the container, so {choice.uri} "
            "must hold all packages",
        )
    from segtrain.installed import trackers

    for key in (f"log.{kind.setting}" for kind in trackers() if kind.extra):
        if job.settings.get(key):
            yield error(
                "isolation-tracker",
                f"{key}={job.settings[key]} with network_isolation=true: the container cannot "
                "reach the tracker",
                f"{key}=''",
            )


def _fallbacks(job: SageMakerJob, choice: SageMakerImageChoice) -> Iterator[Finding]:
    if not job.fallbacks:
        return
    listed = ", ".join(other.type for other in job.fallbacks)
    for key, value in (("groups", job.groups), ("spot", job.spot)):
        if value:
            yield error(
                f"fallbacks-{key}",
                f"fallbacks={listed} with {key}: the service takes one or the other",
                f"leave out fallbacks or {key}",
                API,
            )
    names = types(job)
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield error("fallbacks-twice", f"type {name} is there twice", "name each type once", API)
    for other in job.fallbacks:
        yield from _fallback(
            job, replace(job, type=other.type, instances=other.instances or job.instances), choice
        )


def _fallback(
    job: SageMakerJob, other: SageMakerJob, choice: SageMakerImageChoice
) -> Iterator[Finding]:
    """``other``: the job as it would run on a fallback type."""
    instance = INSTANCES.get(other.type)
    if instance is None:
        near = like(other.type)
        yield note(
            "fallback-unknown",
            f"fallbacks: type {other.type} is not in the table: whether image and strategy fit "
            "is not known",
            f"near: {', '.join(near)}" if near else "",
        )
        return
    if choice.image is not None and not runs_on(choice.image, instance):
        yield error(
            "fallback-image",
            f"fallbacks: image {choice.image.tag}, picked for {job.type}, has no code for "
            f"{other.type}",
            "--image URI of one that fits both, or another type",
        )
    if job.strategy == "smddp" and not instance.smddp:
        yield error(
            "fallback-smddp",
            f"fallbacks: SMDDP does not run on {other.type}",
            "--strategy ddp, or another type",
        )
    before, after, batch = ranks(job), ranks(other), job.settings.get("train.batch_size")
    if before != after and isinstance(batch, int) and batch % after:
        level = error if batch < after else warning
        yield level(
            "fallback-batch",
            f"fallbacks: train.batch_size={batch} is not a multiple of the {after} ranks of "
            f"{other.instances} x {other.type}",
            f"train.batch_size={-(-batch // after) * after}, or another count: {other.type}*N",
        )
