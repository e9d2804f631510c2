"""Checks of a job that need the account: role, quota, data, network, image.

All calls to AWS are read-only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.core import job_checks
from launch.core.findings import Finding, error
from launch.platforms.sagemaker.cloud import AwsClients
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.preflight.account import account_checks
from launch.platforms.sagemaker.preflight.calls import AwsReadOnlyCalls
from launch.platforms.sagemaker.preflight.places import placeholders
from launch.platforms.sagemaker.preflight.rights import rights
from launch.platforms.sagemaker.preflight.stored import stored
from launch.platforms.sagemaker.preflight.vpc import vpc


def online(job: SageMakerJob, request: Mapping[str, Any], clients: AwsClients) -> list[Finding]:
    """The findings. A call that is denied is a note, never an error: the job's role may have rights
    that the caller does not have.
    """
    if unset := list(job_checks.unset(placeholders(job), error)):
        return unset
    ask = AwsReadOnlyCalls(clients)
    findings = [*account_checks(job, request, ask), *stored(job, request, ask), *vpc(job, ask)]
    if not any(
        finding.code in ("role-account", "role-missing", "role-trust") for finding in findings
    ):
        findings += rights(job, request, ask)
    return list(dict.fromkeys([*findings, *ask.notes]))
