"""Checks of networks: peering, reserved ranges, Private Service Connect, and the mounts that need them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from launch.findings import Finding, error, warning
from launch.gcp.job import VertexJob
from launch.gcp.preflight.names import API
from launch.gcp.request import region


def network(job: VertexJob) -> Iterator[Finding]:
    yield from _peering(job)
    yield from _attachment(job)
    yield from _mounts(job)


def _peering(job: VertexJob) -> Iterator[Finding]:
    match = re.fullmatch(r"projects/([^/]+)/global/networks/[a-z]([a-z0-9-]*[a-z0-9])?", job.network)
    if job.network and match is None:
        yield error(
            "network-form",
            f"network={job.network!r} is not the whole name of a network",
            "--network projects/PROJECT-NUMBER/global/networks/NAME",
            API,
        )
    elif match is not None and not match[1].isdigit():
        yield error(
            "network-project",
            f"network={job.network!r}: the project must be its number here, not its ID",
            f"gcloud projects describe {quote(match[1])} --format='value(projectNumber)'",
            API,
        )
    if job.network and job.psc_attachment:
        yield error(
            "network-twice",
            "network (peering) and psc_attachment (Private Service Connect) exclude each other",
            "leave one of them out",
        )
    if job.reserved_ip_ranges and not job.network:
        yield error(
            "ranges-without-network",
            f"reserved_ip_ranges={', '.join(job.reserved_ip_ranges)} are ranges of a network, and the job has none",
            "--network projects/PROJECT-NUMBER/global/networks/NAME",
            API,
        )
    for name in job.reserved_ip_ranges:
        if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name):
            yield error(
                "ranges-form",
                f"reserved_ip_ranges={name!r}: the name of an allocated range is wanted, not its addresses",
                "gcloud compute addresses list --global --filter=purpose=VPC_PEERING",
                API,
            )


def _attachment(job: VertexJob) -> Iterator[Finding]:
    text, place = job.psc_attachment, region(job)
    match = re.fullmatch(r"(?:projects/[^/]+/regions/([^/]+)/networkAttachments/)?[a-z]([a-z0-9-]*[a-z0-9])?", text)
    example = f"projects/PROJECT/regions/{place}/networkAttachments/NAME"
    if text and match is None:
        yield error(
            "psc-form", f"psc_attachment={text!r} is not a network attachment", f"--psc-attachment {example}", API
        )
    elif match is not None and match[1] and match[1] != place:
        yield error(
            "psc-region",
            f"psc_attachment={text!r} is in {match[1]}, the job in {place}",
            f"--psc-attachment {example}",
            API,
        )


def _mounts(job: VertexJob) -> Iterator[Finding]:
    mounts = [("nfs", one.mount_point) for one in job.nfs] + [("lustre", one.mount_point) for one in job.lustre]
    if mounts and not job.network and not job.psc_attachment:
        yield error(
            "mount-without-network",
            f"{mounts[0][0]} {mounts[0][1]!r} is a server of your network, and the job is in none",
            "--network projects/PROJECT-NUMBER/global/networks/NAME",
            "Vertex AI: mount an NFS share for training",
        )
    for number, (kind, point) in enumerate(mounts):
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", point):
            yield error(
                "mount-point",
                f"{kind}: mount_point={point!r} is the name of one folder below /mnt/{kind}/",
                f"{point.strip('/').rpartition('/')[2] or 'data'}",
                API,
            )
        if (kind, point) in mounts[:number]:
            yield error("mount-twice", f"{kind}: mount_point={point!r} is given twice", "give each its own", API)
    for one in job.nfs:
        if not one.path.startswith("/"):
            yield error(
                "mount-path", f"nfs: path={one.path!r} of {one.server} does not begin with /", f"/{one.path}", API
            )
    for other in job.lustre:
        if not re.fullmatch(r"projects/[^/]+/locations/[^/]+/instances/[^/]+", other.volume_handle):
            yield warning(
                "lustre-volume",
                f"lustre: volume_handle={other.volume_handle!r} is not the name of an instance",
                "projects/PROJECT/locations/ZONE/instances/NAME",
                API,
            )
