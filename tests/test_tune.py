"""Tests that a tuning job has the request of its training jobs with ranges, and finds invalid ranges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cloud.endpoint import CloudEndpoint
from cloud.moto import environment, moto_server
from conftest import refused

from launch import sagemaker
from launch.aws import tune, tuning_job
from launch.aws.cloud import connect
from launch.aws.job import SageMakerJob, load_job
from launch.aws.preflight.cost import cost_ceiling
from launch.aws.request import create_training_job
from launch.aws.service_model import violations
from launch.aws.tune import Range, Tuning, read
from launch.job import ROOT
from segtrain.errors import EXIT_ERROR, ConfigError
from segtrain.platforms import container
from segtrain.runs import remote

NOW = datetime(2026, 11, 22, 9, 30)
SHIPPED = ROOT / "configs/jobs/tune/camvid.yaml"
JOB = load_job(ROOT / "configs/jobs/sagemaker.yaml", {}, ["optim.lr=0.01"])


def asked(job: SageMakerJob, tuning: Tuning) -> dict[str, Any]:
    code = "s3://b/job-1/source/sourcedir.tar.gz"
    return tune.request(job, create_training_job(job, image="i:1", name="job-1", code=code), tuning, NOW)


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "tune.yaml"
    file.write_text(text)
    return file


def test_a_file_becomes_the_request_of_the_service() -> None:
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    request = asked(JOB, read(SHIPPED))
    assert violations(request, operation="CreateHyperParameterTuningJob") == []
    assert request["HyperParameterTuningJobName"] == "camvid-261122-093000"
    assert request["HyperParameterTuningJobConfig"] == {
        "Strategy": "Bayesian",
        "HyperParameterTuningJobObjective": {"Type": "Maximize", "MetricName": "val:miou_percent"},
        "ResourceLimits": {"MaxNumberOfTrainingJobs": 12, "MaxParallelTrainingJobs": 2},
        "TrainingJobEarlyStoppingType": "Auto",
        "ParameterRanges": {
            "ContinuousParameterRanges": [
                {"Name": "optim.lr", "MinValue": "0.001", "MaxValue": "0.1", "ScalingType": "Logarithmic"}
            ],
            "CategoricalParameterRanges": [{"Name": "data.flip", "Values": ["0.0", "0.5"]}],
        },
    }


def test_the_training_jobs_are_those_of_the_job_but_for_what_a_tuning_cannot_say() -> None:
    job = replace(JOB, tags={"team": "seg"}, retries=2)
    single = create_training_job(job, image="i:1", name="job-1", code="s3://b/job-1/source/sourcedir.tar.gz")
    request = asked(job, read(SHIPPED))
    definition = request["TrainingJobDefinition"]
    static = definition.pop("StaticHyperParameters")
    assert static == {key: text for key, text in single["HyperParameters"].items() if key != "optim.lr"}
    algorithm = definition.pop("AlgorithmSpecification")
    assert algorithm == {key: single["AlgorithmSpecification"][key] for key in algorithm}
    assert set(single["AlgorithmSpecification"]) - set(algorithm) == {
        "ContainerEntrypoint", "ContainerArguments", "EnableSageMakerMetricsTimeSeries"
    }  # fmt: skip
    assert definition == {key: single[key] for key in definition}
    assert set(single) - set(definition) == {
        "AlgorithmSpecification", "TrainingJobName", "HyperParameters", "ProfilerConfig", "Tags"
    }  # fmt: skip
    assert request["Tags"] == single["Tags"]


def test_kinds_of_ranges_and_strategies(tmp_path: Path) -> None:
    text = (
        "{strategy: hyperband, jobs: 9, parallel: 3, seed: 7, max_run: 2d, resource: {min: 1, max: 9},"
        " objective: {metric: train:loss}, ranges: {optim: {lr: {min: 1, max: 3.5}}, train.batch_size: {min: 8, max: 32, scale: log},"
        " model.arch: [pico, unet]}}"
    )
    tuning = read(written(tmp_path, text))
    assert tuning.ranges == (
        Range("optim.lr", 1, 3.5),
        Range("train.batch_size", 8, 32, "log"),
        Range("model.arch", choices=("pico", "unet")),
    )
    config = asked(JOB, tuning)["HyperParameterTuningJobConfig"]
    assert config["HyperParameterTuningJobObjective"] == {"Type": "Minimize", "MetricName": "train:loss"}
    assert config["StrategyConfig"] == {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": 9}}
    assert config["ResourceLimits"]["MaxRuntimeInSeconds"] == 172800
    assert config["RandomSeed"] == 7
    ranges = config["ParameterRanges"]
    assert [one["Name"] for one in ranges["ContinuousParameterRanges"]] == ["optim.lr"]
    assert ranges["IntegerParameterRanges"][0]["MaxValue"] == "32"
    # As JSON, which is how the container reads every hyperparameter: a text keeps its quotes.
    assert ranges["CategoricalParameterRanges"][0]["Values"] == ['"pico"', '"unet"']
    grid = read(
        written(tmp_path, "{strategy: grid, parallel: 2, ranges: {data.flip: [0.0, 0.5], optim.lr: [1, 2, 3]}}")
    )
    assert grid.jobs == 6
    assert asked(JOB, grid)["HyperParameterTuningJobConfig"]["ResourceLimits"] == {"MaxParallelTrainingJobs": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{jobs: 3}", ("ranges", "name the settings that vary")),
        ("{strategy: bayes, jobs: 3, ranges: {a.b: [1]}}", ("strategy='bayes'", "bayesian")),
        ("{rnges: {}}", ("rnges", "'ranges'")),
        ("{jobs: 3, ranges: {optim.lr: {min: 1, max: 1}}}", ("optim.lr: min=1 is not less than max=1",)),
        ("{jobs: 3, ranges: {optim.lr: {min: 0, max: 1, scale: log}}}", ("scale=log", "above 0")),
        ("{jobs: 3, ranges: {optim.lr: {min: 0.5, max: 1, scale: reverse_log}}}", ("reverse_log",)),
        ("{jobs: 3, ranges: {optim.lr: {min: 0.5}}}", ("optim.lr.max is missing",)),
        ("{ranges: {optim.lr: [1, 2]}}", ("jobs=0", "jobs: 20")),
        ("{jobs: 2, parallel: 4, ranges: {optim.lr: [1, 2]}}", ("parallel=4",)),
        ("{strategy: grid, ranges: {optim.lr: {min: 1, max: 2}}}", ("grid takes lists", "optim.lr")),
        ("{strategy: grid, jobs: 3, ranges: {optim.lr: [1, 2]}}", ("the grid has 2 combinations",)),
        ("{strategy: hyperband, jobs: 3, early_stopping: true, ranges: {optim.lr: [1]}}", ("early_stopping", "hyperband")),
        ("{jobs: 3, resource: {min: 1, max: 2}, ranges: {optim.lr: [1]}}", ("resource is for strategy: hyperband",)),
        ("{jobs: 3, objective: {metric: a, goal: up}, ranges: {optim.lr: [1]}}", ("goal='up'", "maximize")),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_named(text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(written(tmp_path, text))
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize(
    ("tuning", "code", "words"),
    [
        (Tuning((Range("optim.lr", 0.1, 1.0),), metric="val:miou", jobs=2), "tuning-metric", "val:miou_percent"),
        (Tuning((Range("optim.lrr", 0.1, 1.0),), jobs=2), "tuning-range", "'optim.lr'"),
        (Tuning((Range("data.flip", 0.5, 2.0),), jobs=2), "tuning-range", "value 2.0"),
        (Tuning((Range("train.precision", choices=("fp32", "fp9")),), jobs=2), "tuning-range", "value fp9"),
        (Tuning((Range("parallel.strategy", choices=("ddp", "fsdp")),), jobs=2), "tuning-range", "cannot vary"),
        (Tuning((Range("optim.lr", 0.1, 1.0),), jobs=2, max_run=60), "tuning-model", "MaxRuntimeInSeconds=60"),
    ],
)
def test_what_the_training_would_refuse_is_found_before_it_is_paid(tuning: Tuning, code: str, words: str) -> None:
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    found = [one for one in tune.findings(JOB, asked(JOB, tuning), tuning, ROOT) if one.level == "error"]
    assert {one.code for one in found} == {code}, found
    assert words in f"{found[0].message} {found[0].cure}"


def test_a_member_that_no_training_job_of_a_tuning_has_is_refused() -> None:
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    job = replace(JOB, request={"InfraCheckConfig": {"EnableInfraCheck": True}})
    tuning = read(SHIPPED)
    found = [one.message for one in tune.findings(job, asked(job, tuning), tuning, ROOT) if one.level == "error"]
    assert len(found) == 1
    assert found[0].startswith("TrainingJobDefinition.InfraCheckConfig: unknown")


def test_all_jobs_are_in_the_most_that_it_can_cost() -> None:
    dollars, _ = cost_ceiling(JOB)
    assert dollars is not None
    assert tune.cost(JOB, read(SHIPPED)).startswith(f"at most ${12 * dollars:,.2f}: 12 jobs")


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudEndpoint]:
    pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'segtrain[sagemaker]'")
    with CloudEndpoint(per_describe=0) as endpoint:
        for key, value in environment(endpoint.url, moto_server()).items():
            monkeypatch.setenv(key, value)
        yield endpoint


def test_a_dry_run_prints_the_tuning_job(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--job", str(ROOT / "configs/jobs/sagemaker.yaml"), "--tune", str(SHIPPED)]
    assert sagemaker.main([*words, "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert set(json.loads(printed.out)) == {
        "HyperParameterTuningJobName", "HyperParameterTuningJobConfig", "TrainingJobDefinition"
    }  # fmt: skip
    assert "12 jobs, each at most" in printed.err
    assert sagemaker.main([*words, "--rehearse"]) == EXIT_ERROR
    assert "leave --tune out" in capsys.readouterr().err


BEST = {
    "TrainingJobName": "camvid-261122-093000-007-abc",
    "TunedHyperParameters": {"optim.lr": "0.02", "model.arch": '"unet"'},
    "FinalHyperParameterTuningJobObjectiveMetric": {"MetricName": "val:miou_percent", "Value": 61.5},
}


def test_it_is_sent_and_watched_until_its_best_job_is_known(
    cloud: CloudEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.tuning_answers = [
        {"HyperParameterTuningJobStatus": "InProgress", "TrainingJobStatusCounters": {"InProgress": 2}},
        {
            "HyperParameterTuningJobStatus": "Completed",
            "TrainingJobStatusCounters": {"Completed": 11, "NonRetryableError": 1},
            "BestTrainingJob": BEST,
        },
    ]
    clients, said = connect("us-east-1"), []
    request = asked(JOB, read(SHIPPED))
    tuning_job.submit(clients, request)
    assert cloud.tunings == {request["HyperParameterTuningJobName"]: request}
    code = tuning_job.follow(
        clients, request["HyperParameterTuningJobName"], say=said.append, sleep=lambda seconds: cloud.tick(seconds)
    )
    assert code == 0
    assert said[0] == "-- InProgress  InProgress 2"
    assert "Completed 11  NonRetryableError 1" in said[1]
    text = "\n".join(said)
    assert "val:miou_percent 61.5 (model.arch=unet optim.lr=0.02)" in text
    assert "--attach camvid-261122-093000-007-abc --region us-east-1" in text


def test_a_tuning_job_whose_answer_is_lost_may_run(cloud: CloudEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # boto3's pauses between its attempts
    request = asked(JOB, read(SHIPPED))
    name = request["HyperParameterTuningJobName"]
    cloud.refuse("CreateHyperParameterTuningJob", "InternalFailure", times=5, status=500)
    with refused("job-maybe-sent", name=name) as caught:
        tuning_job.submit(connect("us-east-1"), request)
    assert f"--hyper-parameter-tuning-job-name {name}" in str(caught.value)


def test_a_tuning_without_any_score_is_no_success(cloud: CloudEndpoint) -> None:
    cloud.tuning_answers = [{"HyperParameterTuningJobStatus": "Failed", "FailureReason": "All training jobs failed"}]
    request = asked(JOB, read(SHIPPED))
    clients, said = connect("us-east-1"), []
    tuning_job.submit(clients, request)
    assert tuning_job.follow(clients, request["HyperParameterTuningJobName"], say=said.append, sleep=cloud.tick) == 1
    assert "All training jobs failed" in "\n".join(said)


def test_jobs_of_a_tuning_do_not_share_a_run(tmp_path: Path) -> None:
    """They have one checkpoint prefix: without folders of their own, each would go on from another's checkpoint."""
    settings = tmp_path / "input/config"
    settings.mkdir(parents=True)
    (tmp_path / "checkpoints").mkdir()
    (settings / "hyperparameters.json").write_text(json.dumps({"optim.lr": "0.01"}))
    assert container.run_folder(tmp_path, {"TRAINING_JOB_NAME": "t-1"}) == tmp_path / "checkpoints"
    (settings / "hyperparameters.json").write_text(json.dumps({"_tuning_objective_metric": "val:miou_percent"}))
    assert container.run_folder(tmp_path, {"TRAINING_JOB_NAME": "t-1"}) == tmp_path / "checkpoints/t-1"
    job = {"TrainingJobName": "t-1", "CheckpointConfig": {"S3Uri": "s3://b/c/"}, "TuningJobArn": "arn:aws:x"}
    assert remote._uris_of(job) == ["s3://b/c/t-1"]
