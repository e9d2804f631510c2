"""Addresses of S3 and ECR, and checks of role, output, and checkpoints: SageMaker can use them, and
their prefixes do not overlap with the data or with each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from launch.core import job_checks
from launch.core.findings import Finding, error, note, warning
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.regions import partition

# The source of the API's limits. botocore's service model has them too, but botocore may not be
# installed.
API = "CreateTrainingJob in the SageMaker API reference (botocore 1.44.5)"

BUCKET_RULE = (
    "s3://BUCKET/PREFIX/; a bucket's name has 3 to 63 lowercase letters, digits, dots and hyphens"
)
_S3 = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/(?P<key>.*))?")


# The address of an image in ECR.
IMAGE = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?/(?P<name>[^:@]+)"
    r"(:(?P<tag>[^@]+))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)


def s3_parts(uri: str) -> tuple[str, str] | None:
    """Bucket and key of ``s3://bucket/key``; None if ``uri`` is not an S3 address."""
    match = _S3.fullmatch(uri)
    return (match["bucket"], match["key"] or "") if match else None


def folder(uri: str) -> str:
    """The S3 address with a slash at its end."""
    return uri if uri.endswith("/") else uri + "/"


def hours(seconds: int) -> str:
    """A time in the largest unit that divides it: ``90 s``, ``36 h``, ``5 days``."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size} {unit if seconds != 86400 else 'day'}"
    return f"{seconds} s"


_ROLE = re.compile(r"arn:(?P<partition>aws[a-z-]*):iam::\d{12}:role/[\w+=,.@/-]+", re.ASCII)
_ROLE_NAME = re.compile(r"[\w+=,.@-]{1,64}", re.ASCII)
# Placeholders for the user's own names, in this repository's examples and in its requests.
_PLACEHOLDER = re.compile(
    r"\b((MY-)?(BUCKET|ROLE|ACCOUNT|PREFIX|NAME)|MOUNTNAME|mountname|0{12})\b|<[^>]*>|^fs-\.\.\.$"
)


def stands_for(text: str) -> str:
    """The placeholder in ``text``; "" where there is none."""
    match = _PLACEHOLDER.search(text)
    return match[0] if match else ""


def places(job: SageMakerJob, request: Mapping[str, Any]) -> Iterator[Finding]:
    yield from job_checks.unset(placeholders(job), warning)
    yield from _role(job)
    for key, uri in (("output", job.output), ("checkpoints", job.checkpoints)):
        if uri and not stands_for(uri) and s3_parts(uri) is None:
            yield error(
                f"{key}-uri",
                f"{key}={uri!r} is not an S3 address ({BUCKET_RULE}): nothing is kept elsewhere",
                f"--{key} s3://BUCKET/NAME/",
            )
    yield from _overlaps(job, request)


def placeholders(job: SageMakerJob) -> list[str]:
    """Settings that are still to be filled in, each with its value."""
    required = {"role": job.role, "output": job.output}
    unfilled = [
        f"{key}={value!r}" for key, value in required.items() if not value or stands_for(value)
    ]
    optional = {"checkpoints": job.checkpoints, "image": job.image}
    for channel in job.data:
        optional[f"data.{channel.name}"] = (
            f"{channel.file_system}:{channel.path}" if channel.is_file_system else channel.uri
        )
    return unfilled + [f"{key}={value!r}" for key, value in optional.items() if stands_for(value)]


def _role(job: SageMakerJob) -> Iterator[Finding]:
    if not job.role or stands_for(job.role):
        return
    if arn := _ROLE.fullmatch(job.role):
        if job.region and arn["partition"] != partition(job.region):
            yield error(
                "role-partition",
                f"role={job.role!r} is in the partition {arn['partition']}, but region "
                f"{job.region} in {partition(job.region)}: accounts of one do not exist in the "
                "other",
                f"a role of an account in {partition(job.region)}, or another --region",
            )
        return
    if _ROLE_NAME.fullmatch(job.role):
        yield note(
            "role-name",
            f"role={job.role!r} is a name: its ARN is looked up in your account before sending",
        )


def _overlaps(job: SageMakerJob, request: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings for S3 prefixes that overlap.

    The next job would download results inside the data as data. SageMaker copies everything below
    the checkpoints' prefix to every host.
    """
    checkpoints = request.get("CheckpointConfig", {}).get("S3Uri", "")
    results = {"output": job.output, "checkpoints": checkpoints}
    below = {f"data.{channel.name}": channel.uri for channel in job.data} | {"output": job.output}
    for key, uri in below.items():
        if checkpoints and uri and s3_parts(uri) and folder(uri).startswith(folder(checkpoints)):
            # copied to every host: old models and code, or all data
            level = warning if key == "output" else error
            yield level(
                "checkpoints-above",
                f"checkpoints={checkpoints!r} is "
                f"{'the same as' if folder(uri) == folder(checkpoints) else 'above'} "
                f"{key}={uri!r}: SageMaker copies everything below the checkpoints into "
                "/opt/ml/checkpoints of each host before it trains",
                f"--checkpoints {quote(f'{folder(checkpoints)}checkpoints/{job.name}/')}, or "
                "another prefix of its own",
            )
    for channel in job.data:
        if not channel.is_file_system and s3_parts(channel.uri):
            yield from job_checks.results_in_data(f"data.{channel.name}", channel.uri, results)
