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
from launch.core.forecast import PLAN
from launch.core.job import Job
from launch.platforms.sagemaker.job import SageMakerJob

PROGRAM = "docker/sagemaker/train.py"
# for helping hosts; as the extra `ray` in pyproject.toml
RAY, RAY_DATA = "ray==2.60.0", "ray[data]==2.60.0"
KEY = "helpers.key"  # file at the top of the bundle, by which the hosts of a job trust each other


def contents(root: Path, job: Job) -> list[tuple[str, Path | bytes]]:
    """The files of the bundle, as ``launch.core.bundle.contents`` returns them."""
    return bundle.contents(root, job, PROGRAM, packages(root, job))


def build(root: Path, job: Job, target: Path) -> dict[str, Any]:
    """Write the bundle of a job. Returns the number of files, bytes, and the SHA-256.

    With helping hosts, each bundle has a new random key: only who may read the bundle can join the
    job's hosts. What is predicted for the job travels to its run folder.
    """
    from launch.platforms.sagemaker.preflight.training import plan_file

    more: list[tuple[str, Path | bytes]] = [(KEY, secrets.token_bytes(32))] if _helped(job) else []
    if isinstance(job, SageMakerJob) and (plan := plan_file(job, root)):
        more.append((PLAN, plan))
    return bundle.write(sorted([*contents(root, job), *more], key=lambda item: item[0]), target)


def packages(root: Path, job: Job) -> list[str]:
    """The packages that only SageMaker needs: the MLflow plugin for a job that logs to a SageMaker
    MLflow server, and Ray for a job with helping hosts.
    """
    settings = bundle.all_settings(job, root)
    ray = RAY_DATA if settings.get("data.helpers") == "ray-data" else RAY
    tracker = ["sagemaker-mlflow"] if str(settings.get("log.mlflow")).startswith("arn:") else []
    return [*tracker, *([ray] if _helped(job) else [])]


def _helped(job: Job) -> bool:
    return isinstance(job, SageMakerJob) and bool(job.helping_groups)
