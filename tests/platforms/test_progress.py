"""Tests that the training's log lines are understood, and that costs are computed as AWS bills
them.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from launch.platforms.sagemaker import progress
from segtrain.observe.console import step_line


def test_steps_under_mpi_are_read_and_other_lines_are_not():
    seen = progress.Progress()
    under_mpi = "[1,mpirank:0,algo-1]<stdout>:" + step_line(
        7, 9, 0.1, 1, math.nan, 1e-3, 1234.5, 1, math.nan
    )
    after = seen.read(under_mpi)
    assert (after.step, after.total, after.loss, after.images_per_s, after.left) == (
        7,
        9,
        "nan",
        1234.5,
        "?",
    )
    for other in (
        "",
        "best mIoU 25.99% at step 20   21 s of training",
        "  steps       20 = 0.67 epochs; eval at the end",
        "a step 3/4",
    ):
        assert seen.read(other) is seen


def test_groups_are_priced_each_by_its_type_and_an_unknown_price_is_not_guessed():
    groups = [
        {"InstanceType": "ml.g5.xlarge", "InstanceCount": 2},
        {"InstanceType": "ml.unknown", "InstanceCount": 1},
    ]
    job: dict[str, Any] = {"ResourceConfig": {"InstanceGroups": groups}}
    assert progress.price_per_s(job) is None
    assert progress.price_per_s(job, 1.2) == pytest.approx(3 * 1.2 / 3600)
    assert progress.money(job, None, 0.0) == ""
    # --price is that of the group that trains; the other one keeps the table's.
    groups = [
        {"InstanceGroupName": name, "InstanceType": kind, "InstanceCount": 2}
        for name, kind in (("gpu", "ml.unknown"), ("cpu", "ml.c5.xlarge"))
    ]
    job = {
        "ResourceConfig": {"InstanceGroups": groups},
        "HyperParameters": {"sagemaker_distribution_instance_groups": '["gpu"]'},
    }
    assert progress.price_per_s(job, 5.0) == pytest.approx(2 * (5.0 + 0.204) / 3600)


def test_the_machines_are_paid_from_the_download_to_the_end_of_the_upload_and_no_wait_is():
    begun = datetime(2026, 11, 21, tzinfo=timezone.utc)
    lives = [
        ("Starting", 9000),
        ("Downloading", 10),
        ("Training", 20),
        ("Interrupted", 9000),
        ("Starting", 9000),
    ]
    lives += [("Downloading", 40), ("Training", 80), ("Stopping", 160), ("Uploading", 0)]
    changes, at = [], begun
    for status, seconds in lives:
        changes.append(
            {"Status": status, "StartTime": at, "EndTime": at + timedelta(seconds=seconds)}
        )
        at += timedelta(seconds=seconds)
    del changes[-1]["EndTime"]  # it uploads still
    job: dict[str, Any] = {"SecondaryStatusTransitions": changes}
    assert progress.billed_s(job, at.timestamp() + 320) == 10 + 20 + 40 + 80 + 160 + 320
    assert progress.money(job, 0.01, at.timestamp() + 320) == "$6.30 so far"
