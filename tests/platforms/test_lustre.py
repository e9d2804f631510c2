"""Tests of FSx's data repository tasks: the request, the wait, and the report, against botocore's
model of FSx.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
from conftest import refused

from launch import lustre
from launch.platforms.sagemaker.cloud import AwsClients
from segtrain.errors import EXIT_ERROR, SegtrainError

boto3 = pytest.importorskip(
    "boto3", reason="boto3 is not installed: pip install 'segtrain[sagemaker]'"
)
from botocore.stub import Stubber  # noqa: E402

SYSTEM, NAME, REPORT = "fs-0123456789abcdef0", "task-0123456789abcdef0", "s3://bkt/runs/reports/"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Clients that answer from botocore's Stubber; the pauses take no time."""
    clients, keys = (
        AwsClients("us-east-1"),
        {"aws_access_key_id": "a", "aws_secret_access_key": "b"},
    )
    for service in ("fsx", "s3"):
        clients.__dict__[service] = boto3.client(service, region_name="us-east-1", **keys)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(lustre, "connect", lambda region: clients)
    with Stubber(clients.fsx) as fsx, Stubber(clients.s3) as s3:
        yield fsx, s3
        fsx.assert_no_pending_responses()
        s3.assert_no_pending_responses()


def task(lifecycle: str, **more: Any) -> dict[str, Any]:
    known = {
        "TaskId": NAME,
        "Type": "EXPORT_TO_REPOSITORY",
        "CreationTime": 0,
        "FileSystemId": SYSTEM,
    }
    return {**known, "Lifecycle": lifecycle, **more}


def test_an_export_is_awaited(cloud, capsys):
    fsx, _ = cloud
    sent = {
        "Type": "EXPORT_TO_REPOSITORY",
        "FileSystemId": SYSTEM,
        "Paths": ["runs", "data/a"],
        "Report": {"Enabled": False},
    }
    fsx.add_response("create_data_repository_task", {"DataRepositoryTask": task("PENDING")}, sent)
    fsx.add_client_error(
        "describe_data_repository_tasks", "ThrottlingException", http_status_code=400
    )
    done = task("SUCCEEDED", Status={"TotalCount": 3, "SucceededCount": 3, "FailedCount": 0})
    for answer in (task("EXECUTING"), done):
        answers = {"DataRepositoryTasks": [answer]}
        fsx.add_response("describe_data_repository_tasks", answers, {"TaskIds": [NAME]})
    assert lustre.main(["export", SYSTEM, "/runs/", "data/a"]) == 0
    assert "SUCCEEDED, 3 of 3" in capsys.readouterr().out


@pytest.mark.parametrize("lifecycle", ["SUCCEEDED", "FAILED"])
def test_files_that_failed_are_an_error_and_listed(lifecycle, cloud, capsys):
    fsx, s3 = cloud
    ended = task(lifecycle, Status={"TotalCount": 5, "SucceededCount": 3, "FailedCount": 2})
    fsx.add_response("create_data_repository_task", {"DataRepositoryTask": ended})
    content = b'run/a.pt,failed,S3AccessDenied\n"run/b,c.pt",failed,FileSizeTooLarge\n'
    place = {"Bucket": "bkt", "Key": f"runs/reports/{NAME}/failures.csv"}
    s3.add_response("get_object", {"Body": io.BytesIO(content)}, place)
    assert (
        lustre.main(["release", SYSTEM, "runs", "--report", REPORT, "--days", "30"]) == EXIT_ERROR
    )
    printed = capsys.readouterr().err
    assert "run/b,c.pt: failed FileSizeTooLarge" in printed


def test_an_export_takes_no_days_and_reports_into_a_bucket():
    with refused("release-days", found=1):
        lustre.task_request("export", SYSTEM, ["runs"], None, 1)
    with refused("report-place", found="/reports"):
        lustre.task_request("export", SYSTEM, ["runs"], "/reports", 0)


def test_a_refusal_and_a_cancelled_task_are_errors(cloud):
    fsx, _ = cloud
    fsx.add_client_error("create_data_repository_task", "BadRequest", "not linked")
    with pytest.raises(SegtrainError):
        lustre.run(
            lustre.connect(""), lustre.task_request("export", SYSTEM, ["runs"], None, 0), print
        )
    fsx.add_response("create_data_repository_task", {"DataRepositoryTask": task("CANCELED")})
    assert lustre.main(["export", SYSTEM, "runs"]) == EXIT_ERROR
