"""Tests that a job is read from a file and from flags, and that mistakes give the key, the value,
and the fix.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from conftest import refused

from launch.core.job import ROOT, config_file, config_name
from launch.platforms.sagemaker.job import SageMakerJob, load_job
from launch.platforms.sagemaker.job_parts import DEFAULT_METRICS, Channel, Group, Metric
from segtrain.errors import ConfigError
from segtrain.observe.console import Console, step_line

FSX = "fs-0123456789abcdef0:/fsx/city"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


FULL = """
name: city
config: configs/camvid_cpu.yaml
settings: {train: {batch_size: 8}, model.options: {stem: 24}, out: there}
strategy: fsdp
instances: 3
type: ml.p4d.24xlarge
data:
  train: {uri: s3://b/p/, mode: FastFile, distribution: ShardedByS3Key}
  val: fsx://fs-0123456789abcdef0/abcd/val
  more: {file_system: fs-0123456789, file_system_type: EFS, path: /x, access: rw}
data_gb: 12
output: s3://b/out
checkpoints: s3://b/ckpt/
role: arn:aws:iam::123456789012:role/R
region: eu-west-1
spot: true
max_run: 6h
max_wait: 90m
retries: 2
warm_pool: 1800
volume_gb: 200
subnets: [subnet-1]
security_groups: sg-1
tags: {team: seg, cost: 7}
environment: {NCCL_DEBUG: INFO, FAST: true}
metrics: {loss: "loss ([0-9.]+)"}
image: i
profile_ms: 1000
price: 12.5
requirements: more.txt
program: mine.py
"""


def test_every_key_of_a_file_arrives(tmp_path):
    assert load_job(written(tmp_path, FULL), {}) == SageMakerJob(
        name="city",
        config="configs/camvid_cpu.yaml",
        settings={"train.batch_size": 8, "model.options": {"stem": 24}, "out": "there"},
        strategy="fsdp",
        instances=3,
        type="ml.p4d.24xlarge",
        data=(
            Channel("train", "s3://b/p/", "FastFile", "ShardedByS3Key"),
            Channel("val", file_system="fs-0123456789abcdef0", path="/abcd/val"),
            Channel(
                "more", file_system="fs-0123456789", file_system_type="EFS", path="/x", access="rw"
            ),
        ),
        data_gb=12.0,
        output="s3://b/out",
        checkpoints="s3://b/ckpt/",
        role="arn:aws:iam::123456789012:role/R",
        region="eu-west-1",
        spot=True,
        max_run=21600,
        max_wait=5400,
        retries=2,
        warm_pool=1800,
        volume_gb=200,
        subnets=("subnet-1",),
        security_groups=("sg-1",),
        tags={"team": "seg", "cost": "7"},
        environment={"NCCL_DEBUG": "INFO", "FAST": "true"},
        metrics=(Metric("loss", "loss ([0-9.]+)"),),
        image="i",
        profile_ms=1000,
        price=12.5,
        requirements="more.txt",
        program="mine.py",
    )


def test_flags_come_over_the_file_and_settings_over_both(tmp_path):
    path = written(tmp_path, FULL)
    job = load_job(
        path,
        {
            "instances": 5,
            "spot": False,
            "max_run": "2d",
            "tags": ["team=x"],
            "environment": ["A=b=c"],
            "price": 1.0,
        },
        ["train.batch_size=16", "--optim.lr=1e-3", "data.limit=0", "name=run"],
    )
    assert (job.instances, job.spot, job.max_run, job.price) == (5, False, 172800, 1.0)
    assert (job.tags, job.environment["A"]) == ({"team": "x", "cost": "7"}, "b=c")
    assert job.settings["train.batch_size"] == 16
    assert job.settings["optim.lr"] == 1e-3
    assert job.settings["model.options"] == {"stem": 24}
    # a run of segtrain has a name of its own
    assert (job.settings["name"], job.name) == ("run", "city")


def test_switching_between_file_system_and_s3_is_one_flag(tmp_path):
    on_s3 = written(
        tmp_path, "data: {train: {uri: s3://b/p/, mode: FastFile, groups: [gpu]}, val: s3://b/v/}"
    )
    train, val = load_job(on_s3, {"fsx": FSX}).data
    assert train == Channel("train", file_system="fs-0123456789abcdef0", path="/fsx/city")
    assert val == Channel("val", "s3://b/v/")
    assert load_job(on_s3, {"data": ["s3://c/q/"]}).data[0] == Channel(
        "train", "s3://c/q/", "FastFile", groups=("gpu",)
    )
    on_fsx = written(tmp_path, f"data: {{train: '{FSX}'}}")
    assert load_job(on_fsx, {}).data == (train,)
    assert load_job(on_fsx, {"data": ["train=s3://b/p=1/"]}).data == (
        Channel("train", "s3://b/p=1/"),
    )
    assert load_job(on_fsx, {"data": ["val=s3://b/v/"], "mode": "FastFile"}).data == (
        train,
        Channel("val", "s3://b/v/", "FastFile"),
    )
    # A mode without any S3 channel is not dropped unseen: the preflight refuses it.
    assert load_job(on_fsx, {"mode": "FastFile"}).data[0].mode == "FastFile"


def test_groups():
    job = load_job(None, {"groups": ["gpu=ml.g5.xlarge*2:train", "cpu=ml.c5.4xlarge*3"]})
    assert job.groups == (Group("gpu", "ml.g5.xlarge", 2, True), Group("cpu", "ml.c5.4xlarge", 3))
    assert (job.hosts, job.training_hosts, job.training_type) == (5, 2, "ml.g5.xlarge")
    one = SageMakerJob(instances=4, type="ml.p5.48xlarge")
    assert (one.hosts, one.training_hosts, one.training_type) == (4, 4, "ml.p5.48xlarge")
    # Where no group is marked, all of them train.
    assert (
        SageMakerJob(
            groups=(Group("a", "ml.g5.xlarge", 2), Group("b", "ml.g5.xlarge", 1))
        ).training_hosts
        == 3
    )


def test_groups_of_a_file_and_of_flags(tmp_path):
    path = written(
        tmp_path, "groups: {gpu: {type: ml.g5.xlarge, train: true}, cpu: ml.c5.xlarge*2}"
    )
    assert load_job(path, {}).groups == (
        Group("gpu", "ml.g5.xlarge", 1, True),
        Group("cpu", "ml.c5.xlarge", 2),
    )
    both = written(tmp_path, "instances: 2\ntype: ml.g5.xlarge")
    # the flag replaces what the file says
    assert load_job(both, {"groups": ["a=ml.g5.xlarge:train"]}).hosts == 1


WRONG: list[tuple[str, dict[str, Any], list[str], str]] = [  # file, flags, settings, code
    ("instanses: 2", {}, [], "key-unknown"),
    ("type: ml.g5.xlarge\nspot: true\ntype: ml.g5.2xlarge", {}, [], "yaml-invalid"),
    (f"instances: 1{'0' * 400}", {}, [], "value-too-large"),
    ("groups: {gpu: {instances: 2}}", {}, [], "group-without-type"),
    ("", {"max_run": "9" * 400 + "d"}, [], "value-invalid"),
    ("price: -5", {}, [], "value-invalid"),
    ("", {"tags": ["a=1", "a=2"]}, [], "name-twice"),
    ("", {}, ["train.seed=" + "[" * 3000], "refused-yaml"),
    ("spot: 'yes'", {}, [], "value-invalid"),
    ("data: {train: {mode: File}}", {}, [], "channel-without-place"),
    ("data: {train: ./camvid}", {}, [], "channel-place"),
    ("groups: {gpu: ml.g5.xlarge*2}\ninstances: 2", {}, [], "groups-and-type"),
    (
        "groups: {gpu: ml.g5.xlarge*2:train}",
        {"type": "ml.p4d.24xlarge"},
        [],
        "groups-and-type",
    ),
    ("settings: {parallel: {strategy: fsdp}}", {}, [], "strategy-twice"),
    ("", {"data": ["s3://b/p/"], "fsx": FSX}, [], "channel-twice"),
    ("environment: {ON: 1}", {}, [], "key-not-text"),
    ("", {}, ["instances=5"], "setting-of-the-job"),
    ("", {}, ["train.batch_size"], "argument-unreadable"),
]


@pytest.mark.parametrize(
    ("text", "flags", "overrides", "code"), WRONG, ids=lambda value: str(value)[:40]
)
def test_what_is_wrong_has_its_code(tmp_path, text, flags, overrides, code):
    with refused(code):
        load_job(written(tmp_path, text), flags, overrides)


def test_settings_are_read_as_segtrain_train_reads_them(monkeypatch):
    words = [
        "data.index={split}.csv",
        "data.images={split}/Urban",
        "optim.lr=1e-3",
        "data.crop=[32, 48]",
        "data.root=2012",
    ]
    read = {
        "data.index": "{split}.csv",
        "data.images": "{split}/Urban",
        "optim.lr": 1e-3,
        "data.crop": [32, 48],
    }
    assert load_job(None, {}, words).settings == {**read, "data.root": "2012"}
    # no pydantic: what kind a setting is of is not known
    monkeypatch.setitem(sys.modules, "segtrain.config", None)
    assert load_job(None, {}, words[2:4]).settings == {"optim.lr": 1e-3, "data.crop": [32, 48]}
    with pytest.raises(ConfigError, match=r"quote it: 'data.index=\"{split}.csv\"'"):
        load_job(None, {}, words[:1])


def test_without_pydantic_a_job_is_read_as_plain_yaml(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "segtrain.config.yaml_text", None)
    assert load_job(written(tmp_path, "instances: 2"), {}).instances == 2
    with refused("yaml-too-deep"):
        load_job(written(tmp_path, "settings: " + "[" * 3000), {})


def test_a_file_that_is_not_there_names_its_neighbor(tmp_path):
    written(tmp_path, "")
    with pytest.raises(ConfigError, match="did you mean"):
        load_job(tmp_path / "jop.yaml", {})


def test_the_shipped_jobs_load_with_their_training_configs():
    from segtrain.config import load_config

    jobs = sorted((ROOT / "configs/jobs").glob("sagemaker*.yaml"))
    assert len(jobs) >= 4
    for path in jobs:
        job = load_job(path, {})
        settings = [
            f"{key}={value}"
            for key, value in {**job.settings, "parallel.strategy": job.strategy}.items()
        ]
        config = load_config(config_file(job), [*settings, "data.root=there"])
        assert config.train.device == "cuda", path
        assert job.checkpoints.endswith("/"), path
        assert job.data[0].name == "train", path


def test_the_name_of_the_config_in_the_bundle(tmp_path, monkeypatch):
    mine = tmp_path / "mine.yaml"
    mine.write_text("")
    monkeypatch.chdir(tmp_path)  # the command is run from anywhere
    assert config_file(SageMakerJob()) == ROOT / "configs/scenes.yaml"
    assert config_name(SageMakerJob()) == "configs/scenes.yaml"
    assert (
        config_name(SageMakerJob(config="mine.yaml"))
        == config_name(SageMakerJob(config=str(mine)))
        == "configs/job/mine.yaml"
    )
    assert config_name(SageMakerJob(config="")) == ""


def test_metrics_are_found_in_what_training_prints():
    from segtrain.training.score_output import announce_scores
    from segtrain.training.state import State

    stream = io.StringIO()
    output, result = MagicMock(), MagicMock(seconds=2.0, protocol={"line": "val, 60 images"})
    output.screen = Console(420, 14, stream=stream)
    scores = {"classes": 3, "classes_present": 2, "miou": 0.4512, "accuracy": 0.9}
    state = State(step=210, scores=scores)
    # the line after an evaluation, as it is printed
    announce_scores(output, state, 7.0, MagicMock(), result, True)
    log = (
        step_line(50, 420, 1.67, 14, 1.2345, 6e-3, 123.4, 0.03, 100)
        + "\n[1,0]<stdout>:"
        + stream.getvalue()
    )
    found = {metric.name: re.findall(metric.regex, log) for metric in DEFAULT_METRICS}
    assert found == {
        "train:loss": ["1.2345"],
        "train:lr": ["6.00e-03"],
        "train:images_per_second": ["123.4"],
        "train:data_wait_percent": ["3"],
        "train:epoch": ["1.67"],
        "val:miou_percent": ["45.12"],
        "val:pixel_accuracy_percent": ["90.00"],
    }
