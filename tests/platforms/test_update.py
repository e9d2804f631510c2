"""Tests that SageMaker's profiler can be switched on a running job, and that other changes are
refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cloud.endpoint import CloudEndpoint
from cloud.life import Act, play
from cloud.moto import environment
from cloud.samples import training_job

from launch import sagemaker
from launch.platforms.sagemaker.cloud import AwsClients, connect, submit
from launch.platforms.sagemaker.job import SageMakerJob
from segtrain.errors import EXIT_ERROR

RUNS = play("Starting", Act("Training", 3600), "Completed")
ON = {
    "S3OutputPath": "s3://results/segtrain",
    "DisableProfiler": False,
    "ProfilingIntervalInMilliseconds": 500,
}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudEndpoint]:
    pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'segtrain[sagemaker]'")
    with CloudEndpoint(plays={"": RUNS}, per_describe=0) as endpoint:
        for key, value in environment(endpoint.url).items():
            monkeypatch.setenv(key, value)
        yield endpoint


@pytest.fixture
def clients(cloud: CloudEndpoint) -> AwsClients:
    return connect("us-east-1")


def profiler(clients: AwsClients) -> Any:
    return clients.sagemaker.describe_training_job(TrainingJobName="job-1").get("ProfilerConfig")


def test_the_profiler_of_a_running_job(cloud, clients, capsys):
    submit(clients, training_job(ProfilerConfig=ON))
    cloud.tick(120)  # it trains
    assert sagemaker.main(["--update", "job-1", "--profile-ms", "0"]) == 0
    assert profiler(clients)["DisableProfiler"] is True
    assert "profiler off" in capsys.readouterr().out
    assert sagemaker.main(["--update", "job-1", "--profile-ms", "100"]) == 0
    assert profiler(clients) == {**ON, "ProfilingIntervalInMilliseconds": 100}
    assert "every 100 ms" in capsys.readouterr().out
    assert [operation for operation, _ in cloud.calls].count("UpdateTrainingJob") == 2
    assert "CreateTrainingJob" not in [operation for operation, _ in cloud.calls[1:]]


def test_a_job_that_was_sent_without_a_profiler_gets_one(cloud, clients, capsys):
    submit(clients, training_job(ProfilerConfig={"DisableProfiler": True}))
    cloud.tick(120)
    assert sagemaker.main(["--update", "job-1", "--profile-ms", "1000", "--remote-debug"]) == 0
    assert profiler(clients) == {**ON, "ProfilingIntervalInMilliseconds": 1000}
    assert cloud.jobs["job-1"].request["RemoteDebugConfig"] == {"EnableRemoteDebug": True}
    said = capsys.readouterr().out
    assert "s3://results/segtrain/job-1/profiler-output/" in said  # where the files will be
    assert "aws ssm start-session --target sagemaker-training-job:job-1_algo-1" in said


def test_the_warm_pool_of_an_ended_job_is_let_go(cloud, clients):
    request = training_job()
    request["ResourceConfig"]["KeepAlivePeriodInSeconds"] = 1800
    submit(clients, request)
    cloud.tick(7200)
    assert sagemaker.main(["--update", "job-1", "--warm-pool", "0"]) == 0
    assert cloud.jobs["job-1"].request["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--profile-ms", "300"], "--profile-ms 300: the profiler knows 100, 200, 500"),
        (["--profile-ms", "900"], "--profile-ms 1000, or 0"),
        (["--profile-ms", "0", "--type", "ml.g5.xlarge"], "--type is for a new job"),
        (["--warm-pool", "2h"], "the most is 3600"),
    ],
)
def test_what_cannot_be_changed_is_refused_before_a_call(words, told, cloud, capsys):
    assert sagemaker.main(["--update", "job-1", *words]) == EXIT_ERROR
    assert told in capsys.readouterr().err
    assert not cloud.calls


def test_an_ended_and_an_unknown_job_are_said(cloud, clients, capsys):
    submit(clients, training_job())
    cloud.tick(7200)
    assert sagemaker.main(["--update", "job-1", "--profile-ms", "500"]) == EXIT_ERROR
    assert "job-1 is Completed" in capsys.readouterr().err
    assert sagemaker.main(["--update", "job-2", "--profile-ms", "500"]) == EXIT_ERROR
    assert "job-2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--stop", "job-1", "--dry-run"], "--dry-run"),
        (["--update", "job-1", "--profile-ms", "0", "train.lr=1"], "train.lr=1"),
    ],
)
def test_flags_of_a_new_job_are_refused_for_one_that_was_sent(words, told, cloud, capsys):
    assert sagemaker.main(words) == EXIT_ERROR
    assert told in capsys.readouterr().err
    assert not cloud.calls


def test_ctrl_c_during_the_submission_names_the_job_that_may_run(monkeypatch, capsys):
    def interrupt(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("launch.sagemaker.submit", interrupt)
    job = SageMakerJob(region="us-east-1")
    assert sagemaker._start(None, job, {"TrainingJobName": "job-1"}, no_follow=True) == 130
    assert "job-1 may have been sent" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--stop", "job-1"], ["--update", "job-1", "--profile-ms", "0"]])
def test_ctrl_c_during_a_call_for_a_sent_job(words, cloud, monkeypatch, capsys):
    def interrupt(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("launch.platforms.sagemaker.follow.stop", interrupt)
    monkeypatch.setattr("launch.sagemaker.update", interrupt)
    assert sagemaker.main(words) == 130
    assert f"give {words[0]} once more" in capsys.readouterr().err
