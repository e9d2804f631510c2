"""A job in a notebook or a pipeline: an estimator of SageMaker's Python SDK v2 that sends the same
request as the command.

SDK v3 has no PyTorch estimator; AWS supports version 2 until 2027-07-06.
"""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.platforms.sagemaker.bundle import contents
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.job_parts import Channel
from launch.platforms.sagemaker.request import CHECKPOINTS, hyperparameters
from segtrain.errors import ConfigError

# Hyperparameters that the SDK sets itself.
OF_THE_SDK = ("submit_directory", "program", "container_log_level", "job_name", "region")
INSTALL = "pip install 'segtrain[sagemaker-sdk]' into a separate environment: it pins old packages"


def sdk() -> Any:
    """The module ``sagemaker``, version 2. Raises ConfigError."""
    try:
        import sagemaker
        import sagemaker.pytorch
    except ImportError:
        try:
            there = (
                f"SDK {importlib.metadata.version('sagemaker')} is installed, which has no "
                "PyTorch estimator"
            )
        except importlib.metadata.PackageNotFoundError:
            there = "it is not installed"
        raise ConfigError(
            f"an estimator needs SageMaker's Python SDK, version 2; {there}: {INSTALL}",
            code="sdk-missing",
        ) from None
    return sagemaker


def write_code(job: SageMakerJob, folder: Path) -> Path:
    """Write the files of the bundle to ``folder``: the source_dir of the SDK, which packs and
    uploads it.
    """
    for name, source in contents(job):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source if isinstance(source, bytes) else source.read_bytes())
    return folder


def estimator(
    job: SageMakerJob, request: Mapping[str, Any], session: Any = None, **other: Any
) -> Any:
    """The estimator of a job. ``request``: its request; ``other``: more arguments for ``PyTorch``.
    Raises ConfigError.
    """
    _refuse_what_it_cannot_say(job)
    arguments = {**_arguments(job, request), **_machines(job), **_protection(job), **other}
    if session is not None:
        arguments["sagemaker_session"] = session
    if not job.role and "role" not in other:
        arguments["role"] = sdk().get_execution_role(session)
    code = Path(tempfile.mkdtemp(prefix="segtrain-code-"))
    return sdk().pytorch.PyTorch(**{"source_dir": str(write_code(job, code)), **arguments})


def inputs(job: SageMakerJob) -> dict[str, Any]:
    """What the estimator's ``fit`` takes: a TrainingInput or FileSystemInput for each channel."""
    return {channel.name: _input(channel) for channel in job.data}


def _refuse_what_it_cannot_say(job: SageMakerJob) -> None:
    for key in ("fallbacks", "max_pending", "request"):
        if getattr(job, key):
            raise ConfigError(
                f"{key}={getattr(job, key)!r}: an estimator of SDK v2 has no such option: leave "
                f"{key} out, or send the job with launch.sagemaker.request and boto3",
                code="sdk-option",
            )


def _arguments(job: SageMakerJob, request: Mapping[str, Any]) -> dict[str, Any]:
    from sagemaker.debugger import ProfilerConfig

    algorithm = request["AlgorithmSpecification"]
    # The hyperparameters include the toolkit's settings. The SDK would derive these settings from
    # `distribution`, but its tables end at torch 2.8, and it drops the list of the instance groups
    # that train.
    parameters = hyperparameters(job, name="", code="")
    settings = {
        key: json.loads(text)
        for key, text in parameters.items()
        if key.removeprefix("sagemaker_") not in OF_THE_SDK
    }
    arguments: dict[str, Any] = {
        "entry_point": job.program,
        "role": job.role,
        "image_uri": algorithm["TrainingImage"],
        "hyperparameters": settings,
        "container_entry_point": algorithm.get("ContainerEntrypoint"),
        "container_arguments": algorithm.get("ContainerArguments"),
        "metric_definitions": algorithm.get("MetricDefinitions"),
        "enable_sagemaker_metrics": True,
        "base_job_name": job.name,
        "volume_size": job.volume_gb,
        "max_run": job.max_run,
        "environment": dict(job.environment) or None,
        "tags": request.get("Tags"),
        "debugger_hook_config": False,
    }
    if job.output:
        arguments["output_path"] = request["OutputDataConfig"]["S3OutputPath"]
    if job.profile_ms:
        arguments["profiler_config"] = ProfilerConfig(system_monitor_interval_millis=job.profile_ms)
    else:
        arguments["disable_profiler"] = True
    if job.checkpoints:
        arguments |= {
            "checkpoint_s3_uri": request["CheckpointConfig"]["S3Uri"],
            "checkpoint_local_path": CHECKPOINTS,
        }
    if job.spot:
        arguments |= {"use_spot_instances": True, "max_wait": job.max_wait}
    if job.retries:
        arguments["max_retry_attempts"] = job.retries
    return arguments


def _machines(job: SageMakerJob) -> dict[str, Any]:
    from sagemaker.instance_group import InstanceGroup

    arguments: dict[str, Any] = (
        {"keep_alive_period_in_seconds": job.warm_pool} if job.warm_pool else {}
    )
    if job.training_plan:
        arguments["training_plan"] = job.training_plan
    if job.groups:
        groups = [InstanceGroup(group.name, group.type, group.instances) for group in job.groups]
        return {**arguments, "instance_groups": groups}
    return {**arguments, "instance_type": job.type, "instance_count": job.instances}


def _protection(job: SageMakerJob) -> dict[str, Any]:
    wanted = {
        "subnets": list(job.subnets),
        "security_group_ids": list(job.security_groups),
        "volume_kms_key": job.volume_kms,
        "output_kms_key": job.output_kms,
        "enable_network_isolation": job.network_isolation,
        "encrypt_inter_container_traffic": job.encrypt_traffic,
        "enable_remote_debug": job.remote_debug,
    }
    return {key: value for key, value in wanted.items() if value}


def _input(channel: Channel) -> Any:
    from sagemaker.inputs import FileSystemInput, TrainingInput

    if channel.is_file_system:
        return FileSystemInput(
            channel.file_system, channel.file_system_type, channel.path, channel.access
        )
    more: dict[str, Any] = {"input_mode": channel.mode} if channel.mode != "File" else {}
    if channel.groups:
        more["instance_groups"] = list(channel.groups)
    return TrainingInput(channel.uri, distribution=channel.distribution, **more)
