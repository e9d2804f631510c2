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
        "ResourceConfig": {
            "InstanceType": "ml.g5.12xlarge",
            "InstanceCount": hosts,
            "VolumeSizeInGB": 100,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    }
    return {**request, **changes}


SPOT = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200},
    "CheckpointConfig": {"S3Uri": "s3://results/checkpoints/", "LocalPath": "/opt/ml/checkpoints"},
}
