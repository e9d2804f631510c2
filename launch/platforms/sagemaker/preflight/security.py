"""Checks of security groups and endpoint policies: inbound and outbound rules, the rules that EFA
needs, and the buckets that endpoints allow.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launch.core.findings import Finding, error, warning
from launch.platforms.sagemaker.instances import INSTANCES
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.preflight.places import s3_parts
from launch.platforms.sagemaker.regions import partition

Item = Mapping[str, Any]
FSX_DOCS = "SageMaker developer guide, model-access-training-data and train-vpc, 2023-02-18"
EFA_DOCS = (
    "EC2 user guide, efa-start: an EFA needs a security group that lets all traffic in "
    "from and out to itself"
)


def admitted(
    rules: Sequence[Item], others: set[str], first: int, last: int, everything: bool = False
) -> bool:
    """Do rules let TCP ``first`` to ``last`` (``everything``: all protocols) pass between the group
    and one of ``others``?
    """
    for rule in rules:
        all_ports = rule.get("IpProtocol") == "-1"
        tcp = rule.get("IpProtocol") in ("tcp", "6") and not everything
        if not (
            all_ports
            or (tcp and rule.get("FromPort", 0) <= first and last <= rule.get("ToPort", 65535))
        ):
            continue
        # Any range of addresses is accepted: it may be the VPC's own, and the machines' addresses
        # are not known yet.
        anywhere = rule.get("IpRanges") or rule.get("Ipv6Ranges") or rule.get("PrefixListIds")
        if anywhere or others & {pair.get("GroupId") for pair in rule.get("UserIdGroupPairs", [])}:
            return True
    return False


def among_themselves(job: SageMakerJob, groups: Sequence[Item]) -> Iterator[Finding]:
    """Findings for rules that block the traffic between the hosts of a job. Their TCP ports are not
    known in advance. EFA does not use TCP, so it needs a rule for all traffic.
    """
    if job.hosts < 2:
        return
    names = {group["GroupId"] for group in groups}
    setting = f"security_groups={','.join(job.security_groups)}"
    cure = f"a rule of {min(names)}: all traffic, in and out, from and to {min(names)}"
    inward = [rule for group in groups for rule in group.get("IpPermissions", [])]
    out = [rule for group in groups for rule in group.get("IpPermissionsEgress", [])]
    if not admitted(inward, names, 1024, 65535):
        yield error(
            "security-group-self",
            f"{setting} lets nothing in from itself: {job.hosts} hosts could not talk",
            cure,
            FSX_DOCS,
        )
        return
    if out and not admitted(out, names, 1024, 65535):
        yield error(
            "security-group-self",
            f"{setting} lets nothing out to itself: {job.hosts} hosts could not talk",
            cure,
            FSX_DOCS,
        )
        return
    instance = INSTANCES.get(job.training_type)
    if instance is not None and instance.efa:
        both = all(admitted(rules, names, 0, 65535, everything=True) for rules in (inward, out))
        if not both:
            level = error if instance.name.startswith("ml.p") else warning
            yield level(
                "security-group-efa",
                f"{setting}: {instance.name} has EFA, which needs all traffic from and to the "
                "group itself, not TCP alone: NCCL would wait or fail at the first collective",
                cure,
                EFA_DOCS,
            )


def outward(job: SageMakerJob, groups: Sequence[Item]) -> Iterator[Finding]:
    """Findings for rules that block outbound HTTPS, which code, data, checkpoints, and the model
    need.
    """
    rules = [rule for group in groups for rule in group.get("IpPermissionsEgress", [])]
    setting = f"security_groups={','.join(job.security_groups)}"
    if not rules:
        message = f"{setting} lets nothing out: the job could not reach S3"
    elif not _out(rules, {group["GroupId"] for group in groups}):
        message = (
            f"{setting} lets no HTTPS (TCP 443) out to any address: the job could not reach S3"
        )
    else:
        return
    yield error(
        "security-group-egress",
        message,
        "an outbound rule: TCP 443 to 0.0.0.0/0, or to S3's prefix list",
        FSX_DOCS,
    )


def _out(rules: Sequence[Item], mine: set[str]) -> bool:
    """Whether the rules let HTTPS out, to addresses or to another security group (such as that of
    an S3 endpoint).
    """
    for rule in rules:
        every = rule.get("IpProtocol") == "-1"
        https = rule.get("IpProtocol") in ("tcp", "6") and rule.get(
            "FromPort", 0
        ) <= 443 <= rule.get("ToPort", 65535)
        others = {pair.get("GroupId") for pair in rule.get("UserIdGroupPairs", [])} - mine
        if (every or https) and (
            rule.get("IpRanges") or rule.get("Ipv6Ranges") or rule.get("PrefixListIds") or others
        ):
            return True
    return False


def bucket_policy(job: SageMakerJob, endpoints: Sequence[Item]) -> Iterator[Finding]:
    """Findings for the job's S3 addresses that no endpoint policy allows. Conditions in policies
    are not evaluated.
    """
    part = partition(job.region)
    wanted = [
        (f"data.{channel.name}", channel.uri, "s3:GetObject") for channel in job.data if channel.uri
    ]
    wanted += [
        (key, uri, "s3:PutObject")
        for key, uri in (("output", job.output), ("checkpoints", job.checkpoints))
        if uri
    ]
    for key, uri, action in wanted:
        parts = s3_parts(uri)
        if parts is None:
            continue
        item = f"arn:{part}:s3:::{parts[0]}/{parts[1]}".rstrip("/") + "/x"
        shut = [
            end for end in endpoints if not permits(end.get("PolicyDocument", ""), action, item)
        ]
        if shut and len(shut) == len(endpoints):
            yield error(
                "endpoint-policy",
                f"{key}={uri!r}: the policy of the S3 endpoint {shut[0].get('VpcEndpointId', '')} "
                f"does not allow {action} there",
                f"allow {action} on arn:{part}:s3:::{parts[0]}/* in it",
            )


def permits(policy: str, action: str, resource: str) -> bool:
    """Whether a policy (JSON) allows an action on a resource.

    A missing policy, or one that is not valid JSON, allows everything.
    """
    try:
        statements = json.loads(policy)["Statement"]
    except (ValueError, KeyError, TypeError):
        return True
    allowed = False
    for statement in [statements] if isinstance(statements, Mapping) else statements:
        if _covers(statement, "Action", action) and _covers(statement, "Resource", resource):
            if statement.get("Effect") == "Deny" and not statement.get("Condition"):
                return False
            allowed = allowed or statement.get("Effect") == "Allow"
    return allowed


def _covers(statement: Item, key: str, value: str) -> bool:
    def any_of(patterns: Any) -> bool:
        texts = [patterns] if isinstance(patterns, str) else patterns
        return any(
            fnmatch.fnmatchcase(value.lower(), str(text).lower().replace("[", "[[]"))
            for text in texts
        )

    if f"Not{key}" in statement:
        return not any_of(statement[f"Not{key}"])
    return any_of(statement.get(key, []))
