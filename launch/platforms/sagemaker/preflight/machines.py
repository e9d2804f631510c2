"""Checks of types, groups, strategy and image: they fit together, and every machine that is paid
for does something.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from launch.core import job_checks
from launch.core.findings import Finding, error, warning
from launch.platforms.sagemaker.images import SageMakerImageChoice
from launch.platforms.sagemaker.instances import INSTANCES, about_type
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.job_parts import Group
from launch.platforms.sagemaker.preflight.places import IMAGE, stands_for
from launch.platforms.sagemaker.regions import ACCOUNTS, ACCOUNTS_FROM

SPREAD = ("ddp", "fsdp", "smddp")


def ranks(job: SageMakerJob) -> int:
    """How many ranks the container's toolkit starts: one per GPU (or per host without GPUs) if the
    strategy is distributed, else one.
    """
    instance = INSTANCES.get(job.training_type)
    if job.strategy not in SPREAD:
        return 1
    return max(1, job.training_hosts) * max(1, instance.gpus if instance else 1)


def machines(
    job: SageMakerJob, request: Mapping[str, Any], choice: SageMakerImageChoice
) -> Iterator[Finding]:
    for group in job.groups or (Group("", job.type, job.instances),):
        if group.instances < 1:
            where = f"groups.{group.name}: " if group.name else ""
            yield error(
                "instances-range",
                f"{where}instances={group.instances}: at least one",
                "--instances 1",
            )
    yield from _groups(job)
    yield from _strategy(job)
    match = re.search(r"\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com", choice.uri)
    if job.image and match and job.region and match[1] != job.region:
        yield error(
            "image-other-region",
            f"image {job.image!r} is in {match[1]}, the job in {job.region}: SageMaker pulls "
            "from its own region",
            f"--image {quote(job.image.replace(match[1], job.region))}",
        )
    if job.image and not stands_for(job.image):
        yield from _registry(job, request)


def _groups(job: SageMakerJob) -> Iterator[Finding]:
    for group in job.groups:
        # the type that trains is checked when the image is chosen
        if group.type != job.training_type:
            yield from about_type(
                group.type,
                image=job.image,
                unknown_ok=job.unknown_type_ok,
                where=f"groups.{group.name}: ",
            )
    marked = [group for group in job.groups if group.train]
    if not marked and len(job.training_groups) > 1:
        yield error(
            "group-train",
            f"groups {', '.join(group.name for group in job.training_groups)}: none is marked "
            "to train, so all would",
            "mark one: --group "
            f"{job.groups[0].name}={job.groups[0].type}*{job.groups[0].instances}:train",
        )
    elif len({group.type for group in marked}) > 1:
        listed = ", ".join(f"{group.name}={group.type}" for group in marked)
        yield error(
            "group-types",
            f"groups that train have several types ({listed}): each host must run the same "
            "number of ranks",
            "mark only one of them to train, or give them the same type",
        )


def _strategy(job: SageMakerJob) -> Iterator[Finding]:
    instance = INSTANCES.get(job.training_type)
    gpus = instance.gpus if instance else 0
    yield from job_checks.one_process(job, job.training_hosts, gpus, job.training_type)
    if job.strategy == "smddp" and job.training_hosts == 1:
        yield warning(
            "smddp-single-host",
            f"strategy=smddp on one {job.training_type}: it speeds up only the communication "
            "between hosts",
            "--strategy ddp, or --instances 2 and more",
            "SageMaker docs, data-parallel-intro, 2026",
        )


def _registry(job: SageMakerJob, request: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings for an image that SageMaker cannot pull (it pulls only from private ECR registries),
    or that cannot train, as some of AWS's own images.
    """
    private = request.get("AlgorithmSpecification", {}).get("TrainingImageConfig", {})
    # the user's own registry, reached through the job's VPC
    if private.get("TrainingRepositoryAccessMode") == "Vpc":
        return
    match = IMAGE.fullmatch(job.image)
    if match is None:
        name = job.image.rpartition("/")[2]
        public = job.image.startswith("public.ecr.aws/deep-learning-containers/")
        own = (
            f"{ACCOUNTS.get(job.region, 'ACCOUNT')}.dkr.ecr.{job.region or 'REGION'}.amazonaws.com"
        )
        yield error(
            "image-registry",
            f"image {job.image!r} is not in a private registry of ECR: SageMaker pulls a training "
            "image from nowhere else",
            f"--image {own}/{quote(name)}, which is the same image"
            if public
            else "push it: --image ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG",
            "aws/sagemaker-python-sdk#2605; kubeflow/pipelines#3728",
        )
        return
    right = ACCOUNTS.get(match["region"])
    of_aws = match["account"] in ACCOUNTS.values()
    if of_aws and right and match["account"] != right:
        yield error(
            "image-account",
            f"image {job.image!r}: AWS keeps its images for {match['region']} in the account "
            f"{right}, not in {match['account']}",
            f"--image {quote(job.image.replace(match['account'], right))}",
            ACCOUNTS_FROM,
        )
    tag = match["tag"] or ""
    why = ""
    if "inference" in match["name"]:
        why = "by its name it serves models, and has no SageMaker training toolkit"
    elif tag.endswith("-ec2"):
        why = "it is the variant for EC2, without the SageMaker training toolkit"
    elif of_aws and "pytorch" not in match["name"]:
        why = "by its name it holds another framework than PyTorch"
    if why:
        level = error if of_aws else warning
        yield level(
            "image-not-training",
            f"image {job.image!r}: {why}: the job would end before it trains",
            "leave --image out, or one of docs/sagemaker-images.md",
        )
