"""Checks of networks: peering, reserved ranges, Private Service Connect, and the mounts that need them."""

from __future__ import annotations

from collections.abc import Iterator

from launch.core.findings import Finding, error
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.preflight.names import API


def network(job: VertexJob) -> Iterator[Finding]:
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
    folders = [share.folder for share in job.nfs] + [instance.folder for instance in job.lustre]
    if folders and not job.network and not job.psc_attachment:
        yield error(
            "mount-without-network",
            f"{folders[0]} is on a server of your network, and the job is in none",
            "--network projects/PROJECT-NUMBER/global/networks/NAME",
            "Vertex AI: mount an NFS share for training",
        )
