"""The CreateTrainingJob request of a job. Pure functions: the same job, name, and image give the
same request.

The request has the form that AWS's own SDK sends (tests/contracts), so that AWS's container toolkit
starts the ranks in its usual way; tests/platforms/test_contracts.py lists the intended differences.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from launch.core.bundle import script_lines
from launch.core.job import config_name
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.job_parts import Channel
from launch.platforms.sagemaker.passthrough import merged
from segtrain.errors import ConfigError

DEFAULT_REGION = "us-east-1"
PLACEHOLDER_ROLE = "arn:aws:iam::000000000000:role/ROLE"
CHANNELS = "/opt/ml/input/data"
# SageMaker keeps this folder and the S3 prefix the same, both ways
CHECKPOINTS = "/opt/ml/checkpoints"
# Each line of the script is one argument, as SageMaker allows 256 characters in each. bash, as PID
# 1, joins the lines and runs them.
CONTAINER_ENTRYPOINT = ("bash", "-c", 'eval "$(printf "%s\\n" "$@")"', "entrypoint")
CODE_CHANNEL = "code"
ISOLATED_CODE = f"{CHANNELS}/{CODE_CHANNEL}/sourcedir.tar.gz"


def training_job_name(job: SageMakerJob, now: datetime) -> str:
    """``segtrain-2026-11-21-03-56-05-089``."""
    return f"{job.name}-{now:%Y-%m-%d-%H-%M-%S}-{now.microsecond // 1000:03d}"


def region(job: SageMakerJob) -> str:
    return job.region or DEFAULT_REGION


def output(job: SageMakerJob) -> str:
    """The S3 prefix of everything that a job writes, without a trailing slash; a placeholder if
    none is set.
    """
    return (job.output or f"s3://sagemaker-{region(job)}-000000000000/segtrain").rstrip("/")


def lies_in(place: str, channel: str) -> bool:
    """Whether a path of the container is a channel's folder, or below it."""
    return f"{os.path.normpath(place)}/".startswith(f"{CHANNELS}/{channel}/")


def data_place(job: SageMakerJob) -> str:
    """data.root in the container: the channel train, or the only one, or the folder of a channel
    that the settings name; "" if that is not clear.
    """
    names = [channel.name for channel in job.data]
    root = str(job.settings.get("data.root", ""))
    if any(lies_in(root, name) for name in names):
        return root
    name = "train" if "train" in names else names[0] if len(names) == 1 else ""
    return f"{CHANNELS}/{name}" if name else ""


def settings(job: SageMakerJob) -> dict[str, Any]:
    """The job's training settings, without a data.root over which the job's data win."""
    won = job.data and data_place(job) != job.settings.get("data.root")
    return {key: value for key, value in job.settings.items() if not (won and key == "data.root")}


def code_uri(request: Mapping[str, Any]) -> str:
    """The S3 URI of the code bundle in a request. A job with network isolation gets the bundle
    through a channel; for any other job, AWS's toolkit downloads it.
    """
    place = str(json.loads(request["HyperParameters"]["sagemaker_submit_directory"]))
    if place != ISOLATED_CODE:
        return place
    (channel,) = (
        channel for channel in request["InputDataConfig"] if channel["ChannelName"] == CODE_CHANNEL
    )
    return str(channel["DataSource"]["S3DataSource"]["S3Uri"])


def create_training_job(job: SageMakerJob, *, image: str, name: str, code: str) -> dict[str, Any]:
    """The arguments of boto3's ``create_training_job``. ``code``: S3 URI of the bundle."""
    request: dict[str, Any] = {
        "TrainingJobName": name,
        "AlgorithmSpecification": _algorithm(job, image),
        "HyperParameters": hyperparameters(job, name=name, code=code),
        "RoleArn": job.role or PLACEHOLDER_ROLE,
        "OutputDataConfig": _output(job),
        "ResourceConfig": _resources(job),
        "StoppingCondition": _stopping(job),
        "ProfilerConfig": _profiler(job),
    }
    channels = (*job.data, _code_channel(job, code)) if job.network_isolation else job.data
    if channels:
        request["InputDataConfig"] = [_channel(channel) for channel in channels]
    if job.checkpoints:
        # Without the trailing slash, the prefix of run-1 would also match the files of run-10.
        request["CheckpointConfig"] = {
            "S3Uri": job.checkpoints.rstrip("/") + "/",
            "LocalPath": CHECKPOINTS,
        }
    if job.spot:
        request["EnableManagedSpotTraining"] = True
    if job.retries:
        request["RetryStrategy"] = {"MaximumRetryAttempts": job.retries}
    if job.subnets or job.security_groups:
        request["VpcConfig"] = {
            "Subnets": list(job.subnets),
            "SecurityGroupIds": list(job.security_groups),
        }
    if job.network_isolation:
        request["EnableNetworkIsolation"] = True
    if job.encrypt_traffic:
        request["EnableInterContainerTrafficEncryption"] = True
    if job.remote_debug:
        request["RemoteDebugConfig"] = {"EnableRemoteDebug": True}
    if job.environment:
        request["Environment"] = dict(job.environment)
    if job.tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in job.tags.items()]
    return merged(request, job.request)


def hyperparameters(job: SageMakerJob, *, name: str, code: str) -> dict[str, str]:
    """Settings for the training and for AWS's toolkit. Each value is JSON, so that the string "1"
    stays a string.
    """
    training = {"config": config_name(job), **settings(job), "parallel.strategy": job.strategy}
    toolkit = {
        "sagemaker_submit_directory": ISOLATED_CODE if job.network_isolation else code,
        "sagemaker_program": job.program,
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": name,
        "sagemaker_region": region(job),
        **_distribution(job),
        **_helpers(job),
    }
    if not job.config:
        del training["config"]
    return {key: json.dumps(value) for key, value in {**training, **toolkit}.items()}


def _distribution(job: SageMakerJob) -> dict[str, Any]:
    """Hyperparameters that choose a launcher of AWS's toolkit. Without them, it starts one plain
    process per host.
    """
    settings: dict[str, Any] = {}
    if job.strategy == "smddp":
        settings["sagemaker_distributed_dataparallel_enabled"] = True
        settings["sagemaker_instance_type"] = job.training_type
        settings["sagemaker_distributed_dataparallel_custom_mpi_options"] = ""
    elif job.strategy in ("ddp", "fsdp"):
        settings["sagemaker_torch_distributed_enabled"] = True
        settings["sagemaker_instance_type"] = job.training_type
    # the instance type is not known yet: without this key, the toolkit asks the machine
    if job.fallbacks:
        settings.pop("sagemaker_instance_type", None)
    if job.groups:
        # Without this list, the toolkit uses the group of each host, and a group of CPU hosts
        # trains a second model.
        settings["sagemaker_distribution_instance_groups"] = [
            group.name for group in job.training_groups
        ]
    return settings


def _helpers(job: SageMakerJob) -> dict[str, Any]:
    """Hyperparameters that segtrain reads in the container: which groups make samples for those
    that train.
    """
    if not job.helping_groups:
        return {}
    return {
        "helpers.groups": [group.name for group in job.helping_groups],
        "helpers.join_s": job.helpers_join,
        "helpers.required": job.helpers_required,
    }


def _algorithm(job: SageMakerJob, image: str) -> dict[str, Any]:
    algorithm: dict[str, Any] = {
        "TrainingInputMode": "File",
        "TrainingImage": image,
        "ContainerEntrypoint": list(CONTAINER_ENTRYPOINT),
        "ContainerArguments": script_lines("sagemaker/entrypoint.sh"),
    }
    if job.metrics:
        algorithm["MetricDefinitions"] = [
            {"Name": metric.name, "Regex": metric.regex} for metric in job.metrics
        ]
    algorithm["EnableSageMakerMetricsTimeSeries"] = True
    return algorithm


def _output(job: SageMakerJob) -> dict[str, str]:
    return {"S3OutputPath": output(job)} | ({"KmsKeyId": job.output_kms} if job.output_kms else {})


def _code_channel(job: SageMakerJob, code: str) -> Channel:
    """The channel with the code of an isolated container, which cannot download it. AWS's own SDK
    does the same.
    """
    if any(channel.name == CODE_CHANNEL for channel in job.data):
        raise ConfigError(
            f"data.{CODE_CHANNEL}: with network_isolation this channel brings the code: give "
            "yours another name",
            code="channel-code",
        )
    # SageMaker requires that either all channels name their instance groups or none does.
    groups = (
        tuple(group.name for group in job.groups)
        if any(channel.groups for channel in job.data)
        else ()
    )
    return Channel(CODE_CHANNEL, code, groups=groups)


def _channel(channel: Channel) -> dict[str, Any]:
    source: dict[str, Any]
    if channel.is_file_system:
        source = {
            "FileSystemDataSource": {
                "FileSystemId": channel.file_system,
                "FileSystemType": channel.file_system_type,
                "DirectoryPath": channel.path,
                "FileSystemAccessMode": channel.access,
            }
        }
    else:
        s3 = {
            "S3DataType": "S3Prefix",
            "S3Uri": channel.uri,
            "S3DataDistributionType": channel.distribution,
        }
        source = {
            "S3DataSource": {**s3, "InstanceGroupNames": list(channel.groups)}
            if channel.groups
            else s3
        }
    described = {"ChannelName": channel.name, "DataSource": source}
    return described if channel.mode == "File" else {**described, "InputMode": channel.mode}


def _resources(job: SageMakerJob) -> dict[str, Any]:
    """ResourceConfig. Types with local NVMe disks use these for /opt/ml and get no other volume:
    VolumeSizeInGB has no effect there.
    """
    resources: dict[str, Any] = {"VolumeSizeInGB": job.volume_gb}
    if job.groups:
        resources["InstanceGroups"] = [
            {
                "InstanceGroupName": group.name,
                "InstanceType": group.type,
                "InstanceCount": group.instances,
            }
            for group in job.groups
        ]
    elif job.fallbacks:
        resources |= _preferences(job)
    else:
        resources |= {"InstanceCount": job.instances, "InstanceType": job.type}
    if job.training_plan and not job.fallbacks:
        resources["TrainingPlanArn"] = job.training_plan
    resources |= {"VolumeKmsKeyId": job.volume_kms} if job.volume_kms else {}
    return resources | ({"KeepAlivePeriodInSeconds": job.warm_pool} if job.warm_pool else {})


def _preferences(job: SageMakerJob) -> dict[str, Any]:
    """Instance types in order of preference. All of them have a count, or none has; a training plan
    applies only to the first type.
    """
    listed: list[dict[str, Any]] = [
        {"InstanceType": name}
        for name in (job.type, *(fallback.type for fallback in job.fallbacks))
    ]
    if job.training_plan:
        listed[0]["TrainingPlanArns"] = [job.training_plan]
    if all(fallback.instances is None for fallback in job.fallbacks):
        return {"InstanceCount": job.instances, "InstancePreferences": listed}
    counts = [job.instances, *(fallback.instances or job.instances for fallback in job.fallbacks)]
    return {
        "InstancePreferences": [
            {**entry, "InstanceCount": count} for entry, count in zip(listed, counts)
        ]
    }


def _stopping(job: SageMakerJob) -> dict[str, int]:
    limit = {"MaxRuntimeInSeconds": job.max_run}
    others = {"MaxWaitTimeInSeconds": job.max_wait, "MaxPendingTimeInSeconds": job.max_pending}
    return limit | {key: value for key, value in others.items() if value is not None}


def _profiler(job: SageMakerJob) -> dict[str, Any]:
    """ProfilerConfig: SageMaker's own sampler of system metrics, which writes below the job's
    output.
    """
    if not job.profile_ms:
        return {"DisableProfiler": True}
    return {
        "S3OutputPath": output(job),
        "DisableProfiler": False,
        "ProfilingIntervalInMilliseconds": job.profile_ms,
    }
