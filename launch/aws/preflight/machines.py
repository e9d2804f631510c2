"""Do types, groups, strategy and image fit together, and would every machine that is paid for do something?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from launch.aws.images import Choice, version
from launch.aws.instances import INSTANCES, like
from launch.aws.preflight.levels import API, error, warning
from launch.findings import Finding
from launch.job import Group, Job

FSDP_TORCH = (2, 4)  # FSDP2, which segtrain uses
SPREAD = ("ddp", "fsdp", "smddp")


def ranks(job: Job) -> int:
    """How many ranks the container's toolkit starts: one a GPU (one a host without) where the strategy spreads."""
    instance = INSTANCES.get(job.training_type)
    if job.strategy not in SPREAD:
        return 1
    return max(1, job.training_hosts) * max(1, instance.gpus if instance else 1)


def machines(job: Job, request: Mapping[str, Any], choice: Choice) -> Iterator[Finding]:
    yield from _groups(job, request) if job.groups else _hosts(job)
    yield from _strategy(job)
    yield from _image(job, choice)


def _hosts(job: Job) -> Iterator[Finding]:
    if job.instances < 1:
        yield error("instances-range", f"instances={job.instances}: at least one", "--instances 1")


def _groups(job: Job, request: Mapping[str, Any]) -> Iterator[Finding]:
    names = [group.name for group in job.groups]
    if len(names) > 5:
        yield error("group-count", f"{len(names)} groups ({', '.join(names)}); the service allows 5", "join some", API)
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield error("group-name", f"groups: {name!r} is there twice", "give each group its own name")
    for group in job.groups:
        if group.instances < 1:
            yield error("instances-range", f"groups.{group.name}: instances={group.instances}: at least one", "")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", group.name, re.ASCII):
            yield error("group-name", f"groups: {group.name!r} is no name: letters, digits and _ . -", "", API)
        if group.type != job.training_type:  # that one is looked at when the image is chosen
            yield from _helper_type(group)
    marked = [group for group in job.groups if group.train]
    if not marked and len(names) > 1:
        yield error(
            "group-train",
            f"groups {', '.join(names)}: none is said to train, so all would",
            f"mark one: --group {job.groups[0].name}={job.groups[0].type}*{job.groups[0].instances}:train",
        )
    elif len({group.type for group in marked}) > 1:
        listed = ", ".join(f"{group.name}={group.type}" for group in marked)
        yield error(
            "group-types",
            f"groups that train have several types ({listed}): the ranks of a job are as many on each host",
            "let one of them train, or give them one type",
        )
    parameters = request.get("HyperParameters", {})
    if job.strategy in SPREAD and "sagemaker_distribution_instance_groups" not in parameters:
        yield error(
            "group-distribution",
            f"the request has groups ({', '.join(names)}) but no sagemaker_distribution_instance_groups: each group would "
            "train a model of its own",
            "build the request with launch.aws.request",
            "rehearsed with sagemaker-training 5.1.4, 2026-11-21",
        )


def _helper_type(group: Group) -> Iterator[Finding]:
    instance = INSTANCES.get(group.type)
    if instance is None:
        near = like(group.type)
        yield error(
            "unknown-type",
            f"groups.{group.name}: type {group.type!r} is not a known training type",
            f"near: {', '.join(near)}" if near else "a SageMaker name, such as ml.c5.4xlarge",
        )
    elif instance.retired:
        yield warning(
            "retired-type", f"groups.{group.name}: type {group.type} is retired", "another type", instance.retired
        )


def _strategy(job: Job) -> Iterator[Finding]:
    instance = INSTANCES.get(job.training_type)
    gpus = instance.gpus if instance else 0
    if job.strategy in ("single", "dp") and job.training_hosts > 1:
        yield error(
            "strategy-hosts",
            f"strategy={job.strategy} is one process, but {job.training_hosts} hosts are asked for: each would train the same",
            "--strategy ddp, or --instances 1",
        )
    elif job.strategy == "single" and gpus > 1:
        yield warning(
            "gpus-idle",
            f"strategy=single uses one of the {gpus} GPUs of {job.training_type}; all are paid for",
            "--strategy ddp, or a type with one GPU",
        )
    if job.strategy == "dp" and gpus == 1:
        yield warning(
            "strategy-pointless", f"strategy=dp on {job.training_type}, which has one GPU", "--strategy single"
        )
    if job.strategy == "smddp" and job.training_hosts == 1:
        yield warning(
            "smddp-single-host",
            f"strategy=smddp on one {job.training_type}: what it makes faster is the network between hosts",
            "--strategy ddp, or --instances 2 and more",
            "SageMaker docs, data-parallel-intro, 2026",
        )


def _image(job: Job, choice: Choice) -> Iterator[Finding]:
    image = choice.image
    if image is not None and job.strategy == "fsdp" and version(image.torch) < FSDP_TORCH:
        yield error(
            "fsdp-image",
            f"strategy=fsdp, but image {image.tag} has torch {image.torch}: FSDP2 is in 2.4 and later",
            "--strategy ddp, or a newer --image",
        )
    match = re.search(r"\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com", choice.uri)
    if job.image and match and job.region and match[1] != job.region:
        yield error(
            "image-other-region",
            f"image {job.image!r} is in {match[1]}, the job in {job.region}: SageMaker pulls from its own region",
            f"--image {job.image.replace(match[1], job.region)}",
        )
