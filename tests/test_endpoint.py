"""Tests of the stand-in for SageMaker: it is as strict as the service, stores requests, and plays a job's life."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'segtrain[sagemaker]'")

from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402
from cloud.endpoint import CloudEndpoint  # noqa: E402
from cloud.life import Act, play  # noqa: E402
from cloud.samples import SPOT, fsx_channel, s3_channel, training_job  # noqa: E402

Client = Callable[[str], Any]
GROUP = "/aws/sagemaker/TrainingJobs"


SESSION = boto3.Session("AKIAIOSFODNN7EXAMPLE", "secret", region_name="us-east-1")  # its models are read once


@pytest.fixture
def cloud() -> Iterator[CloudEndpoint]:
    with CloudEndpoint() as endpoint:
        yield endpoint


@pytest.fixture
def client(cloud: CloudEndpoint) -> Callable[[str], Any]:
    # Without boto3's own checks: what arrives is what the endpoint has to judge.
    config = Config(parameter_validation=False, retries={"total_max_attempts": 1})
    return lambda service: SESSION.client(service, endpoint_url=cloud.url, config=config)


def refusal(call: Any, **request: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**request)
    return f"{caught.value.response['Error']['Code']}: {caught.value.response['Error']['Message']}"


def resources(**changes: Any) -> dict[str, Any]:
    return {**training_job()["ResourceConfig"], **changes}


GROUPS = [
    {"InstanceGroupName": "gpu", "InstanceType": "ml.g5.xlarge", "InstanceCount": 2},
    {"InstanceGroupName": "cpu", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
]
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"ResourceConfig": resources(InstanceType="ml.nonsense.1xlarge")}, "ml.nonsense.1xlarge"),
    "profiler interval": (
        {"ProfilerConfig": {"S3OutputPath": "s3://a/b", "ProfilingIntervalInMilliseconds": 300}},
        "300",
    ),
    "spot without wait": ({"EnableManagedSpotTraining": True}, "MaxWaitTimeInSeconds"),
    "warm pool with spot": ({**SPOT, "ResourceConfig": resources(KeepAlivePeriodInSeconds=60)}, "KeepAlive"),
    "type and groups": ({"ResourceConfig": resources(InstanceGroups=GROUPS)}, "either"),
    "mixed channels": (
        {
            "ResourceConfig": {"VolumeSizeInGB": 30, "InstanceGroups": GROUPS},
            "InputDataConfig": [s3_channel("train", ("gpu",)), s3_channel("val")],
        },
        "Some channels",
    ),
    "unknown group": ({"InputDataConfig": [s3_channel("train", ("gpus",))]}, "gpus"),
    "fsx without vpc": ({"InputDataConfig": [fsx_channel()]}, "VpcConfig"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests_are_refused_and_not_kept(cloud: CloudEndpoint, client: Client, case: str) -> None:
    changes, named = WRONG[case]
    request = {key: value for key, value in training_job(**changes).items() if value is not None}
    words = refusal(client("sagemaker").create_training_job, **request)
    assert words.startswith("ValidationException")
    assert named in words
    assert not cloud.jobs


def test_each_look_at_a_job_is_a_minute_of_its_life(cloud: CloudEndpoint, client: Client) -> None:
    cloud.plays["job"] = play(
        "Starting", "Downloading", "Training", "Interrupted", "Starting", "Training", Act("Failed", message="boom")
    )
    sagemaker = client("sagemaker")
    sagemaker.create_training_job(**training_job("job-1", **SPOT))
    seen = [sagemaker.describe_training_job(TrainingJobName="job-1") for _ in range(8)]
    assert [told["SecondaryStatus"] for told in seen] == [
        *("Starting", "Downloading", "Training", "Interrupted", "Starting", "Training", "Failed", "Failed")
    ]
    assert [told["TrainingJobStatus"] for told in seen[-3:]] == ["InProgress", "Failed", "Failed"]
    last = seen[-1]
    assert last["FailureReason"] == "boom"
    # Downloading and twice Training, a minute each; spot pays 30 % of them. Waiting is free.
    assert (last["TrainingTimeInSeconds"], last["BillableTimeInSeconds"]) == (180, 54)
    assert "TrainingTimeInSeconds" not in seen[0]
    ends = [change.get("EndTime") for change in last["SecondaryStatusTransitions"]]
    starts = [change["StartTime"] for change in last["SecondaryStatusTransitions"]]
    assert ends == [*starts[1:], None]


def test_planned_refusals_and_lost_answers_happen_once(cloud: CloudEndpoint, client: Client) -> None:
    sagemaker = client("sagemaker")
    cloud.refuse("CreateTrainingJob", "ResourceLimitExceeded", "0 Instances")
    cloud.lose("CreateTrainingJob")
    assert refusal(sagemaker.create_training_job, **training_job()) == "ResourceLimitExceeded: 0 Instances"
    with pytest.raises(Exception, match=r"[Cc]onnection"):
        sagemaker.create_training_job(**training_job())
    assert set(cloud.jobs) == {"job-1"}
    assert [operation for operation, _ in cloud.calls] == ["CreateTrainingJob"] * 2
