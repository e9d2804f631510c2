"""Changes a job that has been sent: SageMaker's profiler (on, off, interval), remote debugging, and
the warm pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.core import job
from launch.core.findings import Say
from launch.platforms.sagemaker.aws_errors import explained
from launch.platforms.sagemaker.cloud import AwsClients
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.preflight.times import INTERVALS, WARM_S
from launch.platforms.sagemaker.progress import duration
from segtrain.errors import ConfigError

CAN = ("profile_ms", "remote_debug", "warm_pool")
_FLAGS = "--profile-ms MS (0: off), --remote-debug, --warm-pool TIME (0: let the machines go)"


def update(clients: AwsClients, name: str, changes: Mapping[str, Any], say: Say) -> int:
    """Send UpdateTrainingJob with the changes from ``wanted``. Returns 0 once AWS accepts it;
    raises SegtrainError.
    """
    with explained(name):
        sent = clients.sagemaker.describe_training_job(TrainingJobName=name)
    payload = request(sent, changes)
    with explained(f"UpdateTrainingJob of {name}"):
        clients.sagemaker.update_training_job(**payload)
    for line in effects(name, changes, payload):
        say(line)
    return 0


def wanted(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that flags ask for, with checked values. Raises ConfigError if there is none."""
    changes = job.flag_fields(SageMakerJob, {key: flags[key] for key in CAN if key in flags})
    if not changes:
        raise ConfigError(f"--update needs what to change: {_FLAGS}", code="update-empty")
    if changes.get("profile_ms", 0) not in (0, *INTERVALS):
        near = min(INTERVALS, key=lambda legal: abs(legal - changes["profile_ms"]))
        raise ConfigError(
            f"--profile-ms {changes['profile_ms']}: the profiler knows "
            f"{', '.join(map(str, INTERVALS))} ms: --profile-ms {near}, or 0 to switch it off",
            code="update-interval",
            found=changes["profile_ms"],
            expected=near,
        )
    if changes.get("warm_pool", 0) > WARM_S:
        raise ConfigError(
            f"--warm-pool {changes['warm_pool']} s: the most is {WARM_S}: --warm-pool 1h",
            code="update-warm-pool",
            found=changes["warm_pool"],
            expected=WARM_S,
        )
    return changes


def request(sent: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The UpdateTrainingJob request. ``sent``: the answer of DescribeTrainingJob. Raises
    ConfigError if the job's state does not allow the change.
    """
    name, status = sent["TrainingJobName"], sent["TrainingJobStatus"]
    running = [key for key in changes if key != "warm_pool"]
    if running and status != "InProgress":
        raise ConfigError(
            f"{name} is {status}: --{running[0].replace('_', '-')} works on running jobs only; for "
            f"its profile: segtrain report sagemaker:{name}",
            code="job-not-running",
            found=status,
        )
    payload: dict[str, Any] = {"TrainingJobName": name}
    if "profile_ms" in changes:
        payload["ProfilerConfig"] = _profiler(sent, changes["profile_ms"])
    if "remote_debug" in changes:
        payload["RemoteDebugConfig"] = {"EnableRemoteDebug": True}
    if "warm_pool" in changes:
        payload["ResourceConfig"] = {"KeepAlivePeriodInSeconds": changes["warm_pool"]}
    return payload


def _profiler(sent: Mapping[str, Any], ms: int) -> dict[str, Any]:
    if not ms:
        return {"DisableProfiler": True}
    # A job that was sent without a profiler has no S3 path for the profiler's files yet.
    place = (
        sent.get("ProfilerConfig", {}).get("S3OutputPath")
        or sent["OutputDataConfig"]["S3OutputPath"]
    )
    return {"S3OutputPath": place, "DisableProfiler": False, "ProfilingIntervalInMilliseconds": ms}


def effects(name: str, changes: Mapping[str, Any], payload: Mapping[str, Any]) -> list[str]:
    """Lines that tell the user what the change does."""
    lines = []
    if changes.get("profile_ms"):
        place = payload["ProfilerConfig"]["S3OutputPath"].rstrip("/")
        lines.append(
            f"profiler on, every {changes['profile_ms']} ms, within a minute or two: "
            f"{place}/{name}/profiler-output/"
        )
    elif "profile_ms" in changes:
        lines.append(
            "profiler off: what was written stays, and segtrain's own profile "
            "(log.profile_ms) goes on"
        )
    if "remote_debug" in changes:
        lines.append(
            f"remote debug on: aws ssm start-session --target sagemaker-training-job:{name}_algo-1"
        )
    if "warm_pool" in changes:
        seconds = changes["warm_pool"]
        lines.append(
            f"warm pool: kept for {duration(seconds)}, and billed"
            if seconds
            else "warm pool: the machines are let go"
        )
    return lines
