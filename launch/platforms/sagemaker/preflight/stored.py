"""Checks of stored data: the data exist, are readable, have the right layout, and fit on the disk;
the buckets are in the job's region; no running job uses the checkpoints; the FSx file system is
available.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from shlex import quote
from typing import Any

from launch.core.findings import Finding, error, note, warning
from launch.platforms.sagemaker.cloud import default_bucket
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.job_parts import Channel
from launch.platforms.sagemaker.preflight.calls import AwsReadOnlyCalls
from launch.platforms.sagemaker.preflight.channels import small_disk
from launch.platforms.sagemaker.preflight.places import folder, s3_parts
from launch.platforms.sagemaker.request import CHANNELS, data_place, settings
from segtrain.errors import ConfigError

PAGES = 20  # at most this many pages of 1000 keys are listed: enough to tell small from large data
# Objects of these classes have to be restored, for hours, before they can be read.
FROZEN = ("GLACIER", "DEEP_ARCHIVE")
MOST_JOBS = 30  # at most this many running jobs are checked for the same checkpoints


def stored(
    job: SageMakerJob, request: Mapping[str, Any], ask: AwsReadOnlyCalls
) -> Iterator[Finding]:
    results = {"output": request["OutputDataConfig"]["S3OutputPath"]}
    if "CheckpointConfig" in request:
        results["checkpoints"] = request["CheckpointConfig"]["S3Uri"]
    for key, uri in results.items():
        yield from _bucket(key, uri, job, ask, made=True)
    yield from _checkpoints(results.get("checkpoints", ""), ask)
    yield from _in_use(results.get("checkpoints", ""), ask)
    total = 0
    for channel in job.data:
        if channel.is_file_system:
            yield from _file_system(channel, ask)
            continue
        wrong = list(_bucket(f"data.{channel.name}", channel.uri, job, ask, made=False))
        yield from wrong
        if not wrong:
            size, findings = _prefix(job, channel, ask)
            yield from findings
            total += size if channel.mode == "File" else 0
    if total:
        yield from small_disk(job, total / 1e9)


def _bucket(
    key: str, uri: str, job: SageMakerJob, ask: AwsReadOnlyCalls, made: bool
) -> Iterator[Finding]:
    """``made``: the account's default bucket may be missing, for the upload creates it."""
    parts = s3_parts(uri)
    if parts is None:
        return
    bucket = parts[0]
    answer = ask(f"bucket {bucket}", ask.clients.s3.head_bucket, Bucket=bucket)
    headers = (answer.value or {}).get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = (answer.value or {}).get("BucketRegion") or headers.get(
        "x-amz-bucket-region", job.region
    )
    if answer.absent and not (made and bucket == _default(ask)):
        yield error(
            "bucket-missing",
            f"{key}={uri!r}: there is no bucket {bucket!r}",
            f"aws s3 mb s3://{quote(bucket)}, or fix the name",
        )
    elif answer.elsewhere or region != job.region:
        where = f" ({region})" if region != job.region else ""
        yield error(
            "bucket-region",
            f"{key}={uri!r}: the bucket is in another region{where} than the job ({job.region})",
            f"--region {region}, or a bucket in {job.region}"
            if where
            else f"a bucket in {job.region}",
        )


def _default(ask: AwsReadOnlyCalls) -> str:
    return str(ask("the account's bucket", lambda: default_bucket(ask.clients)).value)


def _prefix(
    job: SageMakerJob, channel: Channel, ask: AwsReadOnlyCalls
) -> tuple[int, list[Finding]]:
    """The bytes below a channel's prefix (in its first ``PAGES`` pages), and findings about the
    prefix.
    """
    bucket, key = s3_parts(channel.uri) or ("", "")
    total = 0
    files: list[dict[str, Any]] = []
    arguments: dict[str, Any] = {"Bucket": bucket, "Prefix": key}
    for _ in range(PAGES):
        answer = ask(
            f"data.{channel.name}={channel.uri!r}", ask.clients.s3.list_objects_v2, **arguments
        )
        if answer.value is None:
            return total, []
        objects = [
            item for item in answer.value.get("Contents", []) if not item["Key"].endswith("/")
        ]
        files, total = files + objects, total + sum(item["Size"] for item in objects)
        whole = not answer.value.get("IsTruncated")
        if whole:
            break
        arguments["ContinuationToken"] = answer.value["NextContinuationToken"]
    if files:
        findings = list(_frozen(channel, files))
        if whole:  # an incomplete list of keys does not show what is missing
            start = folder(key) if key else ""
            inside = [
                item["Key"].removeprefix(start) for item in files if item["Key"].startswith(start)
            ]
            findings += layout_checks(job, channel, inside)
        return total, findings
    cure = f"aws s3 ls {quote(channel.uri)}; upload with aws s3 sync FOLDER {quote(channel.uri)}"
    return 0, [
        error("prefix-empty", f"data.{channel.name}={channel.uri!r}: nothing is there", cure)
    ]


def _frozen(channel: Channel, files: list[dict[str, Any]]) -> Iterator[Finding]:
    cold = [item for item in files if item.get("StorageClass") in FROZEN]
    if cold:
        yield error(
            "data-frozen",
            f"data.{channel.name}={channel.uri!r}: {len(cold)} of {len(files)} objects are in "
            f"{cold[0]['StorageClass']}, such as {cold[0]['Key']}: they cannot be read before "
            "they are restored",
            "aws s3api restore-object for each of them (hours), or copy them to another "
            "storage class",
        )


def _checkpoints(uri: str, ask: AwsReadOnlyCalls) -> Iterator[Finding]:
    parts = s3_parts(uri)
    if parts is None:
        return
    answer = ask(
        f"checkpoints={uri!r}",
        ask.clients.s3.list_objects_v2,
        Bucket=parts[0],
        Prefix=parts[1],
        MaxKeys=1,
    )
    if answer.value and answer.value.get("KeyCount"):
        yield note(
            "checkpoints-there",
            f"checkpoints={uri!r} is not empty: the training goes on from what is there",
            "another --checkpoints for a new run",
        )


def _in_use(uri: str, ask: AwsReadOnlyCalls) -> Iterator[Finding]:
    """Findings for running jobs with the same checkpoints: two jobs that write them would destroy
    both runs.
    """
    if not uri:
        return
    answer = ask.pages(
        "the training jobs that run now",
        ask.clients.sagemaker,
        "list_training_jobs",
        "TrainingJobSummaries",
        StatusEquals="InProgress",
    )
    for name in [item["TrainingJobName"] for item in answer.value or []][:MOST_JOBS]:
        job = ask(
            f"training job {name}",
            ask.clients.sagemaker.describe_training_job,
            TrainingJobName=name,
        ).value
        theirs = folder((job or {}).get("CheckpointConfig", {}).get("S3Uri", ""))
        mine = folder(uri)
        if theirs != "/" and (mine.startswith(theirs) or theirs.startswith(mine)):
            yield error(
                "checkpoints-in-use",
                f"checkpoints={uri!r}: the job {name}, which runs now, writes to {theirs}: each "
                "would overwrite the other's",
                "another --checkpoints, or wait until that job has ended",
            )


def _file_system(channel: Channel, ask: AwsReadOnlyCalls) -> Iterator[Finding]:
    if channel.file_system_type != "FSxLustre":
        ask.unchecked(f"data.{channel.name}: EFS {channel.file_system}", "only FSx is")
        return
    system = file_system(channel, ask)
    where = f"data.{channel.name}: {channel.file_system}"
    if system is None:
        return
    if not system:
        yield error(
            "fsx-missing",
            f"{where} is not there",
            "aws fsx describe-file-systems; or another --region",
        )
        return
    if system.get("FileSystemType", "LUSTRE") != "LUSTRE":
        yield error(
            "fsx-kind",
            f"{where} is {system['FileSystemType']}, not LUSTRE",
            "SageMaker mounts FSx for Lustre",
        )
    elif system.get("Lifecycle", "AVAILABLE") not in ("AVAILABLE", "UPDATING"):
        yield error(
            "fsx-lifecycle",
            f"{where} is {system['Lifecycle']}",
            "wait until it is AVAILABLE, or --data s3://...",
        )
    mount = system.get("LustreConfiguration", {}).get("MountName")
    if mount and channel.path.strip("/").split("/")[0] != mount:
        rest = channel.path.strip("/").partition("/")[2]
        yield error(
            "fsx-mount-name",
            f"{where}: path={channel.path!r} does not begin with its mount name, {mount!r}",
            f"--fsx {quote(f'{channel.file_system}:/{mount}/{rest}')}",
        )


def file_system(channel: Channel, ask: AwsReadOnlyCalls) -> dict[str, Any] | None:
    """The file system's description; {} if it does not exist, None if FSx did not answer."""
    answer = ask(
        f"FSx {channel.file_system}",
        ask.clients.fsx.describe_file_systems,
        FileSystemIds=[channel.file_system],
    )
    if answer.absent:
        return {}
    systems = answer.items("FileSystems")
    return dict(systems[0]) if systems else ({} if answer.value else None)


def layout_checks(job: SageMakerJob, channel: Channel, keys: Sequence[str]) -> Iterator[Finding]:
    """``keys``: all S3 keys below the channel's prefix, relative to it."""
    config = _config(job)
    if config is None or not keys:
        return
    place = f"{CHANNELS}/{channel.name}"
    if f"{config.data.root}/".startswith(f"{place}/"):
        inner = f"{config.data.root}/".removeprefix(f"{place}/").lstrip("/")
        yield from _compare(channel, keys, inner, config.data)


def _config(job: SageMakerJob) -> Any:
    """The training config of the job. None if it is invalid or packages are missing (other checks
    report that).
    """
    from launch.core.rehearse.local_config import load

    try:
        return load(replace(job, settings=settings(job)), data_place(job))
    except ConfigError:
        return None


def _compare(channel: Channel, keys: Sequence[str], inner: str, data: Any) -> Iterator[Finding]:
    needed = expected(data)
    missing = [start for start in needed if not any(key.startswith(inner + start) for key in keys)]
    if not missing:
        return
    where = f"data.{channel.name}={channel.uri!r}"
    there = ", ".join(dict.fromkeys(_top(key) for key in keys))
    yield warning(
        "data-layout",
        f"{where}: data.layout={data.layout} reads "
        f"{', '.join(inner + start for start in needed)}, and nothing "
        f"begins with {', '.join(inner + start for start in missing)}; there is {_short(there)}",
        "--data of the folder that holds them, or data.layout and its folders as the data are",
    )


def expected(data: Any) -> list[str]:
    """The prefixes that the layout needs: at least one key must begin with each."""
    from segtrain.data.index.layouts import LAYOUTS

    # With split_by, the validation images are taken out of the training images: there is no folder
    # for data.split.
    splits = list(dict.fromkeys((data.train_split, *([] if data.split_by.on else [data.split]))))
    return LAYOUTS[data.layout].needed(data, splits)


def _top(key: str) -> str:
    first, slash, _ = key.partition("/")
    return first + slash


def _short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
