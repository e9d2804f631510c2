"""Tests that each setting of a job becomes the right field of CreateTrainingJob, and that AWS's
model accepts it.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from checkouts import use_checkout
from conftest import refused

from launch.platforms.sagemaker import request as made
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.job_parts import Group

GROUPS = (Group("cpu", "ml.c5.4xlarge", 1), Group("gpu", "ml.g5.xlarge", 2, train=True))


def request(job: SageMakerJob, **other: Any) -> dict[str, Any]:
    return made.create_training_job(
        job, **{"image": "i:1", "name": "job-1", "code": "s3://b/c.tar.gz", **other}
    )


def test_a_job_of_groups_names_the_one_that_trains():
    """Also where the SDK, which tests/platforms/test_contracts.py compares, drops it: for one
    process.
    """
    asked = request(SageMakerJob(groups=GROUPS, strategy="single"))
    assert json.loads(asked["HyperParameters"]["sagemaker_distribution_instance_groups"]) == ["gpu"]


def test_the_arguments_run_as_the_script_does(tmp_path, monkeypatch):
    script = "#!/bin/bash\n# what it asks\nword='a \"b\" $HOME \\n *'\n\nif true; then\n  # why\n  printf '%s' \"$word\" > said\nfi\nexit 7\n"
    use_checkout(monkeypatch, tmp_path)
    (tmp_path / "docker/sagemaker").mkdir(parents=True)
    (tmp_path / "docker/sagemaker/entrypoint.sh").write_text(script)
    algorithm = request(SageMakerJob())["AlgorithmSpecification"]
    command = [*algorithm["ContainerEntrypoint"], *algorithm["ContainerArguments"]]
    assert subprocess.run(command, cwd=tmp_path).returncode == 7
    assert (tmp_path / "said").read_text() == 'a "b" $HOME \\n *'


def test_a_checkout_without_the_entry_script_is_refused(tmp_path, monkeypatch):
    use_checkout(monkeypatch, tmp_path)
    with refused("file-missing", file=str(tmp_path / "docker/sagemaker/entrypoint.sh")):
        request(SageMakerJob())
