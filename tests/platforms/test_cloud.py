"""Tests that a launch finds the role and the bucket, submits a job once, and explains refusals in
one line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cloud.endpoint import CloudEndpoint
from cloud.moto import environment, moto_server
from cloud.samples import training_job
from conftest import refused

from launch.platforms.sagemaker.aws_errors import cure_of_failure
from launch.platforms.sagemaker.cloud import (
    AwsClients,
    account,
    connect,
    default_bucket,
    fill,
    submit,
    upload,
)
from launch.platforms.sagemaker.job import SageMakerJob
from segtrain.errors import ConfigError, SegtrainError

ACCOUNT = "123456789012"
SAGEMAKER = {
    "Effect": "Allow",
    "Principal": {"Service": "sagemaker.amazonaws.com"},
    "Action": "sts:AssumeRole",
}
EC2 = {**SAGEMAKER, "Principal": {"Service": "ec2.amazonaws.com"}}


def point(monkeypatch: pytest.MonkeyPatch, **where: str) -> None:
    for key, value in environment(**where).items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> AwsClients:
    """An empty account on moto."""
    point(monkeypatch, moto=moto_server())
    return connect("us-east-1")


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudEndpoint]:
    pytest.importorskip("boto3")
    with CloudEndpoint() as endpoint:
        point(monkeypatch, cloud=endpoint.url)
        yield endpoint


def role(
    clients: AwsClients, name: str, statement: dict[str, Any] = SAGEMAKER, path: str = "/"
) -> str:
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    made = clients.iam.create_role(RoleName=name, AssumeRolePolicyDocument=policy, Path=path)
    return str(made["Role"]["Arn"])


def test_without_boto3_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"pip install 'segtrain\[sagemaker\]'"):
        connect("us-east-1")


def test_a_sign_in_that_has_expired_is_found_before_anything_is_sent(monkeypatch, tmp_path):
    pytest.importorskip("boto3")
    point(monkeypatch)
    sso = "sso_session = s\nsso_account_id = 1\nsso_role_name = r\n[sso-session s]\nsso_region = us-east-1\nsso_start_url = u\n"
    (tmp_path / "config").write_text(f"[profile work]\n{sso}")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))  # where boto3 looks for the token of a sign-in
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    with pytest.raises(ConfigError, match=r"AWS credentials: .*aws sso login"):
        connect("us-east-1")


def test_a_job_is_filled_with_the_accounts_role_and_bucket(clients):
    role(clients, "Web", EC2)
    trainer = role(clients, "Trainer")
    role(clients, "AWSServiceRoleForSageMaker", path="/aws-service-role/sagemaker.amazonaws.com/")
    filled = fill(SageMakerJob(), clients)
    assert (filled.role, filled.region) == (trainer, "us-east-1")
    assert filled.output == f"s3://sagemaker-us-east-1-{ACCOUNT}/segtrain"
    assert account(clients) == ACCOUNT
    assert clients.s3.list_buckets()["Buckets"] == []  # looking makes nothing


def test_what_the_job_says_is_kept(clients):
    trainer = role(clients, "Trainer")
    role(clients, "Other")
    mine = SageMakerJob(role=f"arn:aws:iam::{ACCOUNT}:role/Mine", output="s3://mine/a")
    assert fill(mine, clients) == SageMakerJob(
        role=mine.role, output=mine.output, region="us-east-1"
    )
    assert fill(SageMakerJob(role="Trainer"), clients).role == trainer
    with pytest.raises(ConfigError, match=r"--role Trianer: NoSuchEntity.*whole ARN"):
        fill(SageMakerJob(role="Trianer"), clients)


def test_no_role_and_several_roles_are_errors_with_a_cure(clients):
    with pytest.raises(ConfigError, match=r"the account has none: give --role"):
        fill(SageMakerJob(), clients)
    role(clients, "A")
    role(clients, "B")
    with pytest.raises(
        ConfigError, match=r"2 roles are possible \(.*role/A, .*role/B\): give --role"
    ):
        fill(SageMakerJob(), clients)


def test_a_notebook_trains_as_its_own_role(clients, monkeypatch):
    own = role(clients, "Notebook")
    role(clients, "Other")
    keys = clients.sts.assume_role(RoleArn=own, RoleSessionName="SageMaker")["Credentials"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", keys["SessionToken"])
    assert fill(SageMakerJob(), connect("us-east-1")).role == own


@pytest.mark.parametrize("region", ["us-east-1", "eu-west-1"])
def test_the_first_upload_makes_the_accounts_bucket(clients, tmp_path, region):
    clients = connect(region)
    bundle, bucket = tmp_path / "sourcedir.tar.gz", default_bucket(clients)
    for content in (b"first", b"second"):
        bundle.write_bytes(content)
        upload(clients, bundle, f"s3://{bucket}/segtrain/a/source/sourcedir.tar.gz")
        got = clients.s3.get_object(Bucket=bucket, Key="segtrain/a/source/sourcedir.tar.gz")[
            "Body"
        ].read()
        assert got == content


def test_a_bucket_that_is_named_must_exist(clients, tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    with pytest.raises(
        SegtrainError, match=r"upload of a to s3://absent-bucket/k: NoSuchBucket.*aws s3 mb"
    ):
        upload(clients, tmp_path / "a", "s3://absent-bucket/k")
    with pytest.raises(ConfigError, match="s3://BUCKET/KEY"):
        upload(clients, tmp_path / "a", "https://absent-bucket/k")


def test_a_job_is_sent_once_and_its_arn_comes_back(cloud):
    clients = connect("us-east-1")
    assert (
        submit(clients, training_job("a"))
        == f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:training-job/a"
    )
    with pytest.raises(SegtrainError, match=r"CreateTrainingJob of a: ResourceInUse.*--attach"):
        submit(clients, training_job("a"))


def test_a_lost_answer_does_not_make_a_sent_job_an_error(cloud):
    cloud.lose("CreateTrainingJob")
    clients = connect("us-east-1")
    assert submit(clients, training_job("a")).endswith("/a")
    assert [operation for operation, _ in cloud.calls] == [
        *["CreateTrainingJob"] * 2,
        "DescribeTrainingJob",
    ]
    # The same name for another job is not taken for it.
    cloud.lose("CreateTrainingJob")
    cloud.jobs["b"] = cloud.jobs["a"]
    with pytest.raises(SegtrainError, match="ResourceInUse"):
        submit(clients, training_job("b", RoleArn=f"arn:aws:iam::{ACCOUNT}:role/Another"))


def test_a_submission_without_an_answer_may_have_made_a_job(cloud, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # boto3's pauses between its attempts
    clients = connect("us-east-1")
    cloud.refuse("CreateTrainingJob", "InternalFailure", times=5, status=500)
    with refused("job-maybe-sent", name="a") as caught:
        submit(clients, training_job("a"))
    assert "--stop a --region us-east-1" in str(caught.value)
    cloud.lose("CreateTrainingJob")
    cloud.refuse("CreateTrainingJob", "InternalFailure", times=4, status=500)
    assert submit(clients, training_job("a")).endswith("/a")


REFUSALS = [
    (
        "ResourceLimitExceeded",
        "The account-level service limit 'ml.p4d.24xlarge for training job usage' is 0",
        "Service Quotas",
    ),
    (
        "AccessDeniedException",
        "User: x is not authorized to perform: iam:PassRole on resource: y",
        "needs iam:PassRole",
    ),
]


def test_a_refusal_is_told_in_awss_words_with_its_cure(cloud):
    clients = connect("us-east-1")
    for code, message, cure in REFUSALS:
        cloud.refuse("CreateTrainingJob", code, message)
        with pytest.raises(SegtrainError) as caught:
            submit(clients, training_job())
        assert str(caught.value).startswith(
            f"CreateTrainingJob of job-1: {code}: {message.rstrip('.')}: "
        )
        assert cure in str(caught.value)
    assert not cloud.jobs


def test_no_network_and_a_request_that_boto3_refuses(cloud, monkeypatch):
    with pytest.raises(ConfigError, match=r"Unknown parameter.*Nonsense.*--dry-run"):
        submit(connect("us-east-1"), training_job(Nonsense=1))
    point(monkeypatch)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # boto3's pauses between its attempts
    with pytest.raises(SegtrainError, match=r"AWS cannot be reached.*--region"):
        submit(connect("us-east-1"), training_job())


FAILURES = [
    ("ClientError: Data download failed: AccessDenied (403)", "--role"),
    ("AlgorithmError: cannot decrypt the secret", "--rehearse"),  # not ECR
    ("AlgorithmError: the amount of 1403 images", "--rehearse"),  # neither a mount nor HTTP 403
]


@pytest.mark.parametrize(("reason", "cure"), FAILURES)
def test_the_reason_of_a_failure_has_its_cure(reason, cure):
    assert cure in cure_of_failure(reason)
