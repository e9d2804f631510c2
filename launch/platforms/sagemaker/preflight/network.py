"""Checks of subnets and security groups: that a job has them if it needs them."""

from __future__ import annotations

from collections.abc import Iterator

from launch.core.findings import Finding, error, note, warning
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.preflight.levels import API

FSX_DOCS = "SageMaker developer guide, model-access-training-data and train-vpc, 2023-02-18"
_FLAGS = {"subnets": "--subnets subnet-...", "security_groups": "--security-groups sg-..."}


def network(job: SageMakerJob) -> Iterator[Finding]:
    systems = [channel for channel in job.data if channel.is_file_system]
    if bool(job.subnets) != bool(job.security_groups):
        there, gone = ("subnets", "security_groups") if job.subnets else ("security_groups", "subnets")
        yield error(
            "vpc-half", f"{there}={_ids_of(job, there)} without {gone}: a VPC needs both", f"add {_FLAGS[gone]}", API
        )
    elif systems and not job.subnets:
        channel = systems[0]
        yield error(
            "fsx-without-vpc",
            f"data.{channel.name} is on {channel.file_system}, but the job has no subnets: it could not reach it",
            "--subnets and --security-groups of the file system (Lustre: TCP 988 and 1018-1023 open between them)",
            FSX_DOCS,
        )
    if systems and len(set(job.subnets)) > 1:
        yield warning(
            "fsx-subnets",
            f"subnets={_ids_of(job, 'subnets')}: a job is placed in any one of them, FSx for Lustre is in one zone",
            "give the subnet of the file system alone",
            FSX_DOCS,
        )
    if job.subnets and job.security_groups:
        yield note(
            "vpc-internet",
            "in a VPC the job reaches S3 and the package index through your network alone",
            "it needs an S3 gateway endpoint and, for requirements.txt, a NAT gateway; checked before sending",
            FSX_DOCS,
        )


def _ids_of(job: SageMakerJob, key: str) -> str:
    return ",".join(getattr(job, key))
