"""Where SageMaker keeps the files of a training job, read with boto3, which finds the region and
the credentials.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from segtrain.errors import ConfigError, DataError, MissingExtra, SegtrainError
from segtrain.insight.runs.remote import unknown_place

SIGN_IN = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or sign in with `aws "
    "sso login`"
)


def training_job(name: str, region: str = "") -> Mapping[str, Any]:
    """The response of DescribeTrainingJob for the job ``name``. ``region``: if it is empty, boto3
    finds it.

    Raises MissingExtra without boto3, DataError if there is no such job or AWS refuses, and
    ConfigError for settings that boto3 refuses.
    """
    what = f"sagemaker:{name}"
    try:
        import boto3
        from botocore import exceptions
    except ImportError:
        raise MissingExtra("boto3", "sagemaker", f"reading {what}") from None
    try:
        session = boto3.Session(region_name=region or None)
        return dict(session.client("sagemaker").describe_training_job(TrainingJobName=name))
    except exceptions.ClientError as error:
        if "not found" in str(error):
            fix = (
                "`aws sagemaker list-training-jobs` lists them; set AWS_DEFAULT_REGION or "
                "give the ARN"
            )
            problem = f"{what}: there is no such training job in {session.region_name}: {fix}"
            raise DataError(
                problem, code="no-training-job", job=name, region=session.region_name
            ) from None
        fix = f"this identity needs sagemaker:DescribeTrainingJob: {SIGN_IN}"
        reason = error.response["Error"]["Code"]
        raise DataError(
            f"{what}: {error}: {fix}", code="aws-refused", what=what, reason=reason
        ) from None
    except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
        fix = "check the network, a proxy, and AWS_ENDPOINT_URL"
        raise SegtrainError(
            f"{what}: AWS cannot be reached ({error}): {fix}", code="aws-unreachable", what=what
        ) from None
    except exceptions.BotoCoreError as error:
        fix = f"set AWS_DEFAULT_REGION or give the ARN of the job; {SIGN_IN}"
        raise ConfigError(f"{what}: {error}: {fix}", code="aws-settings", what=what) from None


def folders(location: str) -> list[str]:
    """The S3 folders of ``sagemaker:JOB``, or of the ARN of a job."""
    name, region = location.removeprefix("sagemaker:"), ""
    if location.startswith("arn:"):
        arn = re.fullmatch(r"arn:[\w-]+:sagemaker:([\w-]+):\d+:training-job/(.+)", location)
        if arn is None:
            fix = "the ARN of a training job is arn:aws:sagemaker:REGION:ACCOUNT:training-job/NAME"
            raise unknown_place(location, fix)
        region, name = arn[1], arn[2]
        os.environ["AWS_REGION"] = region  # of the job's buckets, whatever region is set
    return uris_of(training_job(name, region))


def uris_of(job: Mapping[str, Any]) -> list[str]:
    """The S3 folders of a job. The folder of its checkpoints is first: while the job trains, it
    holds the run.
    """
    outputs = [
        job[key].get("S3OutputPath") for key in ("OutputDataConfig", "ProfilerConfig") if key in job
    ]
    checkpoints = job.get("CheckpointConfig", {}).get("S3Uri")
    # The jobs of a tuning job share a prefix, with a folder for each.
    if checkpoints and "TuningJobArn" in job:
        checkpoints = f"{checkpoints.rstrip('/')}/{job['TrainingJobName']}"
    uris = [
        checkpoints,
        *(f"{output.rstrip('/')}/{job['TrainingJobName']}" for output in outputs if output),
    ]
    return list(dict.fromkeys(uri.rstrip("/") for uri in uris if uri))
