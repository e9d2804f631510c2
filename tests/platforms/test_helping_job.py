"""Tests of SageMaker jobs with helping groups: what is asked of AWS, what travels, and what is
found wrong before.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from records import TERMS, a_run

from launch.core.findings import Finding
from launch.platforms.sagemaker import bundle
from launch.platforms.sagemaker.images import choose
from launch.platforms.sagemaker.job import SageMakerJob, load_job
from launch.platforms.sagemaker.job_parts import Channel, Group
from launch.platforms.sagemaker.preflight.cost import helpers
from launch.platforms.sagemaker.preflight.offline import offline
from launch.platforms.sagemaker.request import create_training_job
from launch.platforms.sagemaker.service_model import violations
from segtrain.errors import ConfigError
from segtrain.insight.plan.helping import HelperRates, need
from segtrain.insight.plan.terms import Terms
from segtrain.machines import machines
from segtrain.platforms.sagemaker import helping as sagemaker_helping

GPU, CPU = Group("gpu", "ml.g5.xlarge", train=True), Group("cpu", "ml.c5.4xlarge", 2, help=True)
HELPED = SageMakerJob(groups=(GPU, CPU), settings={"data.helpers": "ray"})


def request(job: SageMakerJob) -> dict[str, Any]:
    return create_training_job(job, image="i:1", name="job-1", code="s3://b/c.tar.gz")


def codes(job: SageMakerJob) -> list[str]:
    return sorted(finding.code for finding in helpers(job))


def test_groups_are_marked_on_the_command_line_and_in_a_file():
    groups = ["gpu=ml.g5.xlarge*1:train", "cpu=ml.c5.4xlarge*2:help"]
    job = load_job(None, {"groups": groups, "helpers_join": "90s", "helpers_required": True})
    assert job.groups == (GPU, CPU)
    assert (job.helping_groups, job.training_groups, job.training_hosts) == ((CPU,), (GPU,), 1)
    assert (job.helpers_join, job.helpers_required) == (90, True)
    described = {
        "groups": {
            "gpu": "ml.g5.xlarge",
            "cpu": {"type": "ml.c5.4xlarge", "instances": 2, "help": True},
        }
    }
    assert load_job(described, {}).training_groups == (replace(GPU, train=False),)
    with pytest.raises(ConfigError, match="serve"):
        load_job(None, {"groups": ["cpu=ml.c5.4xlarge:serve"]})


def test_only_hyperparameters_of_segtrain_differ_from_a_job_that_leaves_the_group_idle():
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    asked = request(replace(HELPED, helpers_join=90))
    assert violations(asked) == []
    plain = request(replace(HELPED, groups=(GPU, replace(CPU, help=False))))
    own = {
        key: asked["HyperParameters"].pop(key)
        for key in list(asked["HyperParameters"])
        if key.startswith("helpers.")
    }
    assert {key: json.loads(value) for key, value in own.items()} == {
        "helpers.groups": ["cpu"],
        "helpers.join_s": 90,
        "helpers.required": False,
    }
    assert asked == plain
    assert plain["HyperParameters"]["sagemaker_distribution_instance_groups"] == '["gpu"]'


def packed(job: SageMakerJob, target: Path) -> dict[str, bytes]:
    bundle.build(job, target)
    with tarfile.open(target) as tar:
        names = ("helpers.key", "requirements.txt")
        return {name: tar.extractfile(name).read() for name in names if name in tar.getnames()}  # type: ignore[union-attr]


def test_a_bundle_brings_ray_and_a_key_of_its_own(tmp_path):
    assert bundle.KEY == sagemaker_helping.KEY
    first, second = (packed(HELPED, tmp_path / name) for name in ("a", "b"))
    assert len(first["helpers.key"]) == 32
    assert first["helpers.key"] != second["helpers.key"]
    assert bundle.RAY in first["requirements.txt"].decode().splitlines()
    alone = packed(SageMakerJob(), tmp_path / "c")
    assert "helpers.key" not in alone
    assert b"ray" not in alone["requirements.txt"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["helpers-need"]),
        ({"settings": {}}, ["helpers-need", "helpers-unused"]),
        ({"groups": (GPU, replace(CPU, help=False))}, ["group-idle", "helpers-missing"]),
        ({"groups": ()}, ["helpers-missing"]),
        ({"groups": (), "settings": {}}, []),
        (
            {"groups": (replace(GPU, help=True), CPU)},
            ["group-marks", "helpers-need", "helpers-need", "helpers-with-gpus"],
        ),
        ({"groups": (GPU, CPU, Group("spare", "ml.c5.4xlarge", 0))}, ["helpers-need"]),
        ({"groups": (CPU,)}, ["group-marks", "helpers-need"]),
        (
            {"data": (Channel("train", "s3://b/c/", groups=("gpu",)),)},
            ["helpers-need", "helpers-without-data"],
        ),
        ({"data": (Channel("train", "s3://b/c/", groups=("gpu", "cpu")),)}, ["helpers-need"]),
        ({"data": (Channel("train", "s3://b/c/"),)}, ["helpers-need"]),
    ],
)
def test_what_does_not_fit_is_found(changes, expected):
    assert codes(replace(HELPED, **changes)) == expected


def need_of(terms: Terms) -> HelperRates:
    types = machines()
    return need(terms, types["ml.p3.16xlarge"], 1, [(types["ml.c5.4xlarge"], 1)])


def like(run: Path, **changes: Any) -> Finding:
    (found,) = (
        one
        for one in helpers(replace(HELPED, like=str(run), **changes))
        if one.code == "helpers-need"
    )
    return found


def test_the_need_of_helping_hosts_follows_from_a_past_run(tmp_path):
    """On 4 cores, 3 workers need 64 * 105 / 3 ms for the 64 images of a step, and the device needs
    600 ms.
    """
    heavy = a_run(tmp_path / "heavy", machine="ml.g5.xlarge")
    found = like(heavy)
    assert found.level == "note"
    assert (
        "the devices take 106.7 images/s, and the training hosts alone reach 28.6, with helping hosts 106.7"
        in found.message
    )
    alone, helped = (
        5000 * step / 3600 * price for step, price in ((64 * 0.105 / 3, 1.41), (0.6, 1.41 + 1.632))
    )
    assert (
        f"costs ${helped:,.2f} in 0.8 h, and ${alone:,.2f} in 3.1 h without them" in found.message
    )
    many = like(heavy, groups=(GPU, replace(CPU, instances=20)))
    assert many.level == "warning"
    assert "cost more than they save" in many.message


def test_helping_hosts_without_need_are_said(tmp_path):
    few = like(a_run(tmp_path / "few", machine="ml.g5.xlarge", wait=0.0, images=4))
    assert few.level == "warning"
    assert (
        "are not needed: the devices take 6.7 images/s, and the training hosts alone reach 6.7"
        in few.message
    )
    assert need_of(replace(TERMS, cpu=0.004, receive=0.0021)).pays is False
    assert need_of(replace(TERMS, cpu=0.004, receive=0.0019)).pays is True
    cheap = a_run(tmp_path / "cheap", machine="ml.g5.xlarge", augment=0.0, wait=2.0, images=640)
    (cheap / "config.yaml").write_text("data: {crop: [512, 1024]}\n")
    assert like(cheap).level == "warning"
    assert (
        "would not pay: receiving a sample takes 2.9 ms of CPU time there, and making it 5 ms"
        in like(cheap).message
    )


def test_every_host_that_reads_counts_where_files_are_divided():
    channel = Channel("train", "s3://b/c/", distribution="ShardedByS3Key")
    choice = choose("ml.g5.xlarge", "ddp", "us-east-1", today=date(2026, 11, 21))
    job = replace(HELPED, data=(channel,))
    found = offline(job, request(job), choice=choice, now=datetime(2026, 11, 21).date())
    assert "channel-sharded" in {finding.code for finding in found if finding.level == "error"}
