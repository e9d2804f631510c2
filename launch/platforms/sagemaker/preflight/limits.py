"""Checks of hyperparameters, environment variables, metrics, and tags: values that would change on
their way into the container, and secrets. The service's limits are in its model
(``launch.platforms.sagemaker.service_model``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from launch.core import job_checks
from launch.core.findings import Finding, error, warning
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.preflight.places import API

TOOLKIT = (
    "sagemaker-training up to 5.1.0 (2025-08) joins hyperparameters into one line of a shell; "
    "an image's name does not tell which version it has"
)


def limits(job: SageMakerJob, request: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _hyperparameters(job, request.get("HyperParameters", {}))
    for key, value in job.environment.items():
        if key.startswith("SM_") or key in (
            "TRAINING_JOB_NAME",
            "TRAINING_JOB_ARN",
            "MASTER_ADDR",
            "MASTER_PORT",
        ):
            yield warning(
                "environment-reserved",
                f"environment {key}={value!r}: SageMaker's toolkit sets it itself and "
                "overwrites yours",
                "leave it out, or take another name",
            )
    cure = "let the script fetch it with the job's role (AWS Secrets Manager)"
    yield from job_checks.secrets(
        {"environment": job.environment, "setting": job.settings, "tag": job.tags}, cure
    )
    yield from _metrics(job)
    yield from _tags(job)


def _hyperparameters(job: SageMakerJob, parameters: Mapping[str, str]) -> Iterator[Finding]:
    for key, text in parameters.items():
        if key.startswith("sagemaker_"):
            continue  # the toolkit reads these itself and does not put them on the command line
        broken = shell_reads(f"{key} {as_argument(text)}")
        if broken:
            yield error(
                "hyperparameter-shell",
                f"setting {key}={as_argument(text)[:80]!r}: {broken!r} would be read by a shell on "
                "the way to the script",
                f"put it into the config, {job.config}, which travels as a file",
                TOOLKIT,
            )
    yield from _words_for_switches(job)


def as_argument(text: str) -> str:
    """A hyperparameter as the toolkit puts it on the command line of the script."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in sorted(value.items()))
    return "" if value is None else str(value)


def shell_reads(text: str) -> str:
    """The first character of ``text`` that breaks a shell command: an unclosed quote, or a shell
    operator.

    "" if there is none.
    """
    quote = ""
    escaped = False
    for char in text:
        if quote == "'":
            quote = "" if char == "'" else quote
        elif escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif quote:
            if char in "$`":
                return char
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in ";&|<>()$`\n":
            return char
    return quote or ("\\" if escaped else "")


def _words_for_switches(job: SageMakerJob) -> Iterator[Finding]:
    for key, value in job.settings.items():
        word = str(value).strip()
        if isinstance(value, str) and word in ("True", "False", "None", "yes", "no", "on", "off"):
            right = {"True": "true", "yes": "true", "on": "true", "None": "null"}.get(word, "false")
            yield error(
                "hyperparameter-boolean",
                f"setting {key}={value!r} is a string, not a boolean: many scripts treat any "
                "string that is not empty as true",
                f"{key}={right}",
                "aws/sagemaker-python-sdk#4247, #2689",
            )


def _metrics(job: SageMakerJob) -> Iterator[Finding]:
    for metric in job.metrics:
        problem = ""
        try:
            groups = re.compile(metric.regex).groups
            problem = "" if groups else "has no group ( ) around the number"
        except re.error as wrong:
            problem = f"is not a regular expression: {wrong}"
        if problem:
            yield error(
                "metric-regex",
                f"metrics {metric.name}={metric.regex[:60]!r} {problem}",
                r"as in 'loss ([0-9.]+)'",
                API,
            )


def _tags(job: SageMakerJob) -> Iterator[Finding]:
    """The model's pattern of tags is not one that Python can read."""
    for key, value in job.tags.items():
        if key.lower().startswith("aws:") or not re.fullmatch(r"[\w\s.:/=+\-@]*", key + value):
            yield error(
                "tag",
                f"tag {key[:60]}={value[:60]!r}: letters, digits, spaces and _ . : / = + - @, "
                "and no aws: at the start",
                "rename it, or leave the other characters out",
                API,
            )
