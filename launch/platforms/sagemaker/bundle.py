"""The code bundle of a SageMaker job: the bundle that all platforms share, with the script that
AWS's container toolkit starts and the Python packages that only SageMaker needs.

It has no ``setup.py`` at its top: AWS's toolkit would take the bundle for a Python package to
install, and refuse to start torchrun for it ("Python packages are not supported for
torch_distributed").
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from launch.core import bundle
from launch.core.forecast import PLAN, plan_file
from launch.platforms.sagemaker.job import SageMakerJob

PROGRAM = "docker/sagemaker/train.py"
# for helping hosts; as the extra `ray` in pyproject.toml
RAY, RAY_DATA = "ray==2.60.0", "ray[data]==2.60.0"
KEY = "helpers.key"  # file at the top of the bundle, by which the hosts of a job trust each other


def contents(job: SageMakerJob) -> list[tuple[str, Path | bytes]]:
    """The files of the bundle, as ``launch.core.bundle.contents`` returns them."""
    return bundle.contents(job, PROGRAM, packages(job))


def build(job: SageMakerJob, target: Path) -> dict[str, Any]:
    """Write the bundle of a job. Returns the number of files, bytes, and the SHA-256.

    With helping hosts, each bundle has a new random key: only who may read the bundle can join the
    job's hosts. What is predicted for the job travels to its run folder.
    """
    from launch.platforms.sagemaker.preflight.training import predicted, read

    files = contents(job)
    if job.helping_groups:
        files.append((KEY, secrets.token_bytes(32)))
    if job.like and (plan := plan_file(job, read(job).config, predicted)):
        files.append((PLAN, plan))
    return bundle.write(files, target)


def packages(job: SageMakerJob) -> list[str]:
    """The packages that only SageMaker needs: the MLflow plugin for a job that logs to a SageMaker
    MLflow server, and Ray for a job with helping hosts.
    """
    settings = bundle.all_settings(job)
    ray = RAY_DATA if settings.get("data.helpers") == "ray-data" else RAY
    tracker = ["sagemaker-mlflow"] if str(settings.get("log.mlflow")).startswith("arn:") else []
    return [*tracker, *([ray] if job.helping_groups else [])]
