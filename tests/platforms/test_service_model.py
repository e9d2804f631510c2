"""Tests that a violation of each rule of AWS's service model is found, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from launch.platforms.sagemaker import service_model
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.job_parts import Channel
from launch.platforms.sagemaker.request import create_training_job
from launch.platforms.sagemaker.service_model import violations

pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")


def sound() -> dict[str, Any]:
    job = SageMakerJob(
        data=(Channel("train", file_system="fs-0123456789abcdef0", path="/m/d"),),
        retries=3,
        environment={"A": "b"},
    )
    return create_training_job(job, image="i:1", name="job-1", code="s3://b/c.tar.gz")


def test_a_sound_request_has_no_violation():
    assert violations(sound()) == []


Change = Callable[[dict[str, Any]], Any]
BROKEN: list[tuple[Change, str]] = [
    (lambda r: r.pop("RoleArn"), "RoleArn: missing"),
    (
        lambda r: r["ResourceConfig"].update(InstanceTyp="x"),
        "ResourceConfig.InstanceTyp: unknown (nearest 'InstanceType')",
    ),
    (
        lambda r: r["ResourceConfig"].update(InstanceType="ml.p4d.24xlarg"),
        "(nearest 'ml.p4d.24xlarge')",
    ),
    (
        lambda r: r["ResourceConfig"].update(InstanceCount=True),
        "InstanceCount=True: must be a whole number",
    ),
    (
        lambda r: r["StoppingCondition"].update(MaxRuntimeInSeconds=0),
        "MaxRuntimeInSeconds=0: must be at least 1",
    ),
    (
        lambda r: r["RetryStrategy"].update(MaximumRetryAttempts=31),
        "MaximumRetryAttempts=31: must be from 1 to 30",
    ),
    (
        lambda r: r.update(EnableManagedSpotTraining="true"),
        "EnableManagedSpotTraining='true': must be true or false",
    ),
    # Anchored at both ends: a legal name inside is not enough.
    (lambda r: r.update(TrainingJobName="job-1 "), "TrainingJobName='job-1 ': does not match"),
    (lambda r: r.update(TrainingJobName="x" * 64), "64 characters, allowed are from 1 to 63"),
    (lambda r: r["HyperParameters"].update({"k" * 257: "v"}), "(its name)"),
    (
        lambda r: r["HyperParameters"].update({f"k{i}": "v" for i in range(100)}),
        "entries, allowed are from 0 to 100",
    ),
    (lambda r: r["HyperParameters"].update(number=3), "HyperParameters.number=3: must be a text"),
    (
        lambda r: r.update(InputDataConfig=[]),
        "InputDataConfig=[]: 0 items, allowed are from 1 to 20",
    ),
    (
        lambda r: r["InputDataConfig"][0]["DataSource"]["FileSystemDataSource"].update(
            FileSystemId="fs-01"
        ),
        "InputDataConfig[0].DataSource.FileSystemDataSource.FileSystemId='fs-01'",
    ),
    (
        lambda r: r.update(StoppingCondition="1h"),
        "StoppingCondition='1h': must be keys with values",
    ),
]


@pytest.mark.parametrize(("change", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_each_broken_rule_is_named_with_place_and_value(change, words):
    request = sound()
    change(request)
    found = violations(request)
    assert found
    assert any(words in line for line in found), found
    # nothing else is said
    assert len({line.partition("=")[0].partition(":")[0] for line in found}) == 1


def test_a_union_has_exactly_one_member():
    shapes = {
        "U": {
            "type": "structure",
            "union": True,
            "members": {"a": {"shape": "T"}, "b": {"shape": "T"}},
        },
        "T": {"type": "string"},
    }
    assert list(service_model._walk({"a": "x"}, "U", "u", shapes)) == []
    assert list(service_model._walk({"a": "x", "b": "y"}, "U", "u", shapes))
    assert list(service_model._walk({}, "U", "u", shapes))


def test_a_pattern_that_python_cannot_read_is_left_out():
    assert service_model._pattern(r"[\p{L}]+") is None


def test_without_botocore_it_says_that_it_could_not_look(monkeypatch):
    service_model._model.cache_clear()
    for name in ("botocore", "botocore.loaders"):
        monkeypatch.setitem(sys.modules, name, None)
    assert violations(sound()) is None
    service_model._model.cache_clear()
