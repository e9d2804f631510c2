"""Online checks of a Vertex AI job's buckets: whether they exist, who owns them, and in which
region they are.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from launch.core.findings import Finding, error, note, warning
from launch.platforms.vertex.cloud import split_uri
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.preflight.calls import GoogleReadOnlyCalls
from launch.platforms.vertex.request import default_bucket, output

# The places of multi-regions, and of dual-regions without their number -> the beginnings of the
# regions in them.
_CONTINENTS = {
    "us": ("us", "northamerica"),
    "nam": ("us", "northamerica"),
    "eu": ("europe",),
    "eur": ("europe",),
    "asia": ("asia",),
}


def bucket_checks(job: VertexJob, ask: GoogleReadOnlyCalls) -> Iterator[Finding]:
    named = {
        "data": job.data,
        "output": output(job),
        "staging": job.staging,
        "checkpoints": job.checkpoints,
    }
    for key, place in named.items():
        if not place.startswith("gs://"):
            continue
        bucket = split_uri(place)[0]
        answer = ask(f"the bucket of {key}", ask.clients.storage.get, f"b/{quote(bucket)}")
        if answer.absent:
            if bucket != default_bucket(job):  # the first upload creates the default bucket
                yield error(
                    "bucket-missing",
                    f"{key}={place}: there is no bucket {bucket!r}",
                    f"gcloud storage buckets create gs://{shlex.quote(bucket)} "
                    f"--location={shlex.quote(job.region)}",
                )
            continue
        if answer.value is not None:
            if bucket == default_bucket(job):
                yield from _owner(key, place, job, answer.value, ask)
            yield from _location(key, place, job.region, answer.value)
            if key == "data":
                yield from _filled(job, ask)


def _owner(
    key: str,
    place: str,
    job: VertexJob,
    bucket: Mapping[str, Any],
    ask: GoogleReadOnlyCalls,
) -> Iterator[Finding]:
    """An error if the default bucket belongs to another project. Its name is predictable: somebody
    who created it first could replace the job's code.
    """
    own = ask(
        "whether the default bucket is the project's",
        ask.clients.service("cloudresourcemanager", "v1").get,
        f"projects/{job.project}",
    ).value
    if own is not None and str(own.get("projectNumber")) != str(bucket.get("projectNumber")):
        yield error(
            "bucket-taken",
            f"{key}={place}: the default bucket belongs to another project "
            f"({bucket.get('projectNumber')})",
            "--output gs://BUCKET/FOLDER, with a bucket of your own",
        )


def _location(key: str, place: str, region: str, bucket: Mapping[str, Any]) -> Iterator[Finding]:
    """Reading from another region is slower and has a fee. Since 2022, any read from a multi-region
    bucket has one.
    """
    there, kind = str(bucket.get("location", "")).lower(), bucket.get("locationType", "region")
    if kind == "region" and there == region:
        return
    if region.startswith(_CONTINENTS.get(there.rstrip("0123456789"), ())):
        yield note(
            "bucket-multi-region",
            f"{key}={place} is in {there.upper()} ({kind}): reads may have a fee",
        )
        return
    yield warning(
        "bucket-region",
        f"{key}={place}: its bucket is in {there}, the job in {region}: reads are slower and "
        "have a fee",
        f"--region {there}"
        if kind == "region"
        else f"a bucket in {region}: gcloud storage buckets create --location={region}",
    )


def _filled(job: VertexJob, ask: GoogleReadOnlyCalls) -> Iterator[Finding]:
    bucket, prefix = split_uri(job.data)
    folder = f"{prefix.rstrip('/')}/" if prefix else ""
    answer = ask(
        "the data",
        ask.clients.storage.get,
        f"b/{quote(bucket)}/o",
        prefix=folder,
        maxResults=1,
        fields="items(name)",
    )
    if answer.value is not None and not answer.items("items"):
        yield error(
            "data-empty",
            f"data={job.data}: there is no object below {folder or 'the bucket'}",
            f"gcloud storage rsync -r FOLDER {shlex.quote(job.data.rstrip('/'))}",
        )
