"""The description of a Vertex AI job: machines, data, scheduling, and network, in addition to what
every job has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launch.core import job
from launch.core import job_values as values
from launch.core.job import DATA, MACHINES, TIME, option
from launch.platforms.vertex import job_parts as parts
from launch.platforms.vertex.job_parts import Accelerator, Lustre, Nfs

COMMAND = job.command("vertex")
NETWORK = "projects/NUMBER/global/networks/NAME"
TENSORBOARD = "projects/P/locations/R/tensorboards/ID"
RESERVATION = "projects/P/zones/Z/reservations/NAME"
KEY = "projects/P/locations/R/keyRings/RING/cryptoKeys/KEY"


@dataclass(frozen=True)
class VertexJob(job.Job):
    """A custom job. ``output``: a gs:// folder in which each job gets a folder of its name;
    ``max_run``: seconds.
    """

    project: str = option("", "ID", "default: GOOGLE_CLOUD_PROJECT, or that of the credentials")
    region: str = option(
        "",
        "NAME",
        "default: GOOGLE_CLOUD_REGION, CLOUD_ML_REGION, CLOUDSDK_AI_REGION, or us-central1",
    )
    machine: str = option(
        "g2-standard-12",
        "TYPE",
        "machine type, such as n1-standard-32 (default: g2-standard-12)",
        MACHINES,
    )
    accelerator: Accelerator | None = option(
        None,
        "TYPE:COUNT",
        "GPUs of each host, such as NVIDIA_TESLA_T4:4 (default: what the type has)",
        MACHINES,
        read=parts.accelerator,
    )
    hosts: int = option(
        1,
        "N",
        "number of hosts; in a rehearsal, those on this machine (default: 1)",
        MACHINES,
        read=values.at_least(1),
    )
    image: str = option("", "URI", "container image (default: Google's for PyTorch)", MACHINES)
    # image: the image's own entry point starts the training, with the settings as arguments.
    start: parts.Start = option(
        "bundle",
        "NAME",
        "bundle: send this code along (default); image: the image starts the training",
        MACHINES,
    )
    data: str = option(
        "", "gs://...", "the data set: data.root of the config", DATA, read=values.place
    )
    output: str = option(
        "",
        "gs://...",
        "folder of jobs, each a folder (default: gs://PROJECT-vertex-staging-REGION/segtrain)",
        DATA,
        read=values.place,
    )
    # Becomes ``out`` of the training config.
    checkpoints: str = option(
        "",
        "gs://...",
        "run folder that outlives the job (default: a folder of the job itself)",
        DATA,
        read=values.place,
    )
    staging: str = option(
        "", "gs://...", "folder for the code (default: the output)", DATA, read=values.place
    )
    requirements: str = option("", "FILE", "further packages for pip", DATA, read=values.local_path)
    disk_gb: int = option(
        100, "GB", "boot disk of each host (default: 100)", MACHINES, read=values.at_least(10)
    )
    disk_type: str = option(
        "pd-ssd",
        "NAME",
        "boot disk of each host (default: pd-ssd)",
        MACHINES,
        read=parts.named_as("a type, as pd-ssd or hyperdisk-balanced", "(pd|hyperdisk)-[a-z-]+"),
    )
    scheduling: parts.Scheduling = option(
        "STANDARD", "NAME", "standard (default), spot, or flex-start", TIME, read=parts.scheduling
    )
    max_wait: int | None = option(
        None,
        "TIME",
        "longest wait for machines of flex-start; 0: no limit (default: 24h)",
        TIME,
        read=values.seconds,
    )
    # Not needed for segtrain, whose ranks find each other again by themselves.
    restart_all: bool = option(False, "", "restart all replicas when one of them restarts", TIME)
    disable_retries: bool = option(False, "", "do not start again after an internal error", TIME)
    service_account: str = option(
        "",
        "EMAIL",
        "account that the job runs as (default: Vertex AI's service agent)",
        read=parts.named_as("NAME@DOMAIN.gserviceaccount.com"),
    )
    network: str = option("", "NAME", f"peered network: {NETWORK}", read=parts.named_as(NETWORK))
    reserved_ip_ranges: tuple[str, ...] = option(
        (), "NAME", "allocated range of the peered network; repeatable", flag="--reserved-ip-range"
    )
    psc_attachment: str = option("", "NAME", "network attachment of Private Service Connect")
    tensorboard: str = option(
        "", "NAME", f"TensorBoard: {TENSORBOARD}", read=parts.named_as(TENSORBOARD)
    )
    experiment: str = option("", "NAME", "Vertex AI experiment")
    experiment_run: str = option("", "NAME", "run of the experiment")
    persistent_resource: str = option(
        "", "ID", "persistent resource, whose machines already run", MACHINES
    )
    reservation: str = option(
        "",
        "NAME",
        f"reserved machines: {RESERVATION}",
        MACHINES,
        read=parts.named_as(RESERVATION),
    )
    nfs: tuple[Nfs, ...] = option(
        (),
        "NAME=SERVER:/PATH",
        "share that appears as /mnt/nfs/NAME; repeatable",
        DATA,
        read=parts.nfs,
    )
    lustre: tuple[Lustre, ...] = option(
        (),
        "NAME=IP:/FILESYSTEM,INSTANCE",
        "Managed Lustre as /mnt/lustre/NAME; repeatable",
        DATA,
        read=parts.lustre,
    )
    kms: str = option("", "NAME", f"key of the disks: {KEY}", read=parts.named_as(KEY))
    web_access: bool = option(False, "", "allow a shell in the containers, from the console")
    labels: Mapping[str, str] = option(
        dict, "KEY=VALUE", "label of the job; repeatable", flag="--label"
    )
