"""Tests that each setting of a job becomes the right field of CreateTrainingJob, and that AWS's model accepts it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from launch.aws import request as made
from launch.aws.job import SageMakerJob, load_job
from launch.aws.job_parts import Channel, Group
from launch.aws.service_model import violations
from launch.job import ROOT
from segtrain.errors import ConfigError

NOW = datetime(2026, 11, 21, 3, 56, 5, 89_000)
GROUPS = (Group("cpu", "ml.c5.4xlarge", 1), Group("gpu", "ml.g5.xlarge", 2, train=True))


def request(job: SageMakerJob, **other: Any) -> dict[str, Any]:
    return made.create_training_job(job, **{"image": "i:1", "name": "job-1", "code": "s3://b/c.tar.gz", **other})


def test_the_name_of_a_job_has_its_time() -> None:
    assert made.training_job_name(SageMakerJob(name="my-run"), NOW) == "my-run-2026-11-21-03-56-05-089"


def test_the_written_down_command_gives_a_whole_request() -> None:
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    asked = request(load_job(None, {"instances": 5, "type": "ml.p3.16xlarge"}))
    assert asked["ResourceConfig"] == {"VolumeSizeInGB": 100, "InstanceCount": 5, "InstanceType": "ml.p3.16xlarge"}
    assert asked["RoleArn"] == made.PLACEHOLDER_ROLE
    assert asked["OutputDataConfig"] == {"S3OutputPath": "s3://sagemaker-us-east-1-000000000000/segtrain"}
    assert asked["ProfilerConfig"]["ProfilingIntervalInMilliseconds"] == 500
    assert asked["StoppingCondition"] == {"MaxRuntimeInSeconds": 86400}
    for absent in ("InputDataConfig", "CheckpointConfig", "EnableManagedSpotTraining", "RetryStrategy", "VpcConfig"):
        assert absent not in asked
    assert violations(asked) == []


@pytest.mark.parametrize("path", sorted((ROOT / "configs/jobs").glob("sagemaker*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_jobs_are_accepted_by_the_service_model(path: Path) -> None:
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    assert violations(request(load_job(path, {}))) == []


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        ("single", {}),
        ("ddp", {"sagemaker_torch_distributed_enabled": True, "sagemaker_instance_type": "ml.p4d.24xlarge"}),
        (
            "smddp",
            {
                "sagemaker_distributed_dataparallel_enabled": True,
                "sagemaker_instance_type": "ml.p4d.24xlarge",
                "sagemaker_distributed_dataparallel_custom_mpi_options": "",
            },
        ),
    ],
)
def test_a_strategy_is_one_word_for_launcher_and_training(strategy: Any, keys: dict[str, Any]) -> None:
    job = SageMakerJob(
        strategy=strategy,
        type="ml.p4d.24xlarge",
        settings={"train.batch_size": 8, "model.arch": "unet", "train.compile": True},
    )
    found = {key: json.loads(value) for key, value in made.hyperparameters(job, name="n", code="s3://b/c").items()}
    assert found == {
        "config": "configs/scenes.yaml",
        "train.batch_size": 8,
        "model.arch": "unet",
        "train.compile": True,
        "parallel.strategy": strategy,
        "sagemaker_submit_directory": "s3://b/c",
        "sagemaker_program": "train.py",
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": "n",
        "sagemaker_region": "us-east-1",
        **keys,
    }


def test_a_job_of_groups_names_the_one_that_trains() -> None:
    job = SageMakerJob(
        groups=GROUPS,
        data=(Channel("train", "s3://b/p/", groups=("gpu",)), Channel("val", "s3://b/v/")),
        strategy="ddp",
    )
    asked = request(job)
    assert json.loads(asked["HyperParameters"]["sagemaker_distribution_instance_groups"]) == ["gpu"]
    assert json.loads(asked["HyperParameters"]["sagemaker_instance_type"]) == "ml.g5.xlarge"
    assert [group["InstanceGroupName"] for group in asked["ResourceConfig"]["InstanceGroups"]] == ["cpu", "gpu"]
    assert "InstanceType" not in asked["ResourceConfig"]
    sources = [channel["DataSource"]["S3DataSource"] for channel in asked["InputDataConfig"]]
    assert sources[0]["InstanceGroupNames"] == ["gpu"]
    assert "InstanceGroupNames" not in sources[1]
    assert "sagemaker_distribution_instance_groups" in request(replace(job, strategy="single"))["HyperParameters"]


def test_fields_that_are_set_arrive() -> None:
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    job = SageMakerJob(
        output="s3://b/out/",
        checkpoints="s3://b/ckpt",
        region="eu-west-1",
        spot=True,
        max_wait=100000,
        retries=3,
        warm_pool=600,
        volume_gb=225,
        subnets=("subnet-0abc1234",),
        security_groups=("sg-0abc1234",),
        tags={"team": "seg"},
        environment={"A": "b"},
        profile_ms=0,
        data=(
            Channel("train", "s3://b/p/", mode="FastFile"),
            Channel("val", file_system="fs-0123456789abcdef0", path="/m/v"),
        ),
    )
    asked = request(job)
    assert asked["OutputDataConfig"] == {"S3OutputPath": "s3://b/out"}
    assert asked["CheckpointConfig"] == {"S3Uri": "s3://b/ckpt/", "LocalPath": "/opt/ml/checkpoints"}
    assert asked["EnableManagedSpotTraining"] is True
    assert asked["StoppingCondition"] == {"MaxRuntimeInSeconds": 86400, "MaxWaitTimeInSeconds": 100000}
    assert asked["RetryStrategy"] == {"MaximumRetryAttempts": 3}
    assert asked["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 600
    assert asked["ResourceConfig"]["VolumeSizeInGB"] == 225
    assert asked["VpcConfig"] == {"Subnets": ["subnet-0abc1234"], "SecurityGroupIds": ["sg-0abc1234"]}
    assert asked["Tags"] == [{"Key": "team", "Value": "seg"}]
    assert asked["Environment"] == {"A": "b"}
    assert asked["ProfilerConfig"] == {"DisableProfiler": True}
    assert asked["InputDataConfig"][0]["InputMode"] == "FastFile"
    assert set(asked["InputDataConfig"][1]["DataSource"]) == {"FileSystemDataSource"}
    assert json.loads(asked["HyperParameters"]["sagemaker_region"]) == "eu-west-1"
    assert violations(asked) == []


def test_the_entry_script_fits_the_arguments_of_a_container() -> None:
    lines = request(SageMakerJob())["AlgorithmSpecification"]["ContainerArguments"]
    assert 5 < len(lines) <= 100
    assert all(0 < len(line) <= 256 and "\n" not in line for line in lines)
    assert not any(line.lstrip().startswith("#") for line in lines)
    # Without its comments the script is one that bash can read.
    subprocess.run(["bash", "-n"], input="\n".join(lines), text=True, check=True)


def test_the_arguments_run_as_the_script_does(tmp_path: Path) -> None:
    script = "#!/bin/bash\n# what it asks\nword='a \"b\" $HOME \\n *'\n\nif true; then\n  # why\n  printf '%s' \"$word\" > said\nfi\nexit 7\n"
    algorithm = request(SageMakerJob(), entrypoint=script)["AlgorithmSpecification"]
    command = [*algorithm["ContainerEntrypoint"], *algorithm["ContainerArguments"]]
    assert subprocess.run(command, cwd=tmp_path).returncode == 7
    assert (tmp_path / "said").read_text() == 'a "b" $HOME \\n *'


def test_an_image_may_keep_its_own_entry_point() -> None:
    assert "ContainerEntrypoint" not in request(SageMakerJob(), entrypoint="")["AlgorithmSpecification"]


def test_a_checkout_without_the_entry_script_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "ENTRYPOINT", ROOT / "docker/sagemaker/gone.sh")
    with pytest.raises(ConfigError, match=r"docker/sagemaker/gone\.sh"):
        request(SageMakerJob())
