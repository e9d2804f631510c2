"""Checks of names, hyperparameters, environment variables, metrics, and tags: the service's limits, values that would
change on their way into the container, and secrets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from launch.aws.job import SageMakerJob
from launch.aws.preflight.levels import API
from launch.findings import Finding, error, warning
from launch.preflight import looks_secret

STAMPED = 24  # characters that the time adds to a job's name: -2026-11-21-03-56-05-089
NAME = 63
TOOLKIT = (
    "sagemaker-training up to 5.1.0 (2025-08) joins hyperparameters into one line of a shell; "
    "an image's name does not tell which version it has"
)
_WORD = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*", re.ASCII)


def limits(job: SageMakerJob, request: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _name(job)
    yield from _hyperparameters(job, request.get("HyperParameters", {}))
    yield from _environment(job)
    yield from _secrets(job)
    yield from _metrics(job)
    yield from _tags(job)
    yield from _entrypoint(request.get("AlgorithmSpecification", {}))


def _name(job: SageMakerJob) -> Iterator[Finding]:
    if not _WORD.fullmatch(job.name):
        yield error(
            "name-characters",
            f"name={job.name!r}: a job's name has letters, digits and single hyphens between them",
            f"--name {re.sub(r'[^A-Za-z0-9]+', '-', job.name).strip('-') or 'segtrain'}",
            API,
        )
    if len(job.name) > NAME - STAMPED:
        yield error(
            "name-long",
            f"name={job.name!r} has {len(job.name)} characters; {NAME - STAMPED} are left when the time is added "
            f"(the service allows {NAME})",
            f"--name {job.name[: NAME - STAMPED].strip('-')}",
            API,
        )


def _hyperparameters(job: SageMakerJob, parameters: Mapping[str, str]) -> Iterator[Finding]:
    if len(parameters) > 100:
        yield error(
            "hyperparameter-count",
            f"{len(parameters)} hyperparameters, each setting is one; the service allows 100",
            f"put settings into the config, {job.config}",
            API,
        )
    for key, text in parameters.items():
        if len(key) > 256 or len(text) > 2500:
            what, count, most = ("key", len(key), 256) if len(key) > 256 else ("value", len(text), 2500)
            yield error(
                "hyperparameter-long",
                f"setting {key[:60]!r}: its {what} has {count} characters ({text[:40]}...); the service allows {most}",
                f"put it into the config, {job.config}",
                API,
            )
        if key.startswith("sagemaker_"):
            continue  # the toolkit reads these itself and does not put them on the command line
        broken = shell_reads(f"{key} {as_argument(text)}")
        if broken:
            yield error(
                "hyperparameter-shell",
                f"setting {key}={as_argument(text)[:80]!r}: {broken!r} would be read by a shell on the way to "
                "the script",
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
    """The first character of ``text`` that breaks a shell command: an unclosed quote, or a shell operator.

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
                f"setting {key}={value!r} is a string, not a boolean: many scripts treat any string that is not "
                "empty as true",
                f"{key}={right}",
                "aws/sagemaker-python-sdk#4247, #2689",
            )
        elif isinstance(value, bool) and job.program != "train.py":
            yield warning(
                "hyperparameter-boolean",
                f"setting {key}={value}: {job.program} gets it as '--{key} {value}', which argparse's "
                "store_true refuses",
                "read hyperparameters.json in the script, or take a text",
                "aws/sagemaker-training-toolkit#117",
            )


def _environment(job: SageMakerJob) -> Iterator[Finding]:
    if len(job.environment) > 100:
        yield error(
            "environment-long", f"{len(job.environment)} environment variables; the service allows 100", "", API
        )
    for key, value in job.environment.items():
        if len(key) > 512 or len(value) > 512:
            yield error(
                "environment-long",
                f"environment {key[:60]}={value[:40]!r}... has {max(len(key), len(value))} characters; "
                "the service allows 512",
                "put long values into a file of the data or of the config",
                API,
            )
        if not re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII):
            yield error(
                "environment-name",
                f"environment {key!r} is not a variable name: use letters, digits, and _, not a digit first",
                "rename it",
                API,
            )
        elif key.startswith("SM_") or key in ("TRAINING_JOB_NAME", "TRAINING_JOB_ARN", "MASTER_ADDR", "MASTER_PORT"):
            yield warning(
                "environment-reserved",
                f"environment {key}={value!r}: SageMaker's toolkit sets it itself and overwrites yours",
                "leave it out, or take another name",
            )


def _secrets(job: SageMakerJob) -> Iterator[Finding]:
    places = {"environment": job.environment, "setting": job.settings, "tag": job.tags}
    for kind, values in places.items():
        for key, value in values.items():
            if looks_secret(key, str(value)):
                yield warning(
                    "secret",
                    f"{kind} {key}=(hidden) looks like a secret: anyone who may describe training jobs can read "
                    "it, forever",
                    "let the script fetch it with the job's role (AWS Secrets Manager)",
                )


def _metrics(job: SageMakerJob) -> Iterator[Finding]:
    if len(job.metrics) > 40:
        yield error("metric-count", f"{len(job.metrics)} metrics; the service allows 40", "leave some out", API)
    for metric in job.metrics:
        problem = ""
        try:
            groups = re.compile(metric.regex).groups
            problem = "" if groups else "has no group ( ) around the number"
        except re.error as wrong:
            problem = f"is not a regular expression: {wrong}"
        if len(metric.regex) > 500:
            problem = f"has {len(metric.regex)} characters; the service allows 500"
        if problem:
            yield error(
                "metric-regex",
                f"metrics {metric.name}={metric.regex[:60]!r} {problem}",
                r"as in 'loss ([0-9.]+)'",
                API,
            )


def _tags(job: SageMakerJob) -> Iterator[Finding]:
    if len(job.tags) > 50:
        yield error("tag", f"{len(job.tags)} tags; the service allows 50", "leave some out", API)
    for key, value in job.tags.items():
        legal = re.fullmatch(r"[\w\s.:/=+\-@]{1,128}", key) and re.fullmatch(r"[\w\s.:/=+\-@]{0,256}", value)
        if key.lower().startswith("aws:"):
            yield error("tag", f"tag {key}={value!r}: names that begin with aws: are AWS's own", "rename it", API)
        elif not legal:
            yield error(
                "tag",
                f"tag {key[:60]}={value[:60]!r}: 128 and 256 characters at most, letters, digits, spaces and _ "
                ". : / = + - @",
                "shorten it, or leave the other characters out",
                API,
            )


def _entrypoint(algorithm: Mapping[str, Any]) -> Iterator[Finding]:
    arguments = algorithm.get("ContainerArguments", [])
    long = [line for line in arguments if len(line) > 256]
    if long or len(arguments) > 100:
        what = f"the line {long[0][:40]!r}... has {len(long[0])} characters" if long else f"{len(arguments)} lines"
        yield error(
            "entrypoint-long",
            f"docker/sagemaker/entrypoint.sh: {what}; the service allows 100 lines of 256",
            "shorten it",
            API,
        )
