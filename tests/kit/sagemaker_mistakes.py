"""Mistakes in the description of a SageMaker job. Their findings: tests/golden/findings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

from launch.core.findings import Finding
from launch.platforms.sagemaker.images import choose
from launch.platforms.sagemaker.job import SageMakerJob, load_job
from launch.platforms.sagemaker.preflight.offline import offline
from launch.platforms.sagemaker.request import create_training_job, training_job_name

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
HETERO = {
    "instances": None,
    "type": None,
    "groups": ["gpu=ml.g5.12xlarge*2:train", "cpu=ml.c5.4xlarge*1"],
}


def the_job(flags: Mapping[str, Any], settings: tuple[str, ...] = ()) -> SageMakerJob:
    return load_job(None, {**PLAIN, **flags}, [BATCH, *settings])


def look(job: SageMakerJob, **request: Any) -> list[Finding]:
    """What the command line says about a job; ``request``: members put into the request
    afterwards.
    """
    choice = choose(
        job.training_type,
        job.strategy,
        job.region,
        job.image,
        today=TODAY,
        unknown_type_ok=job.unknown_type_ok,
    )
    made = create_training_job(
        job,
        image=choice.uri,
        name=training_job_name(job, NOW),
        code="s3://example-results/sourcedir.tar.gz",
    )
    return [
        *choice.findings,
        *offline(job, {**made, **request}, choice=choice, now=TODAY),
    ]


# what is wrong: flags, settings
TYPED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # name, places, role
    "name with a space": ({"name": "my job"}, ()),
    "role of another partition": (
        {"region": "cn-north-1", "type": "ml.g5.12xlarge"}, ()),
    "role and output not set": ({"role": "", "output": ""}, ()),
    "bucket of the example": ({"output": "s3://MY-BUCKET/x"}, ()),
    "output on this machine": ({"output": "runs/"}, ()),
    "checkpoints on this machine": ({"checkpoints": "/opt/ml/x"}, ()),
    "checkpoints inside the data": (
        {"checkpoints": "s3://example-data/camvid/checkpoints/"}, ()),
    "checkpoints where the results go": (
        {"checkpoints": "s3://example-results/jobs/"}, ()),
    "checkpoints above the data": ({"checkpoints": "s3://example-data/"}, ()),
    # times
    "hours without their letter": ({"max_run": "6"}, ()),
    "forty days": ({"max_run": "40d"}, ()),
    "more than the quota": ({"max_run": "6d"}, ()),
    "spot without a longest wait": ({"spot": True}, ()),
    "spot that waits less than it runs": (
        {"spot": True, "max_run": "6h", "max_wait": "1h"}, ()),
    "spot without checkpoints": (
        {"spot": True, "max_wait": "2d", "checkpoints": None}, ()),
    "spot that does not resume": (
        {"spot": True, "max_wait": "2d"}, ("checkpoint.resume=false",)),
    "a wait without spot": ({"max_wait": "2d"}, ()),
    "warm pool of spot machines": (
        {"spot": True, "max_wait": "2d", "warm_pool": "30m"}, ()),
    "warm pool of groups": ({**HETERO, "warm_pool": "30m"}, ()),
    "warm pool over night": ({"warm_pool": "5h"}, ()),
    "retries without checkpoints": (
        {"retries": 3, "checkpoints": None}, ()),
    "profiler interval": ({"profile_ms": 300}, ()),
    "profiler region": ({"region": "eu-central-2", "type": "ml.g6.12xlarge"}, ()),
    # data
    "no data": ({"data": None}, ()),
    "prefix without slash": ({"data": ["s3://example-data/camvid"]}, ()),
    "bucket in capitals": ({"data": ["s3://Example/camvid/"]}, ()),
    "channel that no one takes": (
        {"data": ["images=s3://example-data/a/", "masks=s3://example-data/b/"]}, ()),
    "data nobody reads": ({"config": "configs/scenes.yaml"}, ()),
    "root of this machine": ({}, ("data.root=/home/me/CamVid",)),
    "FastFile for small files": ({"mode": "FastFile"}, ()),
    "FSx with FastFile": ({**FSX, "mode": "FastFile"}, ()),
    "FSx path without mount name": (
        {**FSX, "fsx": "fs-0123456789abcdef0:/datasets-of-mine/camvid"}, ()),
    "FSx path of this machine": (
        {**FSX, "fsx": "fs-0123456789abcdef0:/mnt/camvid"}, ()),
    "FSx without VPC": ({**FSX, "subnets": None, "security_groups": None}, ()),
    "FSx in two subnets": (
        {**FSX, "subnets": ["subnet-0abc1234", "subnet-0abc1235"]}, ()),
    "security groups without subnets": ({"security_groups": ["sg-0abc1234"]}, ()),
    "volume smaller than the data": (
        {"type": "ml.p3.8xlarge", "data_gb": 400.0, "region": "us-east-1"}, ()),
    "volume larger than the disks": ({"volume_gb": 5000}, ()),
    # machines
    "no machine": ({"instances": 0}, ()),
    "unknown type": ({"type": "ml.g5.12xlage"}, ("train.batch_size=16",)),
    "unknown type that is let through": (
        {"type": "ml.q5.12xlarge", "unknown_type_ok": True}, ()),
    "type without CUDA": ({"type": "ml.trn1.32xlarge"}, ()),
    "region without its hyphens": ({"region": "useast1"}, ()),
    "region that is not in the table": ({"region": "us-east-9"}, ()),
    "one process on many hosts": ({"strategy": "single"}, ()),
    "one process on four GPUs": ({"strategy": "single", "instances": 1}, ()),
    "smddp on A10G": ({"strategy": "smddp"}, ()),
    "smddp on one host": (
        {"strategy": "smddp", "type": "ml.p4d.24xlarge", "instances": 1}, ()),
    "image of the public registry": (
        {"image": "public.ecr.aws/deep-learning-containers/pytorch:2.14-cu133-amzn2023-sagemaker"}, ()),
    "AWS's image by the account of other regions": (
        {"region": "af-south-1", "type": "ml.g4dn.12xlarge",
         "image": "763104351884.dkr.ecr.af-south-1.amazonaws.com/pytorch:2.14-cu133-amzn2023-sagemaker"}, ()),
    "image that serves": (
        {"image": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-gpu-py312"}, ()),
    "weights on this machine": ({}, ("model.init=runs/street",)),
    "weights that the image may hold": (
        {"image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"}, ("model.init=/srv/a.pth",)),
    "a tracker on this machine": ({}, ("log.mlflow=http://localhost:5000",)),
    "architecture that nobody knows": ({}, ("model.arch=unett",)),
    "classes without names": ({}, ("data.layout=folders",)),
    "a copy of an image for EC2": (
        {"image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1-ec2"}, ()),
    "image of another region": (
        {"image": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1"}, ()),
    "two groups, none trains": (
        {**HETERO, "groups": ["gpu=ml.g5.12xlarge*2", "cpu=ml.c5.4xlarge"]}, ("train.batch_size=24",)),
    "two types train": (
        {**HETERO, "groups": ["gpu=ml.g5.12xlarge*2:train", "new=ml.g6.12xlarge:train"]}, ("train.batch_size=12",)),
    "unknown type of a helper": (
        {**HETERO, "groups": ["gpu=ml.g5.12xlarge*2:train", "cpu=ml.c5.4xlage"]}, ()),
    # training
    "unknown setting": ({}, ("train.batchsize=8",)),
    "config that is not there": ({"config": "configs/camvid.yaml"}, ()),
    "muon with fsdp": (
        {"strategy": "fsdp", "type": "ml.p4d.24xlarge"}, ("optim.name=muon",)),
    "batch smaller than the ranks": ({}, ("train.batch_size=6",)),
    "batch that does not divide": ({}, ("train.batch_size=18",)),
    "CPUs on GPU machines": ({}, ("train.device=cpu",)),
    "GPU on CPU machines": (
        {"type": "ml.c5.4xlarge"}, ("train.device=cuda",)),
    "bf16 on T4": ({"type": "ml.g4dn.12xlarge"}, ("train.precision=bf16",)),
    "tf32 on T4": ({"type": "ml.g4dn.12xlarge"}, ("train.precision=tf32",)),
    "gloo on GPUs": ({}, ("parallel.backend=gloo",)),
    "more workers than cores": ({}, ("data.workers=64",)),
    "run folder of this machine": ({}, ("out=/home/me/run",)),
    "tracker on the machine": ({}, ("log.mlflow=file:./mlruns",)),
    "W&B without a key": ({}, ("log.wandb=streets",)),
    "class names that are not sent": (
        {}, ("data.classes=/home/me/classes.txt",)),
    # hyperparameters, environment, metrics, tags
    "apostrophe": ({}, ("data.train_split=driver's",)),
    "switch as a text": ({}, ("train.compile='True'",)),
    "variable of the toolkit": ({"environment": ["SM_NUM_GPUS=4"]}, ()),
    "secret": ({"environment": ["WANDB_API_KEY=abc"]}, ()),
    "tag of AWS": ({"tags": ["aws:team=vision"]}, ()),
}  # fmt: skip
