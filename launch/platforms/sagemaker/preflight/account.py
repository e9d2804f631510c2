"""Checks of the account: the role exists and SageMaker may assume it, type and image exist, the
quota suffices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launch.core.calls import CallResult
from launch.core.findings import Finding, error, note, warning
from launch.platforms.sagemaker.cloud import SERVICE, trusts
from launch.platforms.sagemaker.instances import INSTANCES, nearest
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.job_parts import Group
from launch.platforms.sagemaker.preflight.calls import AwsReadOnlyCalls
from launch.platforms.sagemaker.preflight.places import IMAGE, hours


def account_checks(
    job: SageMakerJob, request: Mapping[str, Any], ask: AwsReadOnlyCalls
) -> Iterator[Finding]:
    yield from _role(job, ask)
    for name in dict.fromkeys([*kinds(job), *(fallback.type for fallback in job.fallbacks)]):
        answer = offers(ask, f"whether EC2 offers {name} in {job.region}", name, "region")
        if answer.value == []:
            has_gpus = name in INSTANCES and INSTANCES[name].gpus
            others = (
                ", ".join(machine.name for machine in nearest(name)) if has_gpus else "another type"
            )
            yield warning(
                "type-not-offered",
                f"type {name}: EC2 offers it nowhere in {job.region}, so SageMaker is likely "
                "to have none",
                f"--type one of: {others}; or another --region",
            )
    yield from _quota(job, ask)
    yield from _image(request, ask)


def kinds(job: SageMakerJob) -> dict[str, int]:
    """Instance type -> number of instances."""
    counts: dict[str, int] = {}
    for group in job.groups or (Group("", job.type, job.instances),):
        counts[group.type] = counts.get(group.type, 0) + group.instances
    return counts


def _role(job: SageMakerJob, ask: AwsReadOnlyCalls) -> Iterator[Finding]:
    name, owner = job.role.rpartition("/")[2], job.role.split(":")[4]
    who = ask("the account of these credentials", lambda: ask.clients.identity)
    if who.value and who.value["Account"] != owner:
        yield error(
            "role-account",
            f"role={job.role!r} is in the account {owner}, but these credentials are for "
            f"{who.value['Account']}",
            "a role of the same account, or other credentials (AWS_PROFILE)",
        )
        return
    role = ask(f"role {name}", ask.clients.iam.get_role, RoleName=name)
    if role.absent:
        yield error(
            "role-missing",
            f"role={job.role!r}: the account has no role {name!r}",
            "aws iam list-roles; then --role ARN",
        )
        return
    if role.value and not trusts(role.value["Role"].get("AssumeRolePolicyDocument") or {}):
        yield error(
            "role-trust",
            f"role={job.role!r} does not let {SERVICE} assume it",
            f"add the principal {{'Service': '{SERVICE}'}} with sts:AssumeRole to its trust policy",
        )


def offers(ask: AwsReadOnlyCalls, what: str, name: str, places: str) -> CallResult:
    """Where EC2 offers a type: items with Location. ``places``: "region", or "availability-zone"
    for its zones.
    """
    return ask.pages(
        what,
        ask.clients.ec2,
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType=places,
        Filters=[{"Name": "instance-type", "Values": [name.removeprefix("ml.")]}],
    )


def _quota(job: SageMakerJob, ask: AwsReadOnlyCalls) -> Iterator[Finding]:
    answer = ask.pages(
        "the quotas of the account",
        ask.clients.quotas,
        "list_service_quotas",
        "Quotas",
        ServiceCode="sagemaker",
    )
    if answer.value is None:
        return
    quotas = {quota["QuotaName"]: quota["Value"] for quota in answer.value}
    use = "spot training job usage" if job.spot else "training job usage"
    for name, count in kinds(job).items():
        uses = [use, *(["training warm pool usage"] if job.warm_pool else [])]
        for key in (f"{name} for {use}" for use in uses):
            if key not in quotas:
                yield note("quota-unknown", f"the quota {key!r} is not listed in {job.region}")
            elif quotas[key] < count:
                yield error(
                    "quota",
                    f"{count} x {name}, but the quota {key!r} of this account in {job.region} "
                    f"is {quotas[key]:g}",
                    "ask for more in Service Quotas (Amazon SageMaker), or take fewer, another "
                    "--type or another --region",
                )
    longest = quotas.get("Longest run time for a training job")
    if longest is not None and job.max_run > longest:
        yield error(
            "max-run-quota",
            f"max_run={hours(job.max_run)} is more than this account's longest run, "
            f"{hours(int(longest))}",
            "a shorter --max-run, or ask for more in Service Quotas",
        )


def _image(request: Mapping[str, Any], ask: AwsReadOnlyCalls) -> Iterator[Finding]:
    uri = request["AlgorithmSpecification"]["TrainingImage"]
    match = IMAGE.fullmatch(uri)
    if match is None or not (match["tag"] or match["digest"]):
        return
    wanted = {"imageDigest": match["digest"]} if match["digest"] else {"imageTag": match["tag"]}
    answer = ask(
        f"image {uri}",
        ask.clients.ecr.batch_get_image,
        registryId=match["account"],
        repositoryName=match["name"],
        imageIds=[wanted],
    )
    if answer.absent or (answer.value and not answer.value.get("images")):
        yield error(
            "image-missing",
            f"image {uri!r} is not in that registry",
            "check --image, its tag and its region",
        )
