"""The description of a Vertex AI job: machines, data, scheduling, and network, in addition to what every job has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launch.core import job
from launch.core import job_values as values
from launch.core.job import option
from launch.platforms.vertex import job_parts as parts
from launch.platforms.vertex.job_parts import Accelerator, Lustre, Nfs

COMMAND = job.command("vertex")


@dataclass(frozen=True)
class VertexJob(job.Job):
    """A custom job. ``output``: a gs:// folder in which each job gets a folder of its name; ``max_run``: seconds."""

    project: str = option(values.text, default="")
    region: str = option(values.text, default="")
    machine: str = option(values.text, default="g2-standard-12")
    # None: what the machine type has by itself.
    accelerator: Accelerator | None = option(parts.accelerator, default=None)  # noqa: RUF009
    hosts: int = option(values.at_least(1), default=1)
    # Where the training reads: gs://BUCKET/FOLDER, or a folder of a mount.
    data: str = option(values.text, default="")
    # gs:// address of the run folder, which then outlives the job. It becomes ``out`` of the training config.
    checkpoints: str = option(values.text, default="")
    # gs:// folder for the code bundle; empty: below the output.
    staging: str = option(values.text, default="")
    # bundle: the container downloads and starts the launcher's code. image: the image's own entry point starts the
    # training, with the settings as arguments.
    start: parts.Start = option(values.one_of(parts.Start), default="bundle")  # noqa: RUF009
    disk_gb: int = option(values.whole, default=100)
    disk_type: str = option(values.text, default="pd-ssd")
    scheduling: parts.Scheduling = option(parts.scheduling, default="STANDARD")  # noqa: RUF009
    # The longest wait for machines of FLEX_START.
    max_wait: int | None = option(values.seconds, default=None)
    # Restart all replicas when one restarts. Not needed for segtrain, whose ranks find each other again by themselves.
    restart_all: bool = option(values.switch, default=False)
    disable_retries: bool = option(values.switch, default=False)
    service_account: str = option(values.text, default="")
    # projects/NUMBER/global/networks/NAME
    network: str = option(values.text, default="")
    reserved_ip_ranges: tuple[str, ...] = option(values.texts, default=())
    # projects/PROJECT/regions/REGION/networkAttachments/NAME, or its name.
    psc_attachment: str = option(values.text, default="")
    # projects/P/locations/R/tensorboards/ID
    tensorboard: str = option(values.text, default="")
    experiment: str = option(values.text, default="")
    experiment_run: str = option(values.text, default="")
    persistent_resource: str = option(values.text, default="")
    # projects/P/zones/Z/reservations/NAME: the machines are taken from this reservation.
    reservation: str = option(values.text, default="")
    nfs: tuple[Nfs, ...] = option(parts.nfs, default=())
    lustre: tuple[Lustre, ...] = option(parts.lustre, default=())
    # projects/P/locations/R/keyRings/RING/cryptoKeys/KEY
    kms: str = option(values.text, default="")
    # A shell in the containers, from the console.
    web_access: bool = option(values.switch, default=False)
    labels: Mapping[str, str] = option(values.pairs, flag="--label", default_factory=dict)
