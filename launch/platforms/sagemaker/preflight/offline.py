"""All checks of a job and its request that need no AWS account."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any

from launch.core import job_checks
from launch.core.findings import Finding, error, note
from launch.platforms.sagemaker.images import SageMakerImageChoice
from launch.platforms.sagemaker.instances import PRICES_DATED
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.preflight.bundle_checks import bundle_checks, decoder_checks
from launch.platforms.sagemaker.preflight.channels import channels
from launch.platforms.sagemaker.preflight.cost import helpers
from launch.platforms.sagemaker.preflight.extras import extras
from launch.platforms.sagemaker.preflight.limits import limits
from launch.platforms.sagemaker.preflight.machines import machines
from launch.platforms.sagemaker.preflight.places import places
from launch.platforms.sagemaker.preflight.times import times
from launch.platforms.sagemaker.preflight.training import training
from launch.platforms.sagemaker.preflight.vpc import network

# Violations of the service's model that another finding describes better, or that do not stop the
# job: code of that finding -> beginning of the violation.
TOLD_BY: dict[str, str | tuple[str, ...]] = {
    "vpc-half": "VpcConfig",
    "unknown-type": "ResourceConfig.Instance",
    "role-name": "RoleArn",
    "output-uri": ("OutputDataConfig.S3OutputPath", "ProfilerConfig.S3OutputPath"),
    "checkpoints-uri": "CheckpointConfig.S3Uri",
}


def offline(
    job: SageMakerJob,
    request: Mapping[str, Any],
    *,
    choice: SageMakerImageChoice,
    now: date,
) -> list[Finding]:
    """All findings except those of the image choice (``choice.findings``). A check that cannot run
    adds a note.
    """
    findings = [
        *limits(job, request),
        *times(job, request),
        *places(job, request),
        *channels(job),
        *network(job),
    ]
    findings += [*machines(job, request, choice), *helpers(job), *extras(job, choice)]
    from launch.platforms.sagemaker.bundle import contents

    files, missing = job_checks.bundled(job, lambda: dict(contents(job)))
    findings += missing
    if files:
        findings += [*bundle_checks(job, files, choice), *decoder_checks(choice)]
    findings += [*training(job, set(files)), *_prices(now)]
    findings += _model(request, [*findings, *choice.findings])
    return list(dict.fromkeys(findings))


def _prices(now: date) -> Iterator[Finding]:
    year, month = (int(part) for part in PRICES_DATED.split("-")[:2])
    months = (now.year - year) * 12 + now.month - month
    if months > 12:
        yield note(
            "prices-old",
            f"the table of prices is from {PRICES_DATED}, {months} months ago",
            "--price USD, today's price per hour",
        )


def _model(request: Mapping[str, Any], findings: Iterable[Finding]) -> Iterator[Finding]:
    """Violations of the service's own model of the request that no other finding reports; needs
    botocore.
    """
    from launch.platforms.sagemaker.service_model import violations

    wrong = violations(request)
    if wrong is None:
        yield note(
            "service-model-unchecked",
            "the request is not compared with the service's own model: this Python has no botocore",
            "pip install 'segtrain[sagemaker]'",
        )
        return
    codes = {finding.code for finding in findings}
    for line in wrong:
        if not any(line.startswith(start) for code, start in TOLD_BY.items() if code in codes):
            yield error("service-model", line, source="botocore's model of CreateTrainingJob")
