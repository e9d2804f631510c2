"""The `request:` key of a job: members of the CreateTrainingJob request that have no key of their
own in a job. They are checked and merged into the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launch.platforms.sagemaker.service_model import violations
from segtrain.errors import ConfigError

# Members that have a key in a job. The checks read these keys, so they would not see a member under
# `request:`.
KEYS = {
    "TrainingJobName": "name",
    "AlgorithmSpecification.TrainingImage": "image",
    "AlgorithmSpecification.AlgorithmName": "image",
    "AlgorithmSpecification.TrainingInputMode": "data, with mode: FastFile",
    "AlgorithmSpecification.MetricDefinitions": "metrics",
    "HyperParameters": "settings",
    "RoleArn": "role",
    "InputDataConfig": "data",
    "OutputDataConfig.S3OutputPath": "output",
    "OutputDataConfig.KmsKeyId": "output_kms",
    "ResourceConfig.InstanceType": "type",
    "ResourceConfig.InstanceCount": "instances",
    "ResourceConfig.InstanceGroups": "groups",
    "ResourceConfig.InstancePreferences": "fallbacks",
    "ResourceConfig.VolumeSizeInGB": "volume_gb",
    "ResourceConfig.VolumeKmsKeyId": "volume_kms",
    "ResourceConfig.KeepAlivePeriodInSeconds": "warm_pool",
    "ResourceConfig.TrainingPlanArn": "training_plan",
    "VpcConfig.Subnets": "subnets",
    "VpcConfig.SecurityGroupIds": "security_groups",
    "StoppingCondition.MaxRuntimeInSeconds": "max_run",
    "StoppingCondition.MaxWaitTimeInSeconds": "max_wait",
    "StoppingCondition.MaxPendingTimeInSeconds": "max_pending",
    "Tags": "tags",
    "Environment": "environment",
    "EnableNetworkIsolation": "network_isolation",
    "EnableInterContainerTrafficEncryption": "encrypt_traffic",
    "EnableManagedSpotTraining": "spot",
    "CheckpointConfig": "checkpoints",
    "ProfilerConfig.S3OutputPath": "output",
    "ProfilerConfig.ProfilingIntervalInMilliseconds": "profile_ms",
    "ProfilerConfig.DisableProfiler": "profile_ms",
    "RetryStrategy": "retries",
    "RemoteDebugConfig": "remote_debug",
}
READ_ONLY = ("ResourceConfig.SelectedInstanceType", "ResourceConfig.SelectedInstanceCount")


def merged(request: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """``request`` with the members of ``extra``.

    Raises ConfigError for a member that the service's model does not know, that has a key in a job,
    that only the service sets, or that the launcher itself sends: nothing is overridden silently.
    """
    if not extra:
        return dict(request)
    wrong = [line for line in violations(extra) or [] if not line.endswith("missing, and required")]
    for path, value in leaves(extra):
        if (key := key_of(path)) is not None:
            wrong.append(f"{path}={value!r}: a job has a key for it: write {key}: ... instead")
        elif path in READ_ONLY:
            wrong.append(f"{path}={value!r}: only the service sets it: leave it out")
        elif (sent := _at(request, path)) is not None:
            wrong.append(f"{path}={value!r}: the launcher sends {_short(sent)} there: leave it out")
    if wrong:
        raise ConfigError("; ".join(f"request.{line}" for line in wrong), code="request-member")
    return _merge(request, extra)


def leaves(extra: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """``("A.B", value)`` for each value that is not a mapping with members of its own."""
    for key, value in extra.items():
        path = f"{where}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def key_of(path: str) -> str | None:
    """The key of a job that sets this member, a structure around it, or a member inside it; None if
    there is none.
    """
    for member, key in KEYS.items():
        if path == member or path.startswith(f"{member}.") or member.startswith(f"{path}."):
            return key
    return None


def _at(request: Mapping[str, Any], path: str) -> Any:
    value: Any = request
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _merge(request: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(request)
    for key, value in extra.items():
        both[key] = _merge(request[key], value) if isinstance(request.get(key), Mapping) else value
    return both


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
