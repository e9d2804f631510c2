"""Download of what a job left in S3: its model, its report, and its system profile, into one
folder.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any

from launch.core.findings import Say
from launch.platforms.sagemaker.aws_errors import code_of, explain
from launch.platforms.sagemaker.cloud import AwsClients, split_uri

_PARALLEL = 8  # files of a profile that are downloaded at the same time


def fetch(clients: AwsClients, job: Mapping[str, Any], folder: Path, say: Say) -> bool:
    """Download ``model/`` (model.tar.gz), ``output/`` (output.tar.gz: report, pictures), and
    ``profile/``.

    Returns False if one of them exists but could not be fetched. One that does not exist is only
    reported.
    """
    place = f"{job['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{job['TrainingJobName']}"
    model = job.get("ModelArtifacts", {}).get("S3ModelArtifacts") or f"{place}/output/model.tar.gz"
    archives = {"model": model, "output": f"{place}/output/output.tar.gz"}
    whole = True
    for name, uri in archives.items():
        try:
            files = _archive(clients, uri, folder / name)
            say(
                f"{name:<8} {folder / name}: {files} files"
                if files is not None
                else f"{name:<8} none: the job left no {uri}"
            )
        except Exception as error:
            whole = False
            say(f"{name:<8} not fetched: {_words(error, uri)}; by hand: aws s3 cp {quote(uri)} .")
    profiler = job.get("ProfilerConfig", {})
    if profiler.get("DisableProfiler") or "S3OutputPath" not in profiler:
        return whole
    uri = f"{profiler['S3OutputPath'].rstrip('/')}/{job['TrainingJobName']}/profiler-output/"
    try:
        files = _tree(clients, uri, folder / "profile")
        say(
            f"profile  {folder / 'profile'}: {files} files"
            if files
            else f"profile  none: nothing is at {uri}"
        )
    except Exception as error:
        say(
            f"profile  not fetched: {_words(error, uri)}; by hand: aws s3 sync {quote(uri)} profile"
        )
        return False
    return whole


def _words(error: Exception, uri: str) -> str:
    return (
        f"{error}"
        if isinstance(error, (OSError, tarfile.TarError, ValueError))
        else str(explain(error, uri))
    )


def _download(clients: AwsClients, bucket: str, key: str, target: Path) -> None:
    """Download one object. ``target`` is replaced only when the download is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    from segtrain.base.files import replacing

    with replacing(target) as partial:
        clients.s3.download_file(bucket, key, str(partial))


def _archive(clients: AwsClients, uri: str, target: Path) -> int | None:
    """Fetch and unpack an archive. Returns the number of files, or None if S3 has no such
    object.
    """
    bucket, key = split_uri(uri)
    archive = target.with_name(target.name + ".tar.gz")
    try:
        _download(clients, bucket, key, archive)
    except Exception as error:
        if code_of(error) in ("404", "NoSuchKey"):
            return None
        raise
    try:
        return unpack(archive, target)
    finally:
        archive.unlink()


def unpack(archive: Path, target: Path) -> int:
    """Unpack the regular files of an archive. Returns their number.

    The training may have written anything into the archive: links are skipped, and a path outside
    ``target`` raises ValueError.
    """
    count = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(
                    f"{archive.name} holds {member.name!r}, which points outside the folder: not "
                    "unpacked further"
                )
            source = tar.extractfile(member) if member.isfile() else None
            if source is None:
                continue
            place = target / path
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as stream:
                while block := source.read(1 << 20):
                    stream.write(block)
            count += 1
    return count


def _tree(clients: AwsClients, uri: str, target: Path) -> int:
    bucket, prefix = split_uri(uri)
    pages = clients.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    keys = [
        entry["Key"]
        for page in pages
        for entry in page.get("Contents", [])
        if not entry["Key"].endswith("/")
    ]
    for key in keys:
        path = PurePosixPath(key[len(prefix) :])
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"the key {key!r} points outside the folder")
    with ThreadPoolExecutor(_PARALLEL) as pool:
        list(
            pool.map(lambda key: _download(clients, bucket, key, target / key[len(prefix) :]), keys)
        )
    return len(keys)
