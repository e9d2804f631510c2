"""Tests of the stand-in for SageMaker: it is as strict as the service, stores requests, and plays a job's life."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'segtrain[sagemaker]'")

from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402
from cloud.endpoint import CloudEndpoint, Refused  # noqa: E402
from cloud.life import Act, play  # noqa: E402
from cloud.samples import SPOT, VPC, fsx_channel, s3_channel, training_job  # noqa: E402

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
    "name": ({"TrainingJobName": "bad_name!!"}, "TrainingJobName"),
    "role missing": ({"RoleArn": None}, "RoleArn"),
    "type": ({"ResourceConfig": resources(InstanceType="ml.nonsense.1xlarge")}, "ml.nonsense.1xlarge"),
    "hyperparameter too long": ({"HyperParameters": {"a": "x" * 2501}}, "2501"),
    "hyperparameter not text": ({"HyperParameters": {"a": 1}}, "HyperParameters"),
    "retries": ({"RetryStrategy": {"MaximumRetryAttempts": 31}}, "31"),
    "profiler interval": (
        {"ProfilerConfig": {"S3OutputPath": "s3://a/b", "ProfilingIntervalInMilliseconds": 300}},
        "300",
    ),
    "spot without wait": ({"EnableManagedSpotTraining": True}, "MaxWaitTimeInSeconds"),
    "wait without spot": ({"StoppingCondition": SPOT["StoppingCondition"]}, "spot"),
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
    "fsx as FastFile": ({"InputDataConfig": [fsx_channel(InputMode="FastFile")], "VpcConfig": VPC}, "InputMode File"),
    "channel twice": ({"InputDataConfig": [s3_channel(), s3_channel()]}, "twice"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests_are_refused_and_not_kept(cloud: CloudEndpoint, client: Client, case: str) -> None:
    changes, named = WRONG[case]
    request = {key: value for key, value in training_job(**changes).items() if value is not None}
    words = refusal(client("sagemaker").create_training_job, **request)
    assert words.startswith("ValidationException")
    assert named in words
    assert not cloud.jobs


def test_a_field_that_does_not_exist_is_refused(cloud: CloudEndpoint) -> None:
    body = json.dumps(training_job(Profiler={})).encode()  # boto3 itself would not send it
    with pytest.raises(Refused, match="Profiler"):
        cloud.answer("SageMaker.CreateTrainingJob", ("us-east-1", "sagemaker"), body)


def test_sound_requests_are_taken_and_every_field_is_kept(cloud: CloudEndpoint, client: Client) -> None:
    whole = training_job(
        "whole",
        hosts=5,
        **SPOT,
        VpcConfig=VPC,
        InputDataConfig=[fsx_channel()],
        ProfilerConfig={"S3OutputPath": "s3://a/b", "DisableProfiler": False, "ProfilingIntervalInMilliseconds": 500},
        Environment={"A": "b"},
        RetryStrategy={"MaximumRetryAttempts": 3},
        HyperParameters={"train.lr": "0.1"},
    )
    sagemaker = client("sagemaker")
    arn = sagemaker.create_training_job(**whole, Tags=[{"Key": "team", "Value": "x"}])["TrainingJobArn"]
    assert arn == "arn:aws:sagemaker:us-east-1:123456789012:training-job/whole"
    told = sagemaker.describe_training_job(TrainingJobName="whole")
    assert {key: told[key] for key in whole} == whole
    assert cloud.jobs["whole"].tags == [{"Key": "team", "Value": "x"}]
    sagemaker.create_training_job(
        **training_job(
            "groups",
            ResourceConfig={"VolumeSizeInGB": 30, "InstanceGroups": GROUPS},
            InputDataConfig=[s3_channel("train", ("gpu",)), s3_channel("val", ("gpu", "cpu"))],
        )
    )
    assert set(cloud.jobs) == {"whole", "groups"}


def test_a_name_is_taken_once(cloud: CloudEndpoint, client: Client) -> None:
    sagemaker = client("sagemaker")
    sagemaker.create_training_job(**training_job())
    assert refusal(sagemaker.create_training_job, **training_job()).startswith("ResourceInUse")
    assert "not found" in refusal(sagemaker.describe_training_job, TrainingJobName="job-2")


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


def test_a_stop_ends_a_job_that_runs_and_no_other(cloud: CloudEndpoint, client: Client) -> None:
    sagemaker = client("sagemaker")
    sagemaker.create_training_job(**training_job())
    sagemaker.describe_training_job(TrainingJobName="job-1")
    sagemaker.stop_training_job(TrainingJobName="job-1")
    seen = [sagemaker.describe_training_job(TrainingJobName="job-1") for _ in range(3)]
    assert [(told["TrainingJobStatus"], told["SecondaryStatus"]) for told in seen] == [
        *(("Stopping", "Stopping"), ("Stopping", "Uploading"), ("Stopped", "Stopped"))
    ]
    assert "status Stopped" in refusal(sagemaker.stop_training_job, TrainingJobName="job-1")


def test_logs_are_read_on_from_a_token_and_open_anew_after_an_interruption(
    cloud: CloudEndpoint, client: Client
) -> None:
    first = [("algo-1", "one"), ("algo-2", "two"), ("algo-1", "three")]
    cloud.plays[""] = play(
        "Starting",
        Act("Training", lines=first),
        "Interrupted",
        Act("Training", lines=[("algo-2", "again")]),
        "Completed",
    )
    sagemaker, logs = client("sagemaker"), client("logs")
    streams = {"logGroupName": GROUP, "logStreamNamePrefix": "job-1/"}
    sagemaker.create_training_job(**training_job(hosts=2))
    assert refusal(logs.describe_log_streams, **streams).startswith("ResourceNotFoundException")
    cloud.tick(119)
    names = [stream["logStreamName"] for stream in logs.describe_log_streams(**streams)["logStreams"]]
    assert names == [f"job-1/algo-{host}-1800000060" for host in (1, 2)]

    place = {"logGroupName": GROUP, "logStreamName": names[0], "startFromHead": True}
    page = logs.get_log_events(**place, limit=1)
    rest = logs.get_log_events(**place, nextToken=page["nextForwardToken"])
    end = logs.get_log_events(**place, nextToken=rest["nextForwardToken"])
    assert [event["message"] for got in (page, rest, end) for event in got["events"]] == ["one", "three"]
    assert end["nextForwardToken"] == rest["nextForwardToken"]
    cloud.tick(200)
    assert len(logs.describe_log_streams(**streams)["logStreams"]) == 4


def test_lists_come_in_pages(cloud: CloudEndpoint, client: Client) -> None:
    cloud.quotas = [{"ServiceCode": "sagemaker", "QuotaName": f"quota {n}", "Value": float(n)} for n in range(205)]
    pages = list(client("service-quotas").get_paginator("list_service_quotas").paginate(ServiceCode="sagemaker"))
    assert [len(page["Quotas"]) for page in pages] == [100, 100, 5]
    sagemaker = client("sagemaker")
    for number in range(12):
        cloud.tick(1)
        sagemaker.create_training_job(**training_job(f"{'ab'[number % 2]}-{number}"))
    found = [
        job for page in sagemaker.get_paginator("list_training_jobs").paginate() for job in page["TrainingJobSummaries"]
    ]
    assert [job["TrainingJobName"] for job in found][:2] == ["b-11", "a-10"]
    assert len(found) == 12
    assert len(sagemaker.list_training_jobs(NameContains="a-")["TrainingJobSummaries"]) == 6


def test_file_systems_are_those_that_were_set(cloud: CloudEndpoint, client: Client) -> None:
    cloud.file_systems = [{"FileSystemId": "fs-0123456789abcdef0", "LustreConfiguration": {"MountName": "fsx"}}]
    fsx = client("fsx")
    (told,) = fsx.describe_file_systems(FileSystemIds=["fs-0123456789abcdef0"])["FileSystems"]
    assert told["LustreConfiguration"]["MountName"] == "fsx"
    assert refusal(fsx.describe_file_systems, FileSystemIds=["fs-00000000000000000"]).startswith("FileSystemNotFound")


def test_an_update_is_kept(cloud: CloudEndpoint, client: Client) -> None:
    sagemaker = client("sagemaker")
    sagemaker.create_training_job(**training_job())
    sagemaker.update_training_job(TrainingJobName="job-1", ResourceConfig={"KeepAlivePeriodInSeconds": 600})
    kept = sagemaker.describe_training_job(TrainingJobName="job-1")["ResourceConfig"]
    assert kept == {**training_job()["ResourceConfig"], "KeepAlivePeriodInSeconds": 600}


def test_planned_refusals_and_lost_answers_happen_once(cloud: CloudEndpoint, client: Client) -> None:
    sagemaker = client("sagemaker")
    cloud.refuse("CreateTrainingJob", "ResourceLimitExceeded", "0 Instances")
    cloud.lose("CreateTrainingJob")
    assert refusal(sagemaker.create_training_job, **training_job()) == "ResourceLimitExceeded: 0 Instances"
    with pytest.raises(Exception, match=r"[Cc]onnection"):
        sagemaker.create_training_job(**training_job())
    assert set(cloud.jobs) == {"job-1"}
    assert [operation for operation, _ in cloud.calls] == ["CreateTrainingJob"] * 2


@pytest.mark.parametrize("target", ["SageMaker.ListTrainingJobs", "SageMaker.CreateEndpoint", "Nothing.At.All"])
def test_what_is_not_signed_or_not_known_is_refused(cloud: CloudEndpoint, target: str) -> None:
    request = urllib.request.Request(cloud.url, data=b"{}", headers={"X-Amz-Target": target})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    with caught.value as answer:
        assert answer.code in (400, 403)
