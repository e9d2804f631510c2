"""Captures the requests of AWS's own SDK:   python tests/contracts/capture.py, in an environment with the extra `contract`

Writes one NAME.json per request beside itself. Nothing is sent: the client and the upload are replaced. Two files are
not from `cases`; they were captured earlier, ``training_job_v3_profiler.json`` with version 3 of the SDK.
tests/platforms/test_contracts.py compares them with segtrain's requests.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BUCKET, REGION, ROLE = "seg-out", "us-east-1", "arn:aws:iam::123456789012:role/SMRole"
STAMP = "2026-11-21-03-56-05-089"
# Images by address: the SDK's own table ends at 2.8.0, and at 2.2.0 with SMDDP.
WITH_SMDDP = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker"
NEWEST = "public.ecr.aws/deep-learning-containers/pytorch:2.13-cu133-amzn2023-sagemaker"
KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/large-models"
TORCHRUN = {"torch_distributed": {"enabled": True}}
SMDDP = {"smdistributed": {"dataparallel": {"enabled": True}}}


def cases() -> dict[str, tuple[dict[str, Any], Any]]:
    """Name: the estimator's arguments, and its channels."""
    from sagemaker.debugger import ProfilerConfig
    from sagemaker.inputs import FileSystemInput, TrainingInput
    from sagemaker.instance_group import InstanceGroup

    half = {
        "profiler_config": ProfilerConfig(system_monitor_interval_millis=500),
        "debugger_hook_config": False,
    }
    gpu, cpu = InstanceGroup("gpu", "ml.p4d.24xlarge", 2), InstanceGroup("cpu", "ml.c5.4xlarge", 1)
    on_gpu = {"train": TrainingInput("s3://seg-data/city/", instance_groups=["gpu"])}
    fsx = FileSystemInput("fs-0123456789abcdef0", "FSxLustre", "/abcdmnt/city", "ro")
    network = {"subnets": ["subnet-0abc1234"], "security_group_ids": ["sg-0abc1234", "sg-0abc1235"]}
    two = {"instance_type": "ml.p4d.24xlarge", "instance_count": 2}
    return {
        "v2_ddp_s3": (
            {
                **two,
                **half,
                "distribution": TORCHRUN,
                "image_uri": None,
                "framework_version": "2.8.0",
                "py_version": "py312",
            },
            {"train": "s3://seg-data/city/", "val": "s3://seg-data/city-val/"},
        ),
        "v2_ddp_fsx": ({**two, **half, **network, "distribution": TORCHRUN}, {"train": fsx}),
        "v2_smddp_s3_spot": (
            {
                **two,
                "image_uri": WITH_SMDDP,
                "distribution": SMDDP,
                "profiler_config": ProfilerConfig(system_monitor_interval_millis=1000),
                "use_spot_instances": True,
                "max_wait": 172800,
                "checkpoint_s3_uri": "s3://seg-out/ckpt/run-1",
                "checkpoint_local_path": "/opt/ml/checkpoints",
                "max_retry_attempts": 5,
            },
            {"train": TrainingInput("s3://seg-data/city/", distribution="ShardedByS3Key")},
        ),
        "v2_single_no_profiler": (
            {
                "instance_type": "ml.g5.xlarge",
                "instance_count": 1,
                "volume_size": 225,
                "disable_profiler": True,
                "debugger_hook_config": False,
            },
            {"train": "s3://seg-data/city/"},
        ),
        "v2_ddp_fastfile_warm_pool": (
            {
                **two,
                **half,
                "distribution": TORCHRUN,
                "keep_alive_period_in_seconds": 1800,
                "tags": [{"Key": "team", "Value": "seg"}],
            },
            {"train": TrainingInput("s3://seg-data/city/", input_mode="FastFile")},
        ),
        "v2_hetero_smddp": (
            {
                **half,
                "image_uri": WITH_SMDDP,
                "instance_groups": [gpu, cpu],
                "distribution": {**SMDDP, "instance_groups": [gpu]},
            },
            on_gpu,
        ),
        "v2_hetero_ddp": (
            {
                **half,
                "instance_groups": [gpu, cpu],
                "distribution": {**TORCHRUN, "instance_groups": [gpu]},
            },
            on_gpu,
        ),
        "v2_protected": (
            {
                **half,
                **network,
                "instance_type": "ml.p3dn.24xlarge",
                "instance_count": 2,
                "image_uri": WITH_SMDDP,
                "distribution": TORCHRUN,
                "volume_kms_key": KEY,
                "output_kms_key": "alias/mine",
                "enable_network_isolation": True,
                "encrypt_inter_container_traffic": True,
                "enable_remote_debug": True,
                "training_plan": PLAN,
            },
            {"train": "s3://seg-data/city/"},
        ),
        # Neither profiler nor debugger is said a word about: what the SDK does by itself.
        "v2_no_data": (
            {**two, "distribution": TORCHRUN, "environment": {"NCCL_DEBUG": "INFO"}},
            None,
        ),
    }


class Client:
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.request: dict[str, Any] = {}

    def create_training_job(self, **request: Any) -> dict[str, str]:
        self.request = request
        return {"TrainingJobArn": "arn:aws:sagemaker:us-east-1:123456789012:training-job/x"}


def capture(name: str, arguments: dict[str, Any], channels: Any) -> dict[str, Any]:
    import boto3
    from sagemaker import Session, estimator
    from sagemaker.fw_utils import UploadedCode
    from sagemaker.pytorch import PyTorch

    job, client = f"{name.replace('_', '-')}-{STAMP}", Client()
    code = f"s3://{BUCKET}/{job}/source/sourcedir.tar.gz"
    estimator.tar_and_upload_dir = lambda *_, **__: UploadedCode(
        s3_prefix=code, script_name="train.py"
    )
    session = Session(
        boto3.Session("x", "x", region_name=REGION),
        sagemaker_client=client,
        sagemaker_runtime_client=client,
        default_bucket=BUCKET,
    )
    with tempfile.TemporaryDirectory() as source:
        Path(source, "train.py").write_text("")
        PyTorch(
            **{"image_uri": NEWEST, **arguments},
            entry_point="train.py",
            source_dir=source,
            role=ROLE,
            sagemaker_session=session,
            output_path=f"s3://{BUCKET}/jobs",
            hyperparameters={
                "config": "configs/scenes.yaml",
                "train.batch_size": 32,
                "data.flip": 0.0,
                "train.compile": True,
            },
            metric_definitions=[{"Name": "val:miou_percent", "Regex": "mIoU ([0-9.]+)%"}],
        ).fit(channels, wait=False, job_name=job)
    return client.request


def main() -> None:
    # no report of its use to AWS
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as settings:
        settings.write(
            "SchemaVersion: '1.0'\nSageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}\n"
        )
        settings.flush()
        os.environ["SAGEMAKER_USER_CONFIG_OVERRIDE"] = settings.name
        os.environ["SAGEMAKER_SUPPRESS_V2_WARNING"] = "1"
        for name, (arguments, channels) in cases().items():
            request = capture(name, arguments, channels)
            HERE.joinpath(f"{name}.json").write_text(
                json.dumps(request, indent=4) + "\n", encoding="utf-8"
            )
            print(f"{name}.json")


if __name__ == "__main__":
    main()
