"""Tests that each mistake in a job's description gets its own finding, with the value in it, and a sound job none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from launch.core.findings import Finding
from launch.core.preflight import looks_secret
from launch.core.requirements import admits
from launch.platforms.sagemaker.images import ImageChoice, choose
from launch.platforms.sagemaker.job import SageMakerJob, load_job
from launch.platforms.sagemaker.job_parts import Channel, Group, Metric
from launch.platforms.sagemaker.preflight.bundle_checks import bundle_checks
from launch.platforms.sagemaker.preflight.cost import cost_ceiling
from launch.platforms.sagemaker.preflight.limits import shell_reads
from launch.platforms.sagemaker.preflight.offline import offline
from launch.platforms.sagemaker.request import create_training_job, training_job_name

pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
TODAY = date(2026, 11, 21)
NOW = datetime(2026, 11, 21, 3, 56, 5, 89000)
PLAIN: dict[str, Any] = {
    "config": "configs/camvid_cpu.yaml",
    "instances": 2,
    "type": "ml.g5.12xlarge",
    "data": ["s3://example-data/camvid/"],
    "data_gb": 1.0,
    "output": "s3://example-results/jobs",
    "checkpoints": "s3://example-results/checkpoints/camvid/",
    "role": "arn:aws:iam::123456789012:role/service-role/Trainer",
    "region": "us-east-1",
}
BATCH = "train.batch_size=16"
VPC = {"subnets": ["subnet-0abc1234"], "security_groups": ["sg-0abc1234"]}
FSX = {"data": None, "fsx": "fs-0123456789abcdef0:/fsx/camvid", **VPC}
HETERO = {"instances": None, "type": None, "groups": ["gpu=ml.g5.12xlarge*2:train", "cpu=ml.c5.4xlarge*1"]}


def the_job(flags: Mapping[str, Any], settings: tuple[str, ...] = ()) -> SageMakerJob:
    return load_job(None, {**PLAIN, **flags}, [BATCH, *settings])


def look(job: SageMakerJob, root: Path = ROOT, **request: Any) -> list[Finding]:
    """What the command line says about a job; ``request``: members put into the request afterwards."""
    choice = choose(
        job.training_type, job.strategy, job.region, job.image, today=TODAY, unknown_type_ok=job.unknown_type_ok
    )
    made = create_training_job(
        job, image=choice.uri, name=training_job_name(job, NOW), code="s3://example-results/sourcedir.tar.gz"
    )
    return [*choice.findings, *offline(job, {**made, **request}, root=root, choice=choice, now=TODAY)]


def loud(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level != "note"]


# what is wrong, level and code of the finding, a text of its message
TYPED: dict[str, tuple[dict[str, Any], tuple[str, ...], str, str]] = {
    # name, places, role
    "name with a space": ({"name": "my job"}, (), "error service-model", "my job"),
    "role of another partition": (
        {"region": "cn-north-1", "type": "ml.g5.12xlarge"}, (), "error role-partition", "aws-cn"),
    "role and output not set": ({"role": "", "output": ""}, (), "warning placeholder", "role='', output=''"),
    "bucket of the example": ({"output": "s3://MY-BUCKET/x"}, (), "warning placeholder", "s3://MY-BUCKET/x"),
    "output on this machine": ({"output": "runs/"}, (), "error output-uri", "runs/"),
    "checkpoints on this machine": ({"checkpoints": "/opt/ml/x"}, (), "error checkpoints-uri", "/opt/ml/x"),
    "checkpoints inside the data": (
        {"checkpoints": "s3://example-data/camvid/checkpoints/"}, (), "warning results-in-data", "camvid/checkpoints/"),
    "checkpoints where the results go": (
        {"checkpoints": "s3://example-results/jobs/"}, (), "warning checkpoints-above", "the same as output="),
    "checkpoints above the data": ({"checkpoints": "s3://example-data/"}, (), "error checkpoints-above", "above data.train="),
    # times
    "hours without their letter": ({"max_run": "6"}, (), "warning max-run-short", "6 s"),
    "forty days": ({"max_run": "40d"}, (), "error max-run-range", "40 days"),
    "more than the quota": ({"max_run": "6d"}, (), "warning max-run-quota", "6 days"),
    "spot without a longest wait": ({"spot": True}, (), "error spot-without-wait", "max_wait"),
    "spot that waits less than it runs": (
        {"spot": True, "max_run": "6h", "max_wait": "1h"}, (), "error spot-wait-short", "3600"),
    "spot without checkpoints": (
        {"spot": True, "max_wait": "2d", "checkpoints": None}, (), "error spot-without-checkpoints", "spot=true"),
    "spot that does not resume": (
        {"spot": True, "max_wait": "2d"}, ("checkpoint.resume=false",), "error resume-off", "checkpoint.resume=false"),
    "a wait without spot": ({"max_wait": "2d"}, (), "error wait-without-spot", "172800"),
    "warm pool of spot machines": (
        {"spot": True, "max_wait": "2d", "warm_pool": "30m"}, (), "error warm-pool-spot", "1800"),
    "warm pool of groups": ({**HETERO, "warm_pool": "30m"}, (), "error warm-pool-groups", "gpu, cpu"),
    "warm pool over night": ({"warm_pool": "5h"}, (), "error warm-pool-range", "18000"),
    "retries without checkpoints": (
        {"retries": 3, "checkpoints": None}, (), "warning retries-without-checkpoints", "retries=3"),
    "profiler interval": ({"profile_ms": 300}, (), "error profiler-interval", "300"),
    "profiler region": ({"region": "eu-central-2", "type": "ml.g6.12xlarge"}, (), "warning profiler-region", "eu-central-2"),
    # data
    "no data": ({"data": None}, (), "error data-missing", "camvid"),
    "prefix without slash": ({"data": ["s3://example-data/camvid"]}, (), "warning prefix-slash", "camvid-old/"),
    "bucket in capitals": ({"data": ["s3://Example/camvid/"]}, (), "error channel-uri", "s3://Example/camvid/"),
    "channel that no one takes": (
        {"data": ["images=s3://example-data/a/", "masks=s3://example-data/b/"]}, (), "error channel-train", "images, masks"),
    "data nobody reads": ({"config": "configs/scenes.yaml"}, (), "warning data-unused", "data.train"),
    "root of this machine": ({}, ("data.root=/home/me/CamVid",), "warning data-twice", "/home/me/CamVid"),
    "FastFile for small files": ({"mode": "FastFile"}, (), "warning fastfile-small-files", "FastFile"),
    "FSx with FastFile": ({**FSX, "mode": "FastFile"}, (), "error fsx-fastfile", "FastFile"),
    "FSx path without mount name": (
        {**FSX, "fsx": "fs-0123456789abcdef0:/datasets-of-mine/camvid"}, (), "error fsx-path", "datasets-of-mine"),
    "FSx path of this machine": (
        {**FSX, "fsx": "fs-0123456789abcdef0:/mnt/camvid"}, (), "warning fsx-path", "/mnt/camvid"),
    "FSx without VPC": ({**FSX, "subnets": None, "security_groups": None}, (), "error fsx-without-vpc", "fs-0123456789"),
    "FSx in two subnets": (
        {**FSX, "subnets": ["subnet-0abc1234", "subnet-0abc1235"]}, (), "warning fsx-subnets", "subnet-0abc1235"),
    "security groups without subnets": ({"security_groups": ["sg-0abc1234"]}, (), "error vpc-half", "sg-0abc1234"),
    "volume smaller than the data": (
        {"type": "ml.p3.8xlarge", "data_gb": 400.0, "region": "us-east-1"}, (), "error volume-small", "400"),
    "volume larger than the disks": ({"volume_gb": 5000}, (), "error volume-over-nvme", "5000"),
    # machines
    "no machine": ({"instances": 0}, (), "error instances-range", "instances=0"),
    "unknown type": ({"type": "ml.g5.12xlage"}, ("train.batch_size=16",), "error unknown-type", "ml.g5.12xlage"),
    "unknown type that is let through": (
        {"type": "ml.q5.12xlarge", "unknown_type_ok": True}, (), "warning unknown-type", "ml.q5.12xlarge"),
    "type without CUDA": ({"type": "ml.trn1.32xlarge"}, (), "error unfit-type", "Trainium"),
    "region without its hyphens": ({"region": "useast1"}, (), "error region-name", "useast1"),
    "region that is not in the table": ({"region": "us-east-9"}, (), "warning image-region", "us-east-9"),
    "one process on many hosts": ({"strategy": "single"}, (), "error strategy-hosts", "2 hosts"),
    "one process on four GPUs": ({"strategy": "single", "instances": 1}, (), "warning gpus-idle", "4 GPUs"),
    "smddp on A10G": ({"strategy": "smddp"}, (), "error smddp-type", "ml.g5.12xlarge"),
    "smddp on one host": (
        {"strategy": "smddp", "type": "ml.p4d.24xlarge", "instances": 1}, (), "warning smddp-single-host", "one ml.p4d"),
    "image of the public registry": (
        {"image": "public.ecr.aws/deep-learning-containers/pytorch:2.14-cu133-amzn2023-sagemaker"}, (),
        "error image-registry", "public.ecr.aws"),
    "AWS's image by the account of other regions": (
        {"region": "af-south-1", "type": "ml.g4dn.12xlarge",
         "image": "763104351884.dkr.ecr.af-south-1.amazonaws.com/pytorch:2.14-cu133-amzn2023-sagemaker"}, (),
        "error image-account", "626614931356"),
    "image that serves": (
        {"image": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-gpu-py312"}, (),
        "error image-not-training", "pytorch-inference"),
    "weights on this machine": ({}, ("model.init=runs/street",), "error weights-missing", "model.init='runs/street'"),
    "weights that the image may hold": (
        {"image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"}, ("model.init=/srv/a.pth",),
        "warning weights-missing", "unless 123456789012"),
    "a tracker on this machine": ({}, ("log.mlflow=http://localhost:5000",), "error mlflow-here", "localhost:5000"),
    "architecture that nobody knows": ({}, ("model.arch=unett",), "error model-name", "did you mean 'unet'"),
    "classes without names": ({}, ("data.layout=folders",), "warning classes-unknown", "data.layout=folders has no class names"),
    "a copy of an image for EC2": (
        {"image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1-ec2"}, (), "warning image-not-training", "mine:1-ec2"),
    "image of another region": (
        {"image": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1"}, (), "error image-other-region", "eu-west-1"),
    "two groups, none trains": (
        {**HETERO, "groups": ["gpu=ml.g5.12xlarge*2", "cpu=ml.c5.4xlarge"]}, ("train.batch_size=24",), "error group-train", "gpu, cpu"),
    "two types train": (
        {**HETERO, "groups": ["gpu=ml.g5.12xlarge*2:train", "new=ml.g6.12xlarge:train"]}, ("train.batch_size=12",),
        "error group-types", "ml.g6.12xlarge"),
    "unknown type of a helper": (
        {**HETERO, "groups": ["gpu=ml.g5.12xlarge*2:train", "cpu=ml.c5.4xlage"]}, (), "error unknown-type", "ml.c5.4xlage"),
    # training
    "unknown setting": ({}, ("train.batchsize=8",), "error config", "'train.batchsize'"),
    "config that is not there": ({"config": "configs/camvid.yaml"}, (), "error config", "configs/camvid.yaml"),
    "muon with fsdp": (
        {"strategy": "fsdp", "type": "ml.p4d.24xlarge"}, ("optim.name=muon",), "error config", "optim.name=muon"),
    "batch smaller than the ranks": ({}, ("train.batch_size=6",), "error batch-small", "8 ranks"),
    "batch that does not divide": ({}, ("train.batch_size=18",), "warning batch-uneven", "18"),
    "CPUs on GPU machines": ({}, ("train.device=cpu",), "warning device-cpu", "ml.g5.12xlarge"),
    "GPU on CPU machines": (
        {"type": "ml.c5.4xlarge"}, ("train.device=cuda",), "error device-cuda", "ml.c5.4xlarge"),
    "bf16 on T4": ({"type": "ml.g4dn.12xlarge"}, ("train.precision=bf16",), "warning precision", "T4"),
    "tf32 on T4": ({"type": "ml.g4dn.12xlarge"}, ("train.precision=tf32",), "error precision", "no units"),
    "gloo on GPUs": ({}, ("parallel.backend=gloo",), "warning backend-gloo", "gloo"),
    "more workers than cores": ({}, ("data.workers=64",), "warning workers-many", "64"),
    "run folder of this machine": ({}, ("out=/home/me/run",), "warning out", "/home/me/run"),
    "tracker on the machine": ({}, ("log.mlflow=file:./mlruns",), "warning mlflow-local", "file:./mlruns"),
    "W&B without a key": ({}, ("log.wandb=streets",), "warning wandb-key", "WANDB_API_KEY"),
    "class names that are not sent": (
        {}, ("data.classes=/home/me/classes.txt",), "error file-not-bundled", "/home/me/classes.txt"),
    # hyperparameters, environment, metrics, tags
    "apostrophe": ({}, ("data.train_split=driver's",), "error hyperparameter-shell", "driver's"),
    "switch as a text": ({}, ("train.compile='True'",), "error hyperparameter-boolean", "'True'"),
    "variable of the toolkit": ({"environment": ["SM_NUM_GPUS=4"]}, (), "warning environment-reserved", "SM_NUM_GPUS"),
    "secret": ({"environment": ["WANDB_API_KEY=abc"]}, (), "warning secret", "WANDB_API_KEY"),
    "tag of AWS": ({"tags": ["aws:team=vision"]}, (), "error tag", "aws:team"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", TYPED)
def test_a_mistake_is_found_by_its_name_and_nothing_else_is(mistake: str) -> None:
    flags, settings, kind, value = TYPED[mistake]
    found = loud(look(the_job(flags, settings)))
    others = {"image-unpatched", "retired-type"}  # of the old types that some mistakes need
    if "groups" in flags:
        others.add("group-idle")
    if kind == "error role-partition":
        others.add("region-type")
    assert {f"{f.level} {f.code}" for f in found if f.code not in others} == {kind}, found
    [*_, finding] = [f for f in found if f.code == kind.split()[1]]
    assert value in finding.message
    assert finding.cure or finding.code == "service-model"


# Mistakes that a job file or a program can hold, but no flag.
WRITTEN: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "path of an EFS": (
        {"subnets": ("subnet-0abc1234",), "security_groups": ("sg-0abc1234",),
         "data": (Channel("train", file_system="fs-0abc1234", path="camvid", file_system_type="EFS"),)},
        {}, "error fsx-path", "'camvid'"),
    "sharded by key": (
        {"data": (Channel("train", "s3://example-data/camvid/", distribution="ShardedByS3Key"),)},
        {}, "error channel-sharded", "ShardedByS3Key"),
    "grouped and ungrouped channels": (
        {"groups": (Group("gpu", "ml.g5.12xlarge", 2, True), Group("cpu", "ml.c5.4xlarge")),
         "data": (Channel("train", "s3://example-data/camvid/", groups=("gpu",)), Channel("more", "s3://example-data/b/"))},
        {}, "error channel-groups-mixed", "data.more"),
    "grouped S3 beside FSx": (
        {"groups": (Group("gpu", "ml.g5.12xlarge", 2, True), Group("cpu", "ml.c5.4xlarge")),
         "subnets": ("subnet-0abc1234",), "security_groups": ("sg-0abc1234",),
         "data": (Channel("train", file_system="fs-0123456789abcdef0", path="/fsx/a"),
                  Channel("more", "s3://example-data/b/", groups=("cpu",)))},
        {}, "error channel-groups-mixed", "data.more"),
    "group that is not there": (
        {"groups": (Group("gpu", "ml.g5.12xlarge", 2, True), Group("cpu", "ml.c5.4xlarge")),
         "data": (Channel("train", "s3://example-data/camvid/", groups=("gpu", "gpus")),)},
        {}, "error channel-group", "'gpus'"),
    "data for the helpers alone": (
        {"groups": (Group("gpu", "ml.g5.12xlarge", 2, True), Group("cpu", "ml.c5.4xlarge")),
         "data": (Channel("train", "s3://example-data/camvid/", groups=("cpu",)),)},
        {}, "error channel-group", "cpu"),
    "metric without a group": ({"metrics": (Metric("loss", "loss [0-9.]+"),)}, {}, "error metric-regex", "loss [0-9.]+"),
    "metric that is no expression": ({"metrics": (Metric("loss", "loss ([0-9."),)}, {}, "error metric-regex", "loss ([0-9."),
    "a member that AWS does not know": ({}, {"InstanceType": "ml.g5.12xlarge"}, "error service-model", "InstanceType"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRITTEN)
def test_a_mistake_in_a_file_is_found(mistake: str) -> None:
    fields, members, kind, value = WRITTEN[mistake]
    if kind.endswith("service-model"):
        pytest.importorskip("botocore")
    found = loud(look(replace(the_job({}), **fields), **members))
    found = [f for f in found if f.code != "group-idle"]  # of every job in which a group does not train
    assert {f"{f.level} {f.code}" for f in found} == set(kind.split(", ")), found
    assert value in found[-1].message


def test_secrets_are_known_by_their_form() -> None:
    secrets = ["hf_" + "aB3" * 12, "ghp_" + "x1" * 18, "github_pat_" + "x1" * 20, "xoxb-1234567890-abc"]
    for value in (*secrets, "AKIA" + "A1" * 8, "https://me:pass@host/simple"):
        assert looks_secret("PLACE", value), value
    for value in ("https://host/simple", "hf_home", ""):
        assert not looks_secret("PLACE", value), value
    assert looks_secret("WANDB_API_KEY", "abc")
    assert not looks_secret("AWS_ACCESS_KEY_ID", "abc")
    [finding] = [f for f in look(the_job({"environment": [f"HUB={secrets[0]}"]})) if f.code == "secret"]
    assert secrets[0] not in finding.message


def test_a_private_registry_that_the_vpc_reaches_is_no_mistake() -> None:
    job = the_job({**VPC, "image": "registry.example.com/mine:1"})
    assert "image-registry" in {f.code for f in loud(look(job))}
    algorithm = {"TrainingImage": job.image, "TrainingInputMode": "File",
                 "TrainingImageConfig": {"TrainingRepositoryAccessMode": "Vpc"}}  # fmt: skip
    assert not loud(look(job, AlgorithmSpecification=algorithm))


# Sound jobs: flags, settings, and the warnings that are no false alarm.
SOUND: dict[str, tuple[dict[str, Any], tuple[str, ...], set[str]]] = {
    "one host without data": ({"config": "configs/scenes.yaml", "instances": 1, "data": None, "data_gb": None}, (), set()),
    "one GPU": ({"strategy": "single", "instances": 1, "type": "ml.g6.xlarge"}, (), set()),
    "FSx and smddp": (
        {**FSX, "strategy": "smddp", "type": "ml.p4d.24xlarge"}, (), {"image-unpatched"}),
    "FSx whose mount name AWS drew": ({**FSX, "fsx": "fs-0123456789abcdef0:/x7wzhbev/camvid"}, (), set()),
    "spot": ({"spot": True, "max_run": "6h", "max_wait": "12h", "retries": 3}, (), set()),
    "groups": (HETERO, (), {"group-idle"}),
    "a role by its name": ({"role": "Trainer"}, (), set()),
    "results in the data's bucket": ({"output": "s3://example-data/", "checkpoints": "s3://example-data/runs/a/"}, (), set()),
    "shards by FastFile": ({"mode": "FastFile", "data_gb": 5000.0}, ("data.layout=shards",), set()),
    "warm pool, tags, variables": (
        {"warm_pool": "30m", "tags": ["team=vision 1"], "environment": ["NCCL_DEBUG=INFO", "TOKENIZERS_PARALLELISM=false"]},
        ("data.classes=[road, sky]", "loss.terms=[ce, dice]", "train.compile=true"), set()),
    "the machines of the first command": (
        {"type": "ml.p3.16xlarge", "instances": 5, "max_run": "5d"}, ("train.batch_size=80",),
        {"retired-type", "image-unpatched"}),
    "weights from a channel": (
        {"data": ["train=s3://example-data/camvid/", "weights=s3://example-data/street/"]},
        ("model.init=/opt/ml/input/data/weights",), set()),
    "weights without other data": (
        {"config": "configs/scenes.yaml", "instances": 1, "data": ["weights=s3://example-data/street/"]},
        ("model.init=/opt/ml/input/data/weights/a.pth",), set()),
    "classes with names": ({}, ("data.layout=folders", "data.classes=[road, sky]"), set()),
    "CPUs, profiler off": ({"type": "ml.c5.4xlarge", "profile_ms": 0}, (), set()),
    "fsdp": ({"strategy": "fsdp", "type": "ml.p4d.24xlarge"}, ("optim.name=adamw", "train.channels_last=auto"), set()),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_job_is_let_through(name: str) -> None:
    flags, settings, warnings = SOUND[name]
    found = loud(look(the_job(flags, settings)))
    assert {f.code for f in found} == warnings, found
    assert not [f for f in found if f.level == "error"]


@pytest.mark.parametrize("path", sorted((ROOT / "configs/jobs").glob("sagemaker*.yaml")), ids=lambda path: path.stem)
def test_the_jobs_of_this_repository_lack_nothing_but_their_names(path: Path) -> None:
    found = loud(look(load_job(path, {})))
    need = {"helpers-need"} if "hetero" in path.stem else set()
    assert {f.code for f in found} - {"image-unpatched"} == {"placeholder", *need}, found


THE_IMAGE = choose("ml.g5.12xlarge", "ddp", "us-east-1", today=TODAY)


@pytest.mark.parametrize(
    ("files", "code", "value"),
    [
        ({"train.py": b"import os\nprint('x'\n"}, "code-syntax", "train.py, line 2"),
        ({"train.py": b"", "requirements.txt": b"torch==2.5.1\n"}, "requirement-torch", "torch==2.5.1"),
        ({"train.py": b"", "requirements.txt": b"smdistributed-dataparallel\n"}, "requirement-smddp", "smdistributed"),
        ({"train.py": b"", "requirements.txt": b"-e ../mine\n"}, "requirement-path", "-e ../mine"),
        ({"train.py": b"", "requirements.txt": b"--constraint mine.txt\n"}, "requirement-path", "--constraint"),
        ({"train.py": b"", "requirements.txt": b"mine @ file:///home/me\n"}, "requirement-path", "file:///home/me"),
        ({"train.py": b"", "requirements.txt": b"git+https://example.com/x\n"}, "requirement-git", "git+https"),
        (
            {"train.py": b"", "requirements.txt": b"--index-url https://me:pass@host/simple\n"},
            "requirement-secret",
            "https://(hidden)@host",
        ),
    ],
)
def test_code_that_would_fail_there_is_found_here(files: dict[str, bytes], code: str, value: str) -> None:
    found = list(bundle_checks(SageMakerJob(), files, THE_IMAGE))
    assert [finding.code for finding in found] == [code]
    assert value in found[0].message


def test_requirements_that_the_image_meets_are_no_mistake() -> None:
    text = b"# mine\ntorch>=2.0\nTorch\nscipy>=1.10 ; python_version > '3.8'\nalbumentations[extra]==2.0.8\n\n"
    assert not list(bundle_checks(SageMakerJob(), {"train.py": b"", "requirements.txt": text}, THE_IMAGE))
    unknown = ImageChoice(None, "mine:1", "asked for")
    assert [f.level for f in bundle_checks(SageMakerJob(), {"requirements.txt": b"torch==2.5.1"}, unknown)] == [
        "warning"
    ]


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [("==2.8.0", True), ("==2.8", True), ("==2.8.*", True), (">=2.0,<3", True), ("~=2.7", True), ("!=2.8.0", False),
     ("~=2.7.0", False), ("<2.8", False), (">2.8", False), ("==2.8.0+cu121", False), (">=2.8.1", False)],
)  # fmt: skip
def test_version_ranges(wanted: str, fits: bool) -> None:
    assert admits(wanted, "2.8.0") is fits


def test_what_a_shell_would_make_of_a_value() -> None:
    """Held against a real shell: what passes arrives as it is, or without its quotes."""
    for text in ("a b", "['road', 'sky']", '{"a": 1}', "x=1,y=2", "[[0.6, 0.67]]", 'it "is" so', "#5", "a\\ b"):
        assert not shell_reads(text)
        assert subprocess.run(["sh", "-c", f"echo -- {text}"], capture_output=True).returncode == 0
    for text in ("driver's", "a;b", "$HOME", "a|b", "f(x)", 'say "x', "a>b", "`id`", '"$HOME"', "a\\"):
        assert shell_reads(text)


def test_the_most_that_it_can_cost() -> None:
    job = SageMakerJob(instances=5, type="ml.p4d.24xlarge", max_run=2 * 3600, price=10.0)
    assert cost_ceiling(job)[0] == 100
    dollars, words = cost_ceiling(
        replace(job, groups=(Group("a", "ml.p4d.24xlarge", 2), Group("b", "ml.c5.xlarge", 3)))
    )
    # --price is that of the machines that train; the others keep the table's: 3 x $0.204 for two hours.
    assert dollars == 2 * 2 * 10 + round(3 * 2 * 0.204, 2)
    dollars, words = cost_ceiling(
        replace(job, groups=(Group("a", "ml.p4d.24xlarge", 2, True), Group("b", "ml.c5n.xlarge")))
    )
    assert dollars is None
    words = cost_ceiling(SageMakerJob(type="ml.p3.16xlarge", max_run=3600))[1]
    assert "2021-11-29" in words  # the last price of p3 that anyone quoted, not that of the table's date
    assert cost_ceiling(replace(job, warm_pool=1800))[0] == 125
    assert cost_ceiling(replace(job, warm_pool=1800, max_run=0))[0] == 25  # a mistake that is said elsewhere
    assert "spot" in cost_ceiling(replace(job, spot=True))[1]
    assert cost_ceiling(replace(job, price=None, type="ml.unknown.xlarge"))[0] is None
    assert "eu-west-1" in cost_ceiling(replace(job, price=None, region="eu-west-1"))[1]


def test_what_is_good_to_know_is_a_note() -> None:
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    job = the_job({"data_gb": None, **VPC}, ("model.arch=unet", "model.encoder_weights=imagenet"))
    notes = {finding.code for finding in look(job) if finding.level == "note"}
    notes.discard("native-decoder")  # where none is built here
    assert notes == {"data-size-unknown", "plan-without-run", "profiler-closed", "vpc-internet", "weights-download"}
    choice = choose(job.training_type, job.strategy, job.region, today=TODAY)
    later = offline(job, {}, root=ROOT, choice=choice, now=date(2028, 1, 1))
    assert "prices-old" in {finding.code for finding in later}


@pytest.mark.parametrize(
    ("model", "given", "found"),
    [
        (("model.arch=fpn", "model.encoder_weights=imagenet"), {"network_isolation": True}, {"error"}),
        (
            ("model.arch=fpn", "model.encoder=tu-pvt_v2_b0", "model.encoder_weights=imagenet"),
            {"network_isolation": True, "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"},
            {"warning"},
        ),
        (("model.arch=fpn", "model.encoder_weights=imagenet"), VPC, {"note"}),
        (("model.arch=fpn", "model.encoder_weights=imagenet"), {}, set()),
        (("model.arch=fpn", "model.encoder_weights=/opt/ml/input/data/w/a.pth"), {"network_isolation": True}, set()),
        ((), {"network_isolation": True}, set()),
    ],
)
def test_weights_that_must_be_fetched_without_a_network_are_found(
    model: tuple[str, ...], given: dict[str, Any], found: set[str]
) -> None:
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    levels = [finding.level for finding in look(the_job(given, model)) if finding.code == "weights-download"]
    assert levels == list(found)


def test_what_cannot_be_checked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("yaml", "pydantic", "botocore", "botocore.loaders", "segtrain.config"):
        monkeypatch.setitem(sys.modules, package, None)
    from launch.platforms.sagemaker import service_model

    service_model._model.cache_clear()
    found = look(the_job({"profile_ms": 300}))
    service_model._model.cache_clear()
    assert [f.code for f in loud(found)] == ["profiler-interval"]
    assert {f.code for f in found if f.level == "note"} >= {"config-unchecked", "service-model-unchecked"}


def test_a_repository_elsewhere(tmp_path: Path) -> None:
    """The code that is looked at is the code that would travel: a script broken there is found there."""
    for name in ("segtrain/__init__.py", "docker/sagemaker/train.py", "configs/scenes.yaml", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    job = the_job({"config": "configs/scenes.yaml", "data": None}, ("train.batch_size=8",))
    (tmp_path / "docker/sagemaker/train.py").write_text("def main(:\n")
    assert {f.code for f in loud(look(job, root=tmp_path))} == {"code-syntax"}
    (tmp_path / "docker/sagemaker/train.py").unlink()
    assert {f.code for f in loud(look(job, root=tmp_path))} == {"bundle"}
