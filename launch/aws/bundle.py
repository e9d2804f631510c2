"""The bundle of a SageMaker job: the shared one with the script that AWS's toolkit starts, and the packages of its
services.

No ``setup.py`` at the top: where one lies there, AWS's toolkit takes the bundle for a Python package to install, and
refuses to start torchrun for it ("Python packages are not supported for torch_distributed").
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launch import bundle
from launch.job import Job

PROGRAM = "docker/sagemaker/train.py"


def contents(root: Path, job: Job) -> list[tuple[str, Path | bytes]]:
    """As ``launch.bundle.contents``."""
    return bundle.contents(root, job, PROGRAM, packages(root, job))


def build(root: Path, job: Job, target: Path) -> dict[str, Any]:
    """Write the bundle of a job. Returns the number of files, bytes, and the SHA-256."""
    return bundle.write(contents(root, job), target)


def packages(root: Path, job: Job) -> list[str]:
    """What reads the address of SageMaker's own MLflow servers, where the job names one."""
    tracker = str(bundle.all_settings(job, root).get("log.mlflow"))
    return ["sagemaker-mlflow"] if tracker.startswith("arn:") else []
