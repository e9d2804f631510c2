"""Tests that a file system is created once per prefix, awaited, filled, and found again, and never
paid for unasked.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from cloud.endpoint import CloudEndpoint
from cloud.moto import environment

from launch import fsx
from launch.platforms.fsx import lustre
from launch.platforms.fsx.lustre import WantedFileSystem
from launch.platforms.sagemaker.cloud import AwsClients, connect
from launch.platforms.sagemaker.job import load_job
from segtrain.errors import ConfigError, SegtrainError

SUBNET, GROUP = "subnet-0abc1234", "sg-0abc1234"
WORDS = ["--data", "s3://my-data/camvid", "--subnet", SUBNET, "--security-groups", GROUP]
WANTED = WantedFileSystem("s3://my-data/camvid", SUBNET, (GROUP,))
NAME = "fs-00000000000000001"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudEndpoint]:
    pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'segtrain[sagemaker]'")
    with CloudEndpoint() as endpoint:
        for key, value in environment(endpoint.url).items():
            monkeypatch.setenv(key, value)
        monkeypatch.setattr(
            "time.sleep", endpoint.tick
        )  # no test waits: the endpoint's time goes on where the launcher sleeps
        yield endpoint


@pytest.fixture
def clients(cloud: CloudEndpoint) -> AwsClients:
    return connect("us-east-1")


def made(cloud: CloudEndpoint) -> list[str]:
    return [operation for operation, _ in cloud.calls if operation.startswith("Create")]


def test_it_is_created_waited_for_and_told_as_flags(cloud, capsys):
    assert fsx.main([*WORDS, "--yes"]) == 0
    printed = capsys.readouterr()
    assert made(cloud) == ["CreateFileSystem", "CreateDataRepositoryAssociation"]
    (ready,) = [line for line in printed.out.splitlines() if line.startswith("ready")]
    assert (
        f"--fsx {NAME}:/abcd1234/data --subnets {SUBNET} --security-groups {GROUP} --region us-east-1"
        in ready
    )
    assert "$174.00 per month" in printed.err
    for what in (
        f"file system {NAME}",
        "association with s3://my-data/camvid/",
        "names of s3://my-data/camvid/",
    ):
        assert f"{what}: " in printed.out
    assert cloud.associations[0]["S3"]["AutoImportPolicy"]["Events"] == [
        "NEW",
        "CHANGED",
        "DELETED",
    ]
    # the names are there before it is called ready
    assert cloud.tasks[0]["Lifecycle"] == "SUCCEEDED"
    # What is told is what a job takes.
    place = re.search(r"--fsx (\S+)", ready)
    assert place is not None
    (channel,) = load_job(None, {"fsx": place[1]}).data
    assert (channel.file_system, channel.path) == (NAME, "/abcd1234/data")


def test_the_same_command_finds_it_again(cloud, capsys):
    assert fsx.main([*WORDS, "--yes"]) == 0
    cloud.calls.clear()
    assert (
        fsx.main([*WORDS[:1], "s3://my-data/camvid/", *WORDS[2:]]) == 0
    )  # with the slash, and without --yes: nothing to pay
    assert made(cloud) == []
    out = capsys.readouterr().out
    assert f"reused   {NAME}" in out
    assert out.count(f"--fsx {NAME}:/abcd1234/data") == 2


def test_what_was_interrupted_goes_on(cloud, clients):
    """The file system was created and the command ended before its association: its tag finds
    it.
    """
    lustre.create(clients, WANTED)
    cloud.calls.clear()
    assert fsx.main(WORDS) == 0
    assert made(cloud) == ["CreateDataRepositoryAssociation"]


def test_another_prefix_or_subnet_is_no_match(cloud, clients, capsys):
    assert fsx.main([*WORDS, "--yes"]) == 0
    assert lustre.find(clients, replace(WANTED, data="s3://my-data/camvid-2")) == (None, [])
    found, others = lustre.find(clients, replace(WANTED, subnet="subnet-0abc9999"))
    assert found is None
    assert NAME in others[0]
    assert SUBNET in others[0]
    cloud.file_systems[0]["Lifecycle"] = "DELETING"
    assert lustre.find(clients, WANTED)[0] is None


def test_nothing_is_created_unasked(cloud, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert fsx.main(WORDS) == 1
    printed = capsys.readouterr().err
    assert made(cloud) == []
    assert "$174.00 per month" in printed
    assert "give --yes" in printed


def test_a_failure_is_told_in_the_words_of_aws(cloud, clients):
    cloud.fail["dra-"] = "The bucket my-data is not accessible"
    with pytest.raises(
        SegtrainError, match=r"association with s3://my-data/camvid/ is FAILED: The bucket my-data"
    ):
        lustre.complete(
            clients, WANTED, lustre.create(clients, WANTED), lambda text: None, cloud.tick
        )


def test_one_that_never_comes_is_given_up(cloud, clients):
    found = lustre.create(clients, WANTED)
    with pytest.raises(SegtrainError, match="still CREATING after 60 minutes"):
        lustre.complete(clients, WANTED, found, lambda text: None, lambda seconds: None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"subnet": "subnet-1"}, "'subnet-1'"),
        ({"security_groups": ("mine",)}, "'mine'"),
        ({"security_groups": ()}, "--security-groups"),
    ],
)
def test_a_mistake_is_named_before_a_call(changes, words):
    with pytest.raises(ConfigError) as refused:
        lustre.check(replace(WANTED, **changes))
    assert words in str(refused.value)
