"""Checks of the times: the longest run, spot and its wait, checkpoints, warm pool, retries,
profiling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launch.core import job_checks
from launch.core.findings import Finding, error, note, warning
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.preflight.places import API, hours

SHORT_S = 600  # a stock image alone takes minutes to download
QUOTA_S = 432_000  # 5 days: the default of the quota "Longest run time for a training job"
LONGEST_S = 2_419_200  # 28 days: what the quota can be raised to
WARM_S = 3_600  # botocore's model allows 21,600, but the service only 3,600
INTERVALS = (100, 200, 500, 1000, 5000, 60000)
WARM_DOCS = "SageMaker developer guide, train-warm-pools, 2023-02-18"
SPOT_DOCS = "SageMaker developer guide, model-managed-spot-training, 2023-02-18"
PROFILER_DOCS = "SageMaker developer guide, debugger-createtrainingjob-api, 2026"
NO_PROFILER = (
    *("ap-southeast-3", "ap-southeast-4", "eu-south-2", "me-central-1"),
    *("ap-south-2", "eu-central-2", "us-gov-east-1"),
)


def times(job: SageMakerJob, request: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _longest(job)
    yield from _spot(job, request)
    yield from _warm_pool(job)
    if job.retries and "CheckpointConfig" not in request:
        yield warning(
            "retries-without-checkpoints",
            f"retries={job.retries} without checkpoints: each retry would start the training "
            "from its beginning",
            "--checkpoints s3://BUCKET/NAME/",
        )
    yield from _profiler(job)


def _longest(job: SageMakerJob) -> Iterator[Finding]:
    yield from job_checks.short_run(job, SHORT_S)
    if job.max_run > LONGEST_S:
        yield error(
            "max-run-range",
            f"max_run={hours(job.max_run)} is more than the 28 days that a training job can last",
            "--max-run 28d at most; with checkpoints, the same command goes on where it ended",
            API,
        )
    elif job.max_run > QUOTA_S:
        yield warning(
            "max-run-quota",
            f"max_run={hours(job.max_run)} is more than 5 days ({QUOTA_S} s), the default "
            "quota for a training job",
            "ask for more in Service Quotas ('Longest run time for a training job'), or "
            "--max-run 120h",
            "SageMaker service quotas, 2026",
        )


def _spot(job: SageMakerJob, request: Mapping[str, Any]) -> Iterator[Finding]:
    wait = request.get("StoppingCondition", {}).get("MaxWaitTimeInSeconds")
    if not job.spot:
        if job.max_wait is not None or wait is not None:
            yield error(
                "wait-without-spot",
                f"max_wait={job.max_wait or wait} s without spot: the service refuses it",
                "add --spot, or leave --max-wait out",
                "'It is only supported when EnableManagedSpotTraining is set to true', "
                "Kenza-AI/sagify#111, 2020-02-21",
            )
        return
    if wait is None:
        yield error(
            "spot-without-wait",
            "spot=true without max_wait: the service needs the longest time for waiting and "
            "training together",
            f"--max-wait {2 * job.max_run}",
            SPOT_DOCS,
        )
    elif wait < job.max_run:
        yield error(
            "spot-wait-short",
            f"max_wait={wait} s is less than max_run={job.max_run} s: max_wait includes the "
            "training time",
            f"--max-wait {2 * job.max_run}, or a shorter --max-run",
            SPOT_DOCS,
        )
    if "CheckpointConfig" not in request:
        yield error(
            "spot-without-checkpoints",
            "spot=true without checkpoints: every interruption would start the training from "
            "its beginning",
            "--checkpoints s3://BUCKET/NAME/",
            SPOT_DOCS,
        )


def _warm_pool(job: SageMakerJob) -> Iterator[Finding]:
    if not job.warm_pool:
        return
    if job.spot:
        yield error(
            "warm-pool-spot",
            f"warm_pool={job.warm_pool} s with spot=true: spot machines cannot be kept",
            "leave out --warm-pool or --spot",
            WARM_DOCS,
        )
    if job.groups:
        yield error(
            "warm-pool-groups",
            f"warm_pool={job.warm_pool} s with instance groups "
            f"({', '.join(g.name for g in job.groups)}): heterogeneous clusters cannot be kept",
            "leave out --warm-pool or --group",
            WARM_DOCS,
        )
    if job.warm_pool > WARM_S:
        yield error(
            "warm-pool-range",
            f"warm_pool={job.warm_pool} s: at most {WARM_S}",
            "--warm-pool 1h",
            WARM_DOCS,
        )


def _profiler(job: SageMakerJob) -> Iterator[Finding]:
    if not job.profile_ms:
        return
    if job.profile_ms not in INTERVALS:
        legal = ", ".join(map(str, INTERVALS))
        near = min(INTERVALS, key=lambda legal: abs(legal - job.profile_ms))
        yield error(
            "profiler-interval",
            f"profile_ms={job.profile_ms}: the profiler knows {legal} ms; botocore does not "
            "check it",
            f"--profile-ms {near}, or 0 to switch it off",
            PROFILER_DOCS,
        )
    if job.region in NO_PROFILER or job.region.startswith("us-iso"):
        yield warning(
            "profiler-region",
            f"profile_ms={job.profile_ms}, but region {job.region} has no profiler",
            "--profile-ms 0: segtrain writes its own system profile all the same",
            "PROFILER_UNSUPPORTED_REGIONS of the SageMaker Python SDK 2.257.7",
        )
    yield note(
        "profiler-closed",
        f"profile_ms={job.profile_ms}: SageMaker Debugger is closed to new customers since "
        "2026-07-30; whether it ignores or refuses the setting there is not known",
        "if the service refuses it: --profile-ms 0; segtrain writes its own system profile all "
        "the same",
        PROFILER_DOCS,
    )
