"""Checks with IAM's policy simulator of what the role and the caller may do: data, logs, image,
network, keys, PassRole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from launch.core.findings import Finding, error, note, warning
from launch.platforms.sagemaker.cloud import SERVICE
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.preflight.calls import AwsReadOnlyCalls
from launch.platforms.sagemaker.preflight.places import IMAGE, s3_parts
from launch.platforms.sagemaker.regions import partition

ROLE_DOCS = (
    "SageMaker developer guide, sagemaker-roles (CreateTrainingJob API: execution role permissions)"
)
LOGS = ("CreateLogGroup", "CreateLogStream", "DescribeLogStreams", "PutLogEvents")
INTERFACES = (  # EC2 actions for the network interfaces of a job in a VPC
    *("CreateNetworkInterface", "CreateNetworkInterfacePermission", "DeleteNetworkInterface"),
    *(
        "DeleteNetworkInterfacePermission",
        "DescribeNetworkInterfaces",
        "DescribeVpcs",
        "DescribeDhcpOptions",
    ),
    *("DescribeSubnets", "DescribeSecurityGroups"),
)


@dataclass(frozen=True)
class Right:
    """Actions on a resource that a principal needs. ``sure``: only the principal's own policies can
    grant them, so that a denial is certain.

    ``passed``: the call passes a role to SageMaker, and policies may have a condition on that
    (iam:PassedToService).
    """

    code: str
    actions: tuple[str, ...]
    resource: str
    what: str
    sure: bool = False
    passed: bool = False


def rights(
    job: SageMakerJob, request: Mapping[str, Any], ask: AwsReadOnlyCalls
) -> Iterator[Finding]:
    """Findings for denied actions. Most are warnings: the policy of a bucket, key, or repository
    may allow them.
    """
    for right in wanted(job, request, _keys(job, request, ask)):
        answered = yield from _ask(f"role={job.role!r}", job.role, right, ask)
        if not answered:
            return  # the next one would not be answered either
    caller = _caller(ask)
    for right in _of_the_caller(job) if caller else ():
        answered = yield from _ask(f"the caller {caller}", caller, right, ask)
        if not answered:
            return


def wanted(
    job: SageMakerJob, request: Mapping[str, Any], keys: Mapping[str, tuple[str, ...]]
) -> Iterator[Right]:
    """What the execution role needs for this request.

    ``keys``: ARN of a KMS key -> the actions that are needed with it.
    """
    part, owner = partition(job.region), job.role.split(":")[4]
    output = request["OutputDataConfig"]["S3OutputPath"]
    checkpoints = request.get("CheckpointConfig", {}).get("S3Uri", "")
    places: list[tuple[str, str, tuple[str, ...]]] = [
        ("output", output, ("s3:GetObject", "s3:PutObject"))
    ]
    places += (
        [("checkpoints", checkpoints, ("s3:GetObject", "s3:PutObject"))] if checkpoints else []
    )
    places += [
        (f"data.{channel.name}", channel.uri, ("s3:GetObject",))
        for channel in job.data
        if channel.uri
    ]
    for key, uri, actions in places:
        if parts := s3_parts(uri):
            item = f"{parts[0]}/{parts[1]}".rstrip("/")
            yield Right("role-rights", actions, f"arn:{part}:s3:::{item}/*", f"{key}={uri!r}")
            if key != "output":
                yield Right(
                    "role-rights",
                    ("s3:ListBucket",),
                    f"arn:{part}:s3:::{parts[0]}",
                    f"{key}={uri!r}",
                )
    group = (
        f"arn:{part}:logs:{job.region}:{owner}:log-group:/aws/sagemaker/TrainingJobs:log-stream:*"
    )
    yield Right(
        "role-logs",
        tuple(f"logs:{name}" for name in LOGS),
        group,
        "the job's log (without it nothing is seen)",
    )
    yield Right("role-metrics", ("cloudwatch:PutMetricData",), "*", "the job's metrics")
    if image := IMAGE.fullmatch(request["AlgorithmSpecification"]["TrainingImage"]):
        name = f"arn:{part}:ecr:{image['region']}:{image['account']}:repository/{image['name']}"
        layers = (
            "ecr:BatchCheckLayerAvailability",
            "ecr:BatchGetImage",
            "ecr:GetDownloadUrlForLayer",
        )
        yield Right("role-image", ("ecr:GetAuthorizationToken",), "*", "the image")
        yield Right("role-image", layers, name, "the image")
    if "VpcConfig" in request:
        yield Right(
            "role-network",
            tuple(f"ec2:{name}" for name in INTERFACES),
            "*",
            "the job's VPC",
            sure=True,
        )
    for arn, actions in keys.items():
        yield Right("role-kms", actions, arn, f"the key {arn}")


def _of_the_caller(job: SageMakerJob) -> Iterator[Right]:
    part, owner = partition(job.region), job.role.split(":")[4]
    yield Right(
        "caller-pass-role",
        ("iam:PassRole",),
        job.role,
        f"role={job.role!r}",
        sure=True,
        passed=True,
    )
    jobs = f"arn:{part}:sagemaker:{job.region}:{owner}:training-job/*"
    yield Right("caller-create", ("sagemaker:CreateTrainingJob",), jobs, "training jobs", sure=True)


def _ask(who: str, arn: str, right: Right, ask: AwsReadOnlyCalls) -> Any:
    """Yields findings about one right; returns whether the simulator answered."""
    context = {
        "ContextKeyName": "iam:PassedToService",
        "ContextKeyValues": [SERVICE],
        "ContextKeyType": "string",
    }
    answer = ask(
        f"whether {who} may {', '.join(right.actions)}",
        ask.clients.iam.simulate_principal_policy,
        PolicySourceArn=arn,
        ActionNames=list(right.actions),
        ResourceArns=[re.sub(r"(?<=.)\*$", "x", right.resource)],  # one of them
        **({"ContextEntries": [context]} if right.passed else {}),
    )
    if answer.value is None:
        return False
    results = [
        result
        for result in answer.value["EvaluationResults"]
        if result["EvalDecision"] != "allowed"
    ]
    if results:
        denied = ", ".join(result["EvalActionName"] for result in results)
        unsure = any(result.get("MissingContextValues") for result in results)
        certain = right.sure or any(result["EvalDecision"] == "explicitDeny" for result in results)
        level = note if unsure else error if certain else warning
        more = " (a condition of its policies could not be simulated)" if unsure else ""
        yield level(
            right.code,
            f"{who} is not allowed {denied} for {right.what} by its own policies{more}",
            f"allow {denied} on {right.resource}"
            + ("" if certain else ", unless that resource's policy allows it"),
            ROLE_DOCS,
        )
    return True


def _caller(ask: AwsReadOnlyCalls) -> str:
    """The ARN of the caller's user or role; "" for a root user, who may do everything, and if the
    ARN is not known.
    """
    answer = ask("the account of these credentials", lambda: ask.clients.identity)
    arn = str((answer.value or {}).get("Arn", ""))
    if ":assumed-role/" not in arn:
        return arn if ":user/" in arn else ""
    name = arn.split("/")[1]
    # its ARN may have a path
    role = ask(f"the caller's role {name}", ask.clients.iam.get_role, RoleName=name)
    return str(role.value["Role"]["Arn"]) if role.value else ""


def _keys(
    job: SageMakerJob, request: Mapping[str, Any], ask: AwsReadOnlyCalls
) -> dict[str, tuple[str, ...]]:
    """KMS keys of the request and of its buckets -> actions that the role needs. Aliases are not
    checked.
    """
    actions_by_arn: dict[str, tuple[str, ...]] = {}
    of_volumes = request["ResourceConfig"].get("VolumeKmsKeyId", "")
    key_actions: list[tuple[str, tuple[str, ...]]] = [
        (of_volumes, ("kms:CreateGrant", "kms:GenerateDataKeyWithoutPlaintext")),
        (request["OutputDataConfig"].get("KmsKeyId", ""), ("kms:GenerateDataKey",)),
    ]
    uris = [
        request["OutputDataConfig"]["S3OutputPath"],
        request.get("CheckpointConfig", {}).get("S3Uri", ""),
        *(channel.uri for channel in job.data),
    ]
    for bucket in dict.fromkeys(parts[0] for uri in uris if (parts := s3_parts(uri))):
        if key := _default_key(bucket, ask):
            key_actions.append((key, ("kms:Decrypt", "kms:GenerateDataKey")))
    for key, actions in key_actions:
        arn = (
            key
            if key.startswith("arn:")
            else f"arn:{partition(job.region)}:kms:{job.region}:{job.role.split(':')[4]}:key/{key}"
        )
        if key and "alias/" not in key:
            actions_by_arn[arn] = tuple(dict.fromkeys((*actions_by_arn.get(arn, ()), *actions)))
    return actions_by_arn


def _default_key(bucket: str, ask: AwsReadOnlyCalls) -> str:
    """The KMS key with which a bucket encrypts new objects; "" for S3's own keys."""
    answer = ask(
        f"the encryption of the bucket {bucket}",
        ask.clients.s3.get_bucket_encryption,
        Bucket=bucket,
    )
    rules = (answer.value or {}).get("ServerSideEncryptionConfiguration", {}).get("Rules", [])
    defaults = [rule.get("ApplyServerSideEncryptionByDefault", {}) for rule in rules]
    return next(
        (
            str(default.get("KMSMasterKeyID", ""))
            for default in defaults
            if default.get("SSEAlgorithm", "").startswith("aws:kms")
        ),
        "",
    )
