"""Checks of who gets in, and of a recipe's scripts: SSH, keys, instance metadata, rights to S3,
tags, placeholders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from launch.core.findings import Finding, error, note, warning
from launch.platforms.parallelcluster.recipe import Keys, always_on, entries, mapping, scripts

EVERYONE = ("0.0.0.0/0", "::/0")
PLACEHOLDER = re.compile(
    r"\b(?:subnet|sg|cr|fs|vpc)-0123456789abcdef\d\b|\bmy-(?:bucket|key)\b|\b192\.0\.2\.0/24"
)
BUDGET_TAG = "project"
SESSIONS = "AmazonSSMManagedInstanceCore"


def access(recipe: Keys) -> list[Finding]:
    """Everything about SSH, metadata, scripts, tags, and what is to be replaced."""
    return [
        *_ssh(recipe),
        *_metadata(recipe),
        *_scripts(recipe),
        *_tags(recipe),
        *_placeholders(recipe),
    ]


def _ssh(recipe: Keys) -> Iterator[Finding]:
    for place, node in always_on(recipe):
        ssh = mapping(node, "Ssh")
        allowed = ssh.get("AllowedIps", EVERYONE[0])
        if allowed in EVERYONE:
            said = allowed if "AllowedIps" in ssh else f"{allowed} (the default)"
            yield warning(
                "ssh-open",
                f"{place}: Ssh/AllowedIps {said}: port 22 is open to the whole internet",
                "AllowedIps: the range that you connect from, such as 192.0.2.0/24",
            )
    rights = mapping(recipe, "HeadNode", "Iam")
    policies = [str(one.get("Policy", "")) for one in entries(rights, "AdditionalIamPolicies")]
    # A role may have the policy, and users of a directory have passwords.
    unknown = (
        rights.get("InstanceRole")
        or rights.get("InstanceProfile")
        or recipe.get("DirectoryService")
    )
    if (
        not mapping(recipe, "HeadNode", "Ssh").get("KeyName")
        and not unknown
        and not any(SESSIONS in one for one in policies)
    ):
        yield error(
            "no-way-in",
            "HeadNode has neither Ssh/KeyName nor the policy of the session manager: nobody "
            "could log in",
            "Ssh: {KeyName: my-key}",
        )


def _metadata(recipe: Keys) -> Iterator[Finding]:
    if mapping(recipe, "Imds").get("ImdsSupport", "v2.0") == "v1.0":
        yield warning(
            "imds-v1",
            "Imds/ImdsSupport v1.0: any process that can be made to fetch a URL gets the "
            "node's rights",
            "ImdsSupport: v2.0, which segtrain's look for spot notices uses too",
        )
    if mapping(recipe, "HeadNode", "Imds").get("Secured") is False:
        yield warning(
            "imds-open",
            "HeadNode/Imds/Secured false: every user gets the rights of the head node, which "
            "may start machines",
            "Secured: true",
        )


def _scripts(recipe: Keys) -> Iterator[Finding]:
    for place, owner, address in scripts(recipe):
        scheme, _, rest = address.partition("://")
        if scheme not in ("s3", "https"):
            yield error(
                "script-place",
                f"{place}: Script {address} is not where a new node can fetch it",
                "aws s3 cp SCRIPT s3://BUCKET/bootstrap/, and Script: s3://BUCKET/bootstrap/SCRIPT",
            )
        elif scheme == "s3" and not _may_read(owner, *rest.split("/", 1)):
            yield error(
                "script-rights",
                f"{place}: the node has no right to read {address}: its start would fail",
                f"Iam: S3Access: [{{BucketName: {rest.split('/')[0]}, KeyName: "
                f'"bootstrap/*"}}] '
                "beside CustomActions",
            )


def _may_read(owner: Keys, bucket: str, key: str = "") -> bool:
    """Whether the node may read the object; True where its rights cannot be judged here."""
    rights = mapping(owner, "Iam")
    policies = [str(one.get("Policy", "")) for one in entries(rights, "AdditionalIamPolicies")]
    if any(rights.get(name) for name in ("InstanceRole", "InstanceProfile")) or any(
        not policy.endswith(f"/{SESSIONS}") for policy in policies
    ):
        return True
    return any(
        one.get("BucketName") in (bucket, "*") and fnmatchcase(key, str(one.get("KeyName", "*")))
        for one in entries(rights, "S3Access")
    )


def _tags(recipe: Keys) -> Iterator[Finding]:
    if not any(one.get("Key") == BUDGET_TAG for one in entries(recipe, "Tags")):
        yield note(
            "budget-tag",
            f"Tags have no {BUDGET_TAG}: a budget cannot tell this cluster's costs from others",
            "Tags: [{Key: project, Value: segtrain}], and configs/clusters/budget.cfn.yaml",
        )


def _placeholders(recipe: Keys) -> Iterator[Finding]:
    found = sorted({match for text in _texts(recipe) for match in PLACEHOLDER.findall(text)})
    if found:
        yield note(
            "placeholder",
            f"to be replaced: {', '.join(found)}",
            "put your own into a copy of the file",
        )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value
