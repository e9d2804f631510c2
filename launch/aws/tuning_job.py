"""Sends a hyperparameter tuning job and follows it: how many training jobs have run, and the best with its settings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from shlex import quote
from typing import Any

from launch.aws.cloud import Clients, maybe_sent
from launch.aws.cures import explain, passing
from launch.aws.job import COMMAND
from segtrain.errors import SegtrainError

_ENDED = ("Completed", "Failed", "Stopped", "DeleteFailed")
_COUNTS = ("Completed", "InProgress", "RetryableError", "NonRetryableError", "Stopped")
_LEFT = 130  # the exit code that shells use for Ctrl-C


def submit(clients: Clients, request: Mapping[str, Any]) -> str:
    """Sends the tuning job and returns its ARN. Raises SegtrainError in AWS's words, with the cure."""
    name = request["HyperParameterTuningJobName"]
    try:
        return str(clients.sagemaker.create_hyper_parameter_tuning_job(**request)["HyperParameterTuningJobArn"])
    except Exception as error:
        problem = explain(error, f"CreateHyperParameterTuningJob of {name}")
        raise maybe_sent(name, problem, stop_command(name, clients.region)) if passing(error) else problem from None


def follow(
    clients: Clients,
    name: str,
    *,
    say: Callable[[str], None],
    poll_s: float = 30.0,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Follow the tuning job until it ends. Returns 0: it has a best training job; 1: it has none; 130: Ctrl-C ended the
    following, and the tuning job goes on.
    """
    said = ""
    try:
        while True:
            job = _describe(clients, name, first=not said)
            if job is not None:
                line = progress(job)
                if line != said:
                    say(line)
                said = line
                if job["HyperParameterTuningJobStatus"] in _ENDED:
                    break
            sleep(poll_s)
    except KeyboardInterrupt:
        say(f"left: {name} goes on, and is billed. Stop it: {stop_command(name, clients.region)}")
        return _LEFT
    for line in verdict(job, clients.region):
        say(line)
    return 0 if job.get("BestTrainingJob") else 1


def stop_command(name: str, region: str) -> str:
    command = "aws sagemaker stop-hyper-parameter-tuning-job --hyper-parameter-tuning-job-name"
    return f"{command} {quote(name)} --region {quote(region)}"


def _describe(clients: Clients, name: str, first: bool) -> dict[str, Any] | None:
    """The tuning job; None if AWS does not answer for a while. The first call raises SegtrainError instead."""
    try:
        return dict(clients.sagemaker.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name))
    except Exception as error:
        if first or not passing(error):
            on = "" if first else f" (the tuning job goes on; stop it: {stop_command(name, clients.region)})"
            raise SegtrainError(f"{explain(error, name)}{on}") from None
        return None


def progress(job: Mapping[str, Any]) -> str:
    """One line: the status, the numbers of training jobs, and the best one so far."""
    counts = job.get("TrainingJobStatusCounters", {})
    parts = [f"{key} {counts[key]}" for key in _COUNTS if counts.get(key)]
    best = job.get("BestTrainingJob")
    return "  ".join(
        [f"-- {job['HyperParameterTuningJobStatus']}", *parts, *([f"best {_score(best)}"] if best else [])]
    )


def _score(best: Mapping[str, Any]) -> str:
    metric = best.get("FinalHyperParameterTuningJobObjectiveMetric", {})
    settings = " ".join(f"{key}={_plain(text)}" for key, text in sorted(best.get("TunedHyperParameters", {}).items()))
    return (
        f"{metric.get('MetricName', '?')} {metric.get('Value', float('nan')):g} ({settings}) {best['TrainingJobName']}"
    )


def _plain(text: str) -> str:
    """A hyperparameter's value as on the command line: lists of choices are sent as JSON."""
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def verdict(job: Mapping[str, Any], region: str) -> list[str]:
    """Lines that tell how the tuning job ended, and what to do next."""
    status, best = job["HyperParameterTuningJobStatus"], job.get("BestTrainingJob")
    lines = [f"{status}: {job['FailureReason']}" if "FailureReason" in job else str(status)]
    if not best:
        return [*lines, "no training job gave the objective metric: look at one of them in the console"]
    settings = " ".join(f"{key}={_plain(text)}" for key, text in sorted(best.get("TunedHyperParameters", {}).items()))
    return [
        *lines,
        f"best     {_score(best)}",
        f"model    {COMMAND} --attach {best['TrainingJobName']} --region {region}",
        f"again    the same job with {settings}",
    ]
