"""Tests that a request equals that of AWS's own SDKs, except for intended differences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from launch.core.bundle import script_lines
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.job_parts import Channel, Group, Metric
from launch.platforms.sagemaker.request import (
    CONTAINER_ENTRYPOINT,
    create_training_job,
)

FILES = sorted((Path(__file__).parents[1] / "contracts").glob("*.json"))
ABSENT = "(absent)"
WITH_SMDDP = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker"
NEWEST = "public.ecr.aws/deep-learning-containers/pytorch:2.13-cu133-amzn2023-sagemaker"
OLD = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.0.1-gpu-py310"
OF_ITS_TABLE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-gpu-py312"

CITY = Channel("train", "s3://seg-data/city/")
P4D = SageMakerJob(
    config="configs/scenes.yaml",
    settings={"train.batch_size": 32, "data.flip": 0.0, "train.compile": True},
    instances=2,
    type="ml.p4d.24xlarge",
    data=(CITY,),
    output="s3://seg-out/jobs",
    role="arn:aws:iam::123456789012:role/SMRole",
    region="us-east-1",
    volume_gb=30,
    metrics=(Metric("val:miou_percent", "mIoU ([0-9.]+)%"),),
)
GROUPS = (Group("gpu", "ml.p4d.24xlarge", 2, train=True), Group("cpu", "ml.c5.4xlarge", 1))
FSX = SageMakerJob(
    config="",
    settings={"epochs": 3, "arch": "Unet", "lr": 0.001},
    strategy="smddp",
    instances=5,
    type="ml.p3.16xlarge",
    data=(Channel("train", file_system="fs-0123456789abcdef0", path="/fsx/cityscapes"),),
    output="s3://seg-out/jobs",
    checkpoints="s3://seg-out/ckpt",
    role="arn:aws:iam::123456789012:role/SMRole",
    region="us-east-1",
    spot=True,
    max_run=21600,
    max_wait=43200,
    retries=3,
    volume_gb=30,
    subnets=("subnet-0abc1234",),
    security_groups=("sg-0abc1234",),
    tags={"a": "b"},
    environment={"FOO": "bar"},
    metrics=(Metric("train:loss", "loss=([0-9.]+)"),),
)
JOBS: dict[str, tuple[SageMakerJob, str]] = {  # contract: the same settings as a job, and the image
    "estimator_v2_smddp_fsx": (FSX, OLD),
    "training_job_v3_profiler": (replace(FSX, strategy="ddp", volume_gb=100), OLD),
    "v2_ddp_s3": (
        replace(P4D, data=(CITY, Channel("val", "s3://seg-data/city-val/"))),
        OF_ITS_TABLE,
    ),
    "v2_ddp_fsx": (
        replace(
            P4D,
            data=(Channel("train", file_system="fs-0123456789abcdef0", path="/abcdmnt/city"),),
            subnets=("subnet-0abc1234",),
            security_groups=("sg-0abc1234", "sg-0abc1235"),
        ),
        NEWEST,
    ),
    "v2_smddp_s3_spot": (
        replace(
            P4D,
            strategy="smddp",
            data=(replace(CITY, distribution="ShardedByS3Key"),),
            profile_ms=1000,
            spot=True,
            max_wait=172800,
            checkpoints="s3://seg-out/ckpt/run-1",
            retries=5,
        ),
        WITH_SMDDP,
    ),
    "v2_single_no_profiler": (
        replace(
            P4D, strategy="single", instances=1, type="ml.g5.xlarge", volume_gb=225, profile_ms=0
        ),
        NEWEST,
    ),
    "v2_ddp_fastfile_warm_pool": (
        replace(P4D, data=(replace(CITY, mode="FastFile"),), warm_pool=1800, tags={"team": "seg"}),
        NEWEST,
    ),
    "v2_protected": (
        replace(
            P4D,
            type="ml.p3dn.24xlarge",
            subnets=("subnet-0abc1234",),
            security_groups=("sg-0abc1234", "sg-0abc1235"),
            volume_kms="arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab",
            output_kms="alias/mine",
            network_isolation=True,
            encrypt_traffic=True,
            remote_debug=True,
            training_plan="arn:aws:sagemaker:us-east-1:123456789012:training-plan/large-models",
        ),
        WITH_SMDDP,
    ),
    "v2_hetero_smddp": (
        replace(P4D, strategy="smddp", groups=GROUPS, data=(replace(CITY, groups=("gpu",)),)),
        WITH_SMDDP,
    ),
    "v2_hetero_ddp": (replace(P4D, groups=GROUPS, data=(replace(CITY, groups=("gpu",)),)), NEWEST),
    "v2_no_data": (replace(P4D, data=(), environment={"NCCL_DEBUG": "INFO"}), NEWEST),
}


@dataclass(frozen=True)
class Difference:
    """What the SDK sends at a place, what we send, and why. ``only``: the contracts where it is;
    empty: all.
    """

    path: str
    theirs: Any
    ours: Any
    why: str
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


V2, V3 = "estimator_v2_smddp_fsx", "training_job_v3_profiler"
LINES = script_lines("sagemaker/entrypoint.sh")
STARTS = "Process 1 of the stock images loses SIGTERM: ours hands a stop to the ranks, which save their state"
PREFIX = "Without the slash, run-1 would bring back run-10's files too"
STRATEGY = "The training is told how the ranks were started, so that a strategy is one flag and no change of code"
HETERO = "The SDK has no type for a job of groups; the toolkit chooses network settings by the type that trains"
BARE = "v3 sends texts bare; with JSON a text that looks like a number stays a text, and the toolkit reads both"
TOOLKIT = "v3 starts torchrun by scripts of its own (sm_drivers); here AWS's toolkit in the image does it, which knows groups and smddp"
V3_JOB = "segtrain-20261121035938"
DIFFERENCES = (
    Difference(
        "AlgorithmSpecification.ContainerEntrypoint",
        ABSENT,
        list(CONTAINER_ENTRYPOINT),
        STARTS,
        without=(V3,),
    ),
    Difference("AlgorithmSpecification.ContainerArguments", ABSENT, LINES, STARTS, without=(V3,)),
    Difference(
        "HyperParameters.parallel.strategy",
        ABSENT,
        '"smddp"',
        STRATEGY,
        (V2, "v2_smddp_s3_spot", "v2_hetero_smddp"),
    ),
    Difference(
        "HyperParameters.parallel.strategy",
        ABSENT,
        '"single"',
        STRATEGY,
        ("v2_single_no_profiler",),
    ),
    Difference(
        "HyperParameters.parallel.strategy",
        ABSENT,
        '"ddp"',
        STRATEGY,
        (
            V3,
            "v2_ddp_s3",
            "v2_ddp_fsx",
            "v2_ddp_fastfile_warm_pool",
            "v2_hetero_ddp",
            "v2_no_data",
            "v2_protected",
        ),
    ),
    Difference(
        "CheckpointConfig.S3Uri", "s3://seg-out/ckpt", "s3://seg-out/ckpt/", PREFIX, (V2, V3)
    ),
    Difference(
        "CheckpointConfig.S3Uri",
        "s3://seg-out/ckpt/run-1",
        "s3://seg-out/ckpt/run-1/",
        PREFIX,
        ("v2_smddp_s3_spot",),
    ),
    Difference(
        "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries",
        ABSENT,
        True,
        "The SDK switches it on only for versions of its own table of images; the curves are wanted with every image",
        without=(V2, "v2_ddp_s3"),
    ),
    Difference(
        "HyperParameters.sagemaker_distribution_instance_groups",
        ABSENT,
        '["gpu"]',
        "The SDK drops the groups of torch_distributed: each group would train a model of its own",
        ("v2_hetero_ddp",),
    ),
    Difference(
        "HyperParameters.sagemaker_instance_type",
        ABSENT,
        '"ml.p4d.24xlarge"',
        HETERO,
        ("v2_hetero_ddp",),
    ),
    Difference(
        "HyperParameters.sagemaker_instance_type",
        "null",
        '"ml.p4d.24xlarge"',
        HETERO,
        ("v2_hetero_smddp",),
    ),
    Difference(
        "DebugHookConfig",
        {"S3OutputPath": "s3://seg-out/jobs", "CollectionConfigurations": []},
        ABSENT,
        "The debugger's hook is closed to new customers since 2026-07-30 and is in no image after torch 2.0",
        ("v2_no_data",),
    ),
    Difference(
        "ProfilerConfig.ProfilingIntervalInMilliseconds",
        ABSENT,
        500,
        "Said aloud, whatever the platform's default is",
        ("v2_no_data",),
    ),
    # The third version of the SDK.
    Difference("HyperParameters.arch", "Unet", '"Unet"', BARE, (V3,)),
    Difference(
        "AlgorithmSpecification.ContainerEntrypoint",
        ["/bin/bash"],
        list(CONTAINER_ENTRYPOINT),
        TOOLKIT,
        (V3,),
    ),
    Difference(
        "AlgorithmSpecification.ContainerArguments",
        [
            "-c",
            "chmod +x /opt/ml/input/data/sm_drivers/sm_train.sh && /opt/ml/input/data/sm_drivers/sm_train.sh",
        ],
        LINES,
        TOOLKIT,
        (V3,),
    ),
    *(
        Difference(
            f"InputDataConfig[{index}]",
            {
                "ChannelName": name,
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": f"s3://seg-out/segtrain/{V3_JOB}/input/{name}",
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
                "InputMode": "File",
            },
            ABSENT,
            TOOLKIT,
            (V3,),
        )
        for index, name in ((1, "code"), (2, "sm_drivers"))
    ),
    *(
        Difference(f"HyperParameters.{key}", ABSENT, json.dumps(value), TOOLKIT, (V3,))
        for key, value in {
            "sagemaker_submit_directory": f"s3://seg-out/{V3_JOB}/source/sourcedir.tar.gz",
            "sagemaker_program": "train.py",
            "sagemaker_container_log_level": 20,
            "sagemaker_job_name": V3_JOB,
            "sagemaker_region": "us-east-1",
            "sagemaker_torch_distributed_enabled": True,
            "sagemaker_instance_type": "ml.p3.16xlarge",
        }.items()
    ),
    Difference("OutputDataConfig.CompressionType", "GZIP", ABSENT, "The platform's default", (V3,)),
    Difference(
        "ProfilerConfig.DisableProfiler",
        ABSENT,
        False,
        "v3 drops false; v2 says it, and so do we",
        (V3,),
    ),
)


def differences(theirs: Any, ours: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The highest places where two requests differ."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in {**theirs, **ours}:
            yield from differences(
                theirs.get(key, ABSENT), ours.get(key, ABSENT), f"{path}.{key}" if path else key
            )
    elif (
        isinstance(theirs, list)
        and isinstance(ours, list)
        and all(isinstance(item, dict) for item in theirs + ours)
    ):
        for index in range(max(len(theirs), len(ours))):
            pair = [side[index] if index < len(side) else ABSENT for side in (theirs, ours)]
            yield from differences(*pair, f"{path}[{index}]")
    elif theirs != ours or type(theirs) is not type(ours):
        yield path, theirs, ours


def ours_for(contract: str, theirs: dict[str, Any]) -> dict[str, Any]:
    job, image = JOBS[contract]
    name = theirs["TrainingJobName"]
    return create_training_job(
        job, image=image, name=name, code=f"s3://seg-out/{name}/source/sourcedir.tar.gz"
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_our_request_is_the_sdks_but_for_the_listed_differences(path):
    theirs = json.loads(path.read_text(encoding="utf-8"))
    found = {
        place: (their, our)
        for place, their, our in differences(theirs, ours_for(path.stem, theirs))
    }
    listed = {
        item.path: (item.theirs, item.ours)
        for item in DIFFERENCES
        if (not item.only or path.stem in item.only) and path.stem not in item.without
    }
    assert found == listed
