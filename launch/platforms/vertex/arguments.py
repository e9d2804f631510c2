"""Command-line flags for Vertex AI jobs. The result has only the flags that are given; the job file sets the others."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from launch.core.flags import FlagParser, add_rehearsal, refuse_flags

PLANTS = ("fail:RANK", "stop:STEP", "spot:STEP", "kill:STEP", "late:SECONDS")
OF_A_REHEARSAL = ("procs", "sample", "plant", "folder")  # flags that only a rehearsal reads
EPILOG = """section.key=value changes a setting of the training config, as with `segtrain train`.

Problems are reported before anything is submitted; --dry-run and --rehearse need no Google Cloud project.
"""
# Names of flags in other tools -> names here.
CALLED_HERE = {
    "--display-name": "--name",
    "--location": "--region",
    "--machine-type": "--machine",
    "--accelerator-type": "--accelerator",
    "--accelerator-count": "--accelerator TYPE:COUNT",
    "--replica-count": "--hosts",
    "--container-image-uri": "--image",
    "--container-uri": "--image",
    "--executor-image-uri": "--image",
    "--base-output-dir": "--output",
    "--staging-bucket": "--staging",
    "--boot-disk-size-gb": "--disk-gb",
    "--boot-disk-type": "--disk-type",
    "--timeout": "--max-run",
    "--max-wait-duration": "--max-wait",
    "--scheduling-strategy": "--scheduling",
    "--restart-job-on-worker-restart": "--restart-all",
    "--labels": "--label",
    "--enable-web-access": "--web-access",
    "--persistent-resource-id": "--persistent-resource",
    "--worker-pool-spec": "--machine, --accelerator, --hosts, and --image",
    "--args": "section.key=value",
}
_SWITCHES = {
    "restart_all": "restart all replicas when one of them restarts",
    "disable_retries": "do not start again after an internal error",
    "web_access": "allow a shell in the containers, from the console",
}
_TEXTS = {
    "machines": (
        ("machine", "TYPE", "machine type, such as n1-standard-32 (default: g2-standard-12)"),
        ("accelerator", "TYPE:COUNT", "GPUs of each host, such as NVIDIA_TESLA_T4:4 (default: what the type has)"),
        ("strategy", "NAME", "single, ddp, fsdp, or dp (default: ddp)"),
        ("image", "URI", "container image (default: Google's for PyTorch)"),
        ("start", "NAME", "bundle: send this code along (default); image: the image starts the training by itself"),
        ("disk-type", "NAME", "boot disk of each host (default: pd-ssd)"),
        ("persistent-resource", "ID", "persistent resource, whose machines already run"),
        ("reservation", "NAME", "reserved machines: projects/P/zones/Z/reservations/NAME"),
    ),
    "data and results": (
        ("config", "FILE", "training config (default: configs/scenes.yaml)"),
        ("data", "gs://...", "the data set: data.root of the config"),
        ("output", "gs://...", "folder of jobs (default: gs://PROJECT-vertex-staging-REGION/segtrain)"),
        ("checkpoints", "gs://...", "run folder that outlives the job (default: a folder of the job itself)"),
        ("staging", "gs://...", "folder for the code (default: the output)"),
    ),
    "time and money": (
        ("max-run", "TIME", "limit of the training time, such as 6h or 90m (default: 24h)"),
        ("like", "RUN", "a past run with this config, to predict time and cost"),
        ("scheduling", "NAME", "standard (default), spot, or flex-start"),
        ("max-wait", "TIME", "longest wait for machines of flex-start; 0: no limit (default: 24h)"),
    ),
    "project": (
        ("project", "ID", "default: GOOGLE_CLOUD_PROJECT, or that of the credentials"),
        ("region", "NAME", "default: GOOGLE_CLOUD_REGION, CLOUD_ML_REGION, CLOUDSDK_AI_REGION, or us-central1"),
        ("service-account", "EMAIL", "account that the job runs as (default: the service agent of Vertex AI)"),
        ("network", "NAME", "peered network: projects/NUMBER/global/networks/NAME"),
        ("psc-attachment", "NAME", "network attachment of Private Service Connect"),
        ("tensorboard", "NAME", "TensorBoard: projects/P/locations/R/tensorboards/ID"),
        ("experiment", "NAME", "Vertex AI experiment"),
        ("experiment-run", "NAME", "run of the experiment"),
        ("kms", "NAME", "key that encrypts the job's disks"),
        ("requirements", "FILE", "further packages for pip"),
        ("name", "WORD", "prefix of the job's name (default: segtrain)"),
    ),
}
_LISTS = {
    "reserved-ip-range": ("reserved_ip_ranges", "NAME", "allocated range of the peered network; repeatable"),
    "nfs": ("nfs", "NAME=SERVER:/PATH", "share that appears as /mnt/nfs/NAME; repeatable"),
    "lustre": ("lustre", "NAME=IP:/FILESYSTEM,INSTANCE", "Managed Lustre as /mnt/lustre/NAME; repeatable"),
    "label": ("labels", "KEY=VALUE", "repeatable"),
    "env": ("environment", "KEY=VALUE", "repeatable"),
}


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of all flags. A flag that is not given leaves no attribute, so that the job file decides."""
    parser = FlagParser(
        command,
        "--dry-run | --rehearse | --attach JOB | --stop JOB",
        "Train on Vertex AI: check a job, rehearse it, submit it, and follow it.",
        EPILOG,
        CALLED_HERE,
    )
    _add_actions(parser)
    for title, flags in _TEXTS.items():
        group = parser.add_argument_group(title)
        for flag, metavar, text in flags:
            group.add_argument(f"--{flag}", metavar=metavar, help=text)
        if title == "machines":
            group.add_argument("--hosts", type=int, metavar="N", help="number of hosts (default: 1)")
            group.add_argument("--disk-gb", type=int, metavar="GB", help="boot disk of each host (default: 100)")
    for flag, (key, metavar, text) in _LISTS.items():
        group.add_argument(f"--{flag}", dest=key, action="append", metavar=metavar, help=text)
    for key, text in _SWITCHES.items():
        group.add_argument(f"--{key.replace('_', '-')}", action="store_true", help=text)
    group.add_argument("--job", metavar="FILE", help="YAML file with all of these, such as configs/jobs/vertex.yaml")
    _add_rehearsal(parser)
    return parser


def _add_actions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("action (default: check, ask, submit, and follow)")
    group.add_argument("--dry-run", action="store_true", help="print the request and its problems; submit nothing")
    group.add_argument("--rehearse", action="store_true", help="run the same request on this machine, on CPU ranks")
    group.add_argument("--attach", metavar="JOB", help="follow a submitted job: its name, number, or resource name")
    group.add_argument("--stop", metavar="JOB", help="cancel a job; its checkpoints stay")
    group.add_argument("--yes", action="store_true", help="submit without asking")
    group.add_argument("--no-follow", action="store_true", help="submit, print how to attach, and exit")


def _add_rehearsal(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("rehearsal (--hosts is then the number of hosts on this machine)")
    add_rehearsal(group, "stands for the data", PLANTS)


def refuse_together(known: Mapping[str, object]) -> None:
    """Raises ConfigError for flags that exclude each other, and for rehearsal flags without --rehearse."""
    exclusive = (("dry_run", "rehearse", "attach"), ("dry_run", "rehearse", "stop"), ("attach", "stop"))
    refuse_flags(known, exclusive, OF_A_REHEARSAL)
