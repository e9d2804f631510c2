"""Sample requests for tests of the cloud."""

from __future__ import annotations

from typing import Any


def training_job(name: str = "job-1", hosts: int = 1, **changes: Any) -> dict[str, Any]:
    """A small valid CreateTrainingJob request; ``changes`` replace or add top-level fields."""
    request: dict[str, Any] = {
        "TrainingJobName": name,
        "AlgorithmSpecification": {
            "TrainingImage": "123.dkr.ecr.us-east-1.amazonaws.com/a:b",
            "TrainingInputMode": "File",
        },
        "RoleArn": "arn:aws:iam::123456789012:role/Trainer",
        "OutputDataConfig": {"S3OutputPath": "s3://results/segtrain"},
        "ResourceConfig": {"InstanceType": "ml.g5.12xlarge", "InstanceCount": hosts, "VolumeSizeInGB": 100},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    }
    return {**request, **changes}


def s3_channel(name: str = "train", groups: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    source: dict[str, Any] = {"S3DataType": "S3Prefix", "S3Uri": f"s3://data/{name}/"}
    if groups:
        source["InstanceGroupNames"] = list(groups)
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}, **changes}


def fsx_channel(name: str = "train", **changes: Any) -> dict[str, Any]:
    source = {
        "FileSystemId": "fs-0123456789abcdef0",
        "FileSystemType": "FSxLustre",
        "DirectoryPath": "/fsx/cityscapes",
        "FileSystemAccessMode": "ro",
    }
    return {"ChannelName": name, "DataSource": {"FileSystemDataSource": source}, **changes}


VPC = {"Subnets": ["subnet-0abc1234"], "SecurityGroupIds": ["sg-0abc1234"]}
SPOT = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200},
    "CheckpointConfig": {"S3Uri": "s3://results/checkpoints/", "LocalPath": "/opt/ml/checkpoints"},
}
