"""Tests that each setting of a job becomes the right field of CreateTrainingJob, and that AWS's
model accepts it.
"""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from checkouts import use_checkout
from conftest import refused

from launch.core.job import ROOT
from launch.platforms.sagemaker import request as made
from launch.platforms.sagemaker.job import SageMakerJob, load_job
from launch.platforms.sagemaker.job_parts import Group
from launch.platforms.sagemaker.service_model import violations

NOW = datetime(2026, 11, 21, 3, 56, 5, 89_000)
GROUPS = (Group("cpu", "ml.c5.4xlarge", 1), Group("gpu", "ml.g5.xlarge", 2, train=True))


def request(job: SageMakerJob, **other: Any) -> dict[str, Any]:
    return made.create_training_job(
        job, **{"image": "i:1", "name": "job-1", "code": "s3://b/c.tar.gz", **other}
    )


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs/jobs").glob("sagemaker*.yaml")), ids=lambda path: path.stem
)
def test_the_shipped_jobs_are_accepted_by_the_service_model(path: Path) -> None:
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    assert violations(request(load_job(path, {}))) == []


def test_a_job_of_groups_names_the_one_that_trains() -> None:
    """Also where the SDK, which tests/platforms/test_contracts.py compares, drops it: for one
    process.
    """
    asked = request(SageMakerJob(groups=GROUPS, strategy="single"))
    assert json.loads(asked["HyperParameters"]["sagemaker_distribution_instance_groups"]) == ["gpu"]


def test_the_entry_script_fits_the_arguments_of_a_container() -> None:
    lines = request(SageMakerJob())["AlgorithmSpecification"]["ContainerArguments"]
    assert 5 < len(lines) <= 100
    assert all(0 < len(line) <= 256 and "\n" not in line for line in lines)
    assert not any(line.lstrip().startswith("#") for line in lines)
    # Without its comments the script is one that bash can read.
    subprocess.run(["bash", "-n"], input="\n".join(lines), text=True, check=True)


def test_the_arguments_run_as_the_script_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "#!/bin/bash\n# what it asks\nword='a \"b\" $HOME \\n *'\n\nif true; then\n  # why\n  printf '%s' \"$word\" > said\nfi\nexit 7\n"
    use_checkout(monkeypatch, tmp_path)
    (tmp_path / "docker/sagemaker").mkdir(parents=True)
    (tmp_path / "docker/sagemaker/entrypoint.sh").write_text(script)
    algorithm = request(SageMakerJob())["AlgorithmSpecification"]
    command = [*algorithm["ContainerEntrypoint"], *algorithm["ContainerArguments"]]
    assert subprocess.run(command, cwd=tmp_path).returncode == 7
    assert (tmp_path / "said").read_text() == 'a "b" $HOME \\n *'


def test_a_checkout_without_the_entry_script_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_checkout(monkeypatch, tmp_path)
    with refused("file-missing", file=str(tmp_path / "docker/sagemaker/entrypoint.sh")):
        request(SageMakerJob())
