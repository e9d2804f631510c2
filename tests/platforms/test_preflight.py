"""Tests that each mistake in a job's description gets its own finding, with the value in it, and a
sound job none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from checkouts import use_checkout
from golden_findings import check_findings, loud
from sagemaker_mistakes import FSX, HETERO, ROOT, TODAY, VPC, look, the_job

from launch.core.findings import errors
from launch.core.preflight import looks_secret
from launch.core.requirements import admits
from launch.platforms.sagemaker.images import SageMakerImageChoice, choose
from launch.platforms.sagemaker.job import SageMakerJob, load_job
from launch.platforms.sagemaker.job_parts import Channel, Group, Metric
from launch.platforms.sagemaker.preflight.bundle_checks import bundle_checks
from launch.platforms.sagemaker.preflight.cost import cost_ceiling
from launch.platforms.sagemaker.preflight.limits import shell_reads
from launch.platforms.sagemaker.preflight.offline import offline
from launch.platforms.sagemaker.preflight.security import bucket_policy

pytest.importorskip("yaml")


# Mistakes that a job file or a program can hold, but no flag.
WRITTEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "path of an EFS": (
        {"subnets": ("subnet-0abc1234",), "security_groups": ("sg-0abc1234",),
         "data": (Channel("train", file_system="fs-0abc1234", path="camvid", file_system_type="EFS"),)},
        {}),
    "sharded by key": (
        {"data": (Channel("train", "s3://example-data/camvid/", distribution="ShardedByS3Key"),)},
        {}),
    "grouped and ungrouped channels": (
        {"groups": (Group("gpu", "ml.g5.12xlarge", 2, True), Group("cpu", "ml.c5.4xlarge")),
         "data": (Channel("train", "s3://example-data/camvid/", groups=("gpu",)), Channel("more", "s3://example-data/b/"))},
        {}),
    "grouped S3 beside FSx": (
        {"groups": (Group("gpu", "ml.g5.12xlarge", 2, True), Group("cpu", "ml.c5.4xlarge")),
         "subnets": ("subnet-0abc1234",), "security_groups": ("sg-0abc1234",),
         "data": (Channel("train", file_system="fs-0123456789abcdef0", path="/fsx/a"),
                  Channel("more", "s3://example-data/b/", groups=("cpu",)))},
        {}),
    "group that is not there": (
        {"groups": (Group("gpu", "ml.g5.12xlarge", 2, True), Group("cpu", "ml.c5.4xlarge")),
         "data": (Channel("train", "s3://example-data/camvid/", groups=("gpu", "gpus")),)},
        {}),
    "data for the helpers alone": (
        {"groups": (Group("gpu", "ml.g5.12xlarge", 2, True), Group("cpu", "ml.c5.4xlarge")),
         "data": (Channel("train", "s3://example-data/camvid/", groups=("cpu",)),)},
        {}),
    "metric without a group": ({"metrics": (Metric("loss", "loss [0-9.]+"),)}, {}),
    "metric that is no expression": ({"metrics": (Metric("loss", "loss ([0-9."),)}, {}),
    "a member that AWS does not know": ({}, {"InstanceType": "ml.g5.12xlarge"}),
}  # fmt: skip


def test_findings_of_mistakes_in_a_file():
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    jobs = {
        name: look(replace(the_job({}), **fields), **members)
        for name, (fields, members) in WRITTEN.items()
    }
    check_findings("findings/sagemaker-file", jobs, look(the_job({})))


def test_secrets_are_known_by_their_form():
    secrets = [
        "hf_" + "aB3" * 12,
        "ghp_" + "x1" * 18,
        "github_pat_" + "x1" * 20,
        "xoxb-1234567890-abc",
    ]
    for value in (*secrets, "AKIA" + "A1" * 8, "https://me:pass@host/simple"):
        assert looks_secret("PLACE", value), value
    for value in ("https://host/simple", "hf_home", ""):
        assert not looks_secret("PLACE", value), value
    assert looks_secret("WANDB_API_KEY", "abc")
    assert not looks_secret("AWS_ACCESS_KEY_ID", "abc")
    [finding] = [
        f for f in look(the_job({"environment": [f"HUB={secrets[0]}"]})) if f.code == "secret"
    ]
    assert secrets[0] not in finding.message


def test_a_private_registry_that_the_vpc_reaches_is_no_mistake():
    job = the_job({**VPC, "image": "registry.example.com/mine:1"})
    assert "image-registry" in {f.code for f in loud(look(job))}
    algorithm = {
        "TrainingImage": job.image,
        "TrainingInputMode": "File",
        "TrainingImageConfig": {"TrainingRepositoryAccessMode": "Vpc"},
    }
    assert not loud(look(job, AlgorithmSpecification=algorithm))


# Sound jobs: flags, settings. A few have a warning that is no false alarm.
SOUND: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "one host without data": ({"config": "configs/scenes.yaml", "instances": 1, "data": None, "data_gb": None}, ()),
    "one GPU": ({"strategy": "single", "instances": 1, "type": "ml.g6.xlarge"}, ()),
    "FSx and smddp": (
        {**FSX, "strategy": "smddp", "type": "ml.p4d.24xlarge"}, ()),
    "FSx whose mount name AWS drew": ({**FSX, "fsx": "fs-0123456789abcdef0:/x7wzhbev/camvid"}, ()),
    "spot": ({"spot": True, "max_run": "6h", "max_wait": "12h", "retries": 3}, ()),
    "groups": (HETERO, ()),
    "a role by its name": ({"role": "Trainer"}, ()),
    "results in the data's bucket": ({"output": "s3://example-data/", "checkpoints": "s3://example-data/runs/a/"}, ()),
    "shards by FastFile": ({"mode": "FastFile", "data_gb": 5000.0}, ("data.layout=shards",)),
    "warm pool, tags, variables": (
        {"warm_pool": "30m", "tags": ["team=vision 1"], "environment": ["NCCL_DEBUG=INFO", "TOKENIZERS_PARALLELISM=false"]},
        ("data.classes=[road, sky]", "loss.terms=[ce, dice]", "train.compile=true")),
    "the machines of the first command": (
        {"type": "ml.p3.16xlarge", "instances": 5, "max_run": "5d"}, ("train.batch_size=80",)),
    "weights from a channel": (
        {"data": ["train=s3://example-data/camvid/", "weights=s3://example-data/street/"]},
        ("model.init=/opt/ml/input/data/weights",)),
    "weights without other data": (
        {"config": "configs/scenes.yaml", "instances": 1, "data": ["weights=s3://example-data/street/"]},
        ("model.init=/opt/ml/input/data/weights/a.pth",)),
    "classes with names": ({}, ("data.layout=folders", "data.classes=[road, sky]")),
    "CPUs, profiler off": ({"type": "ml.c5.4xlarge", "profile_ms": 0}, ()),
    "fsdp": ({"strategy": "fsdp", "type": "ml.p4d.24xlarge"}, ("optim.name=adamw", "train.channels_last=auto")),
}  # fmt: skip


def test_findings_of_sound_jobs():
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    jobs = {name: look(the_job(flags, settings)) for name, (flags, settings) in SOUND.items()}
    assert not [finding for findings in jobs.values() for finding in errors(findings)]
    check_findings("findings/sagemaker-sound", jobs, look(the_job({})))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs/jobs").glob("sagemaker*.yaml")), ids=lambda path: path.stem
)
def test_the_jobs_of_this_repository_lack_nothing_but_their_names(path):
    found = loud(look(load_job(path, {})))
    need = {"helpers-need"} if "hetero" in path.stem else set()
    assert {f.code for f in found} - {"image-unpatched"} == {"placeholder", *need}, found


THE_IMAGE = choose("ml.g5.12xlarge", "ddp", "us-east-1", today=TODAY)


@pytest.mark.parametrize(
    ("files", "code", "value"),
    [
        ({"train.py": b"import os\nprint('x'\n"}, "code-syntax", "train.py, line 2"),
        (
            {"train.py": b"", "requirements.txt": b"torch==2.5.1\n"},
            "requirement-torch",
            "torch==2.5.1",
        ),
        (
            {"train.py": b"", "requirements.txt": b"smdistributed-dataparallel\n"},
            "requirement-smddp",
            "smdistributed",
        ),
        ({"train.py": b"", "requirements.txt": b"-e ../mine\n"}, "requirement-path", "-e ../mine"),
        (
            {"train.py": b"", "requirements.txt": b"--constraint mine.txt\n"},
            "requirement-path",
            "--constraint",
        ),
        (
            {"train.py": b"", "requirements.txt": b"mine @ file:///home/me\n"},
            "requirement-path",
            "file:///home/me",
        ),
        (
            {"train.py": b"", "requirements.txt": b"git+https://example.com/x\n"},
            "requirement-git",
            "git+https",
        ),
        (
            {"train.py": b"", "requirements.txt": b"--index-url https://me:pass@host/simple\n"},
            "requirement-secret",
            "https://(hidden)@host",
        ),
    ],
)
def test_code_that_would_fail_there_is_found_here(files, code, value):
    found = list(bundle_checks(SageMakerJob(), files, THE_IMAGE))
    assert [finding.code for finding in found] == [code]
    assert value in found[0].message


def test_requirements_that_the_image_meets_are_no_mistake():
    text = b"# mine\ntorch>=2.0\nTorch\nscipy>=1.10 ; python_version > '3.8'\nalbumentations[extra]==2.0.8\n\n"
    assert not list(
        bundle_checks(SageMakerJob(), {"train.py": b"", "requirements.txt": text}, THE_IMAGE)
    )
    unknown = SageMakerImageChoice(None, "mine:1", "asked for")
    assert [
        f.level
        for f in bundle_checks(SageMakerJob(), {"requirements.txt": b"torch==2.5.1"}, unknown)
    ] == ["warning"]


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ("==2.8.0", True),
        ("==2.8", True),
        ("==2.8.*", True),
        (">=2.0,<3", True),
        ("~=2.7", True),
        ("!=2.8.0", False),
        ("~=2.7.0", False),
        ("<2.8", False),
        (">2.8", False),
        ("==2.8.0+cu121", False),
        (">=2.8.1", False),
    ],
)
def test_version_ranges(wanted, fits):
    assert admits(wanted, "2.8.0") is fits


def test_what_a_shell_would_make_of_a_value():
    """Held against a real shell: what passes arrives as it is, or without its quotes."""
    for text in (
        "a b",
        "['road', 'sky']",
        '{"a": 1}',
        "x=1,y=2",
        "[[0.6, 0.67]]",
        'it "is" so',
        "#5",
        "a\\ b",
    ):
        assert not shell_reads(text)
        assert subprocess.run(["sh", "-c", f"echo -- {text}"], capture_output=True).returncode == 0
    for text in (
        "driver's",
        "a;b",
        "$HOME",
        "a|b",
        "f(x)",
        'say "x',
        "a>b",
        "`id`",
        '"$HOME"',
        "a\\",
    ):
        assert shell_reads(text)


def test_the_most_that_it_can_cost():
    job = SageMakerJob(instances=5, type="ml.p4d.24xlarge", max_run=2 * 3600, price=10.0)
    assert cost_ceiling(job)[0] == 100
    dollars, words = cost_ceiling(
        replace(job, groups=(Group("a", "ml.p4d.24xlarge", 2), Group("b", "ml.c5.xlarge", 3)))
    )
    # --price is that of the machines that train; the others keep the table's: 3 x $0.204 for two
    # hours.
    assert dollars == 2 * 2 * 10 + round(3 * 2 * 0.204, 2)
    dollars, words = cost_ceiling(
        replace(job, groups=(Group("a", "ml.p4d.24xlarge", 2, True), Group("b", "ml.c5n.xlarge")))
    )
    assert dollars is None
    words = cost_ceiling(SageMakerJob(type="ml.p3.16xlarge", max_run=3600))[1]
    # the last price of p3 that anyone quoted, not that of the table's date
    assert "2021-11-29" in words
    assert cost_ceiling(replace(job, warm_pool=1800))[0] == 125
    # a mistake that is said elsewhere
    assert cost_ceiling(replace(job, warm_pool=1800, max_run=0))[0] == 25
    assert "spot" in cost_ceiling(replace(job, spot=True))[1]
    assert cost_ceiling(replace(job, price=None, type="ml.unknown.xlarge"))[0] is None
    assert "eu-west-1" in cost_ceiling(replace(job, price=None, region="eu-west-1"))[1]


def test_what_is_good_to_know_is_a_note():
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    job = the_job({"data_gb": None, **VPC}, ("model.arch=unet", "model.encoder_weights=imagenet"))
    notes = {finding.code for finding in look(job) if finding.level == "note"}
    notes.discard("native-decoder")  # where none is built here
    assert notes == {
        "data-size-unknown",
        "plan-without-run",
        "profiler-closed",
        "vpc-internet",
        "weights-download",
    }
    choice = choose(job.training_type, job.strategy, job.region, today=TODAY)
    later = offline(job, {}, choice=choice, now=date(2028, 1, 1))
    assert "prices-old" in {finding.code for finding in later}


@pytest.mark.parametrize(
    ("model", "given", "found"),
    [
        (
            ("model.arch=fpn", "model.encoder_weights=imagenet"),
            {"network_isolation": True},
            {"error"},
        ),
        (
            ("model.arch=fpn", "model.encoder=tu-pvt_v2_b0", "model.encoder_weights=imagenet"),
            {
                "network_isolation": True,
                "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
            },
            {"warning"},
        ),
        (("model.arch=fpn", "model.encoder_weights=imagenet"), VPC, {"note"}),
        (("model.arch=fpn", "model.encoder_weights=imagenet"), {}, set()),
        (
            ("model.arch=fpn", "model.encoder_weights=/opt/ml/input/data/w/a.pth"),
            {"network_isolation": True},
            set(),
        ),
        ((), {"network_isolation": True}, set()),
    ],
)
def test_weights_that_must_be_fetched_without_a_network_are_found(model, given, found):
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    levels = [
        finding.level
        for finding in look(the_job(given, model))
        if finding.code == "weights-download"
    ]
    assert levels == list(found)


def test_what_cannot_be_checked_is_said(monkeypatch):
    for package in ("yaml", "pydantic", "botocore", "botocore.loaders", "segtrain.config"):
        monkeypatch.setitem(sys.modules, package, None)
    from launch.platforms.sagemaker import service_model

    service_model._model.cache_clear()
    found = look(the_job({"profile_ms": 300}))
    service_model._model.cache_clear()
    assert [f.code for f in loud(found)] == ["profiler-interval"]
    assert {f.code for f in found if f.level == "note"} >= {
        "config-unchecked",
        "service-model-unchecked",
    }


def test_a_repository_elsewhere(tmp_path, monkeypatch):
    """The code that is looked at is the code that would travel: a script broken there is found
    there.
    """
    for name in (
        "segtrain/__init__.py",
        "docker/sagemaker/train.py",
        "docker/sagemaker/entrypoint.sh",
        "configs/scenes.yaml",
        "pyproject.toml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    use_checkout(monkeypatch, tmp_path)
    job = the_job({"config": "configs/scenes.yaml", "data": None}, ("train.batch_size=8",))
    (tmp_path / "docker/sagemaker/train.py").write_text("def main(:\n")
    assert {f.code for f in loud(look(job))} == {"code-syntax"}
    (tmp_path / "docker/sagemaker/train.py").unlink()
    assert {f.code for f in loud(look(job))} == {"bundle"}


def test_places_that_no_endpoint_lets_through_are_named():
    allow = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject"}
    policy = json.dumps({"Statement": [{**allow, "Resource": "arn:aws:s3:::data/*"}]})
    endpoint = {"VpcEndpointId": "vpce-1", "PolicyDocument": policy}
    places = {"data": ["s3://data/a/"], "output": "s3://out/x", "checkpoints": "s3://ckpt/x"}
    job = load_job(None, {**places, "region": "us-east-1"})
    shut = list(bucket_policy(job, [endpoint]))
    assert [finding.message.partition("=")[0] for finding in shut] == ["output", "checkpoints"]
    assert list(bucket_policy(job, [endpoint, {"VpcEndpointId": "open"}])) == []
