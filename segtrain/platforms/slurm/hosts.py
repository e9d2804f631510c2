"""The place of a process in a Slurm job, and checks of how the ranks were started."""

from __future__ import annotations

import functools
import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import replace

from segtrain.base.cores import tasks_per_node
from segtrain.errors import ConfigError
from segtrain.parallel.cluster import Cluster, RankStarter, checked, from_mpi, from_torchrun
from segtrain.parallel.launchers import mpi_launchers, number

SLURM = RankStarter("slurm", ranks_in_order=False, hosts_are_up=True)
# SLURM_NTASKS is set in a batch script and in salloc's shell as well; this variable only under
# srun.
TASKS = "SLURM_STEP_NUM_TASKS"

ASK_S = 10.0
# Environment variables of CUDA and ROCm that tell a process which GPUs it may use.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
# Range of the rendezvous port. It ends below the ports that Linux assigns by itself (from 32768).
FIRST_PORT, PORTS = 20_000, 10_000


def expand_hosts(text: str) -> list[str]:
    """Slurm's ``n[01-03,7],m2`` as ``["n01", "n02", "n03", "n7", "m2"]``."""
    hosts: list[str] = []
    for item in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)?", text):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", item)
        if match is None:
            hosts.append(item)
            continue
        prefix, ranges, suffix = match.groups()
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            hosts += [
                f"{prefix}{n:0{len(first)}d}{suffix}"
                for n in range(int(first), int(last or first) + 1)
            ]
    return hosts


@functools.cache
def address(host: str) -> str:
    """The name of a node if it resolves, else the address that Slurm knows. If both fail, the name.

    Names may fail to resolve, because Slurm itself does not need that. The address comes from the
    command scontrol, which this node may lack.
    """
    try:
        socket.getaddrinfo(host, None)
        return host
    except (OSError, UnicodeError):
        pass
    try:
        command = ["scontrol", "-o", "show", "node", host]
        shown = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return host
    match = re.search(r"\bNodeAddr=(\S+)", shown)
    return match[1] if match else host


def port(environ: Mapping[str, str]) -> int:
    """The port of the rendezvous. It differs between neighboring jobs, between steps of a job, and
    after a requeue.
    """
    job, step, restarts = (
        int(text) if (text := environ.get(key, "")).isdigit() else 0
        for key in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    )
    return FIRST_PORT + (job * 31 + step * 7 + restarts) % PORTS


def ranks(environ: Mapping[str, str]) -> Cluster | None:
    """The place of a process in a Slurm job, which torchrun, srun, or MPI started, or none of them;
    None elsewhere.
    """
    if TASKS not in environ and "SLURM_JOB_ID" not in environ:
        return None
    cluster = from_torchrun(environ) or _step(environ) or from_mpi(environ) or Cluster()
    cluster = replace(cluster, gpu_caveat=gpu_caveat(environ))
    if not cluster.alone:
        return cluster
    caveat, refusal = without_step(environ, socket.gethostname())
    return replace(cluster, lone_caveat=caveat, lone_refusal=refusal)


def _step(environ: Mapping[str, str]) -> Cluster | None:
    """The place of a task of a step of several tasks, unless a launcher of MPI runs inside the
    step.
    """
    if "SLURM_PROCID" not in environ or environ.get(TASKS, "1") == "1":
        return None
    started_as = environ["SLURM_PROCID"], environ[TASKS]
    # srun --mpi=pmi2 sets MPICH's variables, too; Slurm's also name the hosts.
    if any(
        started_as != (environ[row.rank], environ.get(row.size)) for row in mpi_launchers(environ)
    ):
        return None
    rank, world_size, node = (
        number(environ, key, "0") for key in ("SLURM_PROCID", TASKS, "SLURM_NODEID")
    )
    hosts = expand_hosts(
        environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_NODELIST", "127.0.0.1"))
    )
    tasks = tasks_per_node(environ)
    local_world_size = tasks[node] if node < len(tasks) else -(-world_size // len(hosts))
    first = environ.get("MASTER_ADDR") or ("127.0.0.1" if len(hosts) == 1 else address(hosts[0]))
    port_number = number(environ, "MASTER_PORT", str(port(environ)))
    local_rank = number(environ, "SLURM_LOCALID", "0")
    return checked(
        Cluster(rank, world_size, local_rank, local_world_size, first, port_number, SLURM)
    )


def without_step(environ: Mapping[str, str], host: str) -> tuple[str, ConfigError | None]:
    """A warning for a process inside a Slurm job that srun did not start, or an error on a host
    outside the job.

    The shell of salloc may run on such a host: it runs where salloc was typed.
    """
    job = environ.get("SLURM_JOB_ID")
    if job is None or TASKS in environ:
        return "", None
    nodes = environ.get("SLURM_JOB_NODELIST", "")
    names = {name.partition(".")[0] for name in expand_hosts(nodes)}
    if "SLURMD_NODENAME" not in environ and names and host.partition(".")[0] not in names:
        return "", ConfigError(
            f"this process would train on {host}, outside Slurm job {job} ({nodes}): start it with "
            "srun, or unset SLURM_JOB_ID to train here all the same",
            code="outside-slurm-job",
            job=job,
            host=host,
        )
    if environ.get("SLURM_JOB_NUM_NODES", "1") == "1":
        return "", None
    return (
        f"warning: Slurm job {job} has {environ['SLURM_JOB_NUM_NODES']} nodes ({nodes}), but this "
        "process trains on one alone: start it with srun to use all"
    ), None


def gpu_caveat(environ: Mapping[str, str]) -> str:
    """A text for a task of a Slurm step that cannot know which GPUs are its own: why, and how to
    fix it; else "".
    """
    if TASKS not in environ or any(environ.get(name) for name in _VISIBLE):
        return ""
    if any(
        environ.get(name) for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE")
    ):
        return (
            "srun --gpu-bind=none hides which GPUs of the node are this job's: leave the flag out"
        )
    return "Slurm gave this step no GPU: ask for them with srun --gres=gpu:N, or --gpus-per-task=1"
