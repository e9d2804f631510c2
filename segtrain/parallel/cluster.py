"""Rank, world size, and rendezvous, as set by torchrun, Ray, MPI, Slurm, SageMaker, or Vertex AI. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from segtrain.cores import tasks_per_node
from segtrain.errors import ConfigError
from segtrain.parallel import ray_hosts, sagemaker_hosts, slurm_hosts
from segtrain.parallel.vertex_hosts import Replicas, read_replicas


@dataclass(frozen=True)
class Cluster:
    """This process's place among all processes of the job."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 29500
    source: str = "none"  # where these values come from: torchrun, ray, mpi, slurm, sagemaker, vertex, segtrain, none

    @property
    def hosts(self) -> int:
        return -(-self.world_size // self.local_world_size)

    def environment(self) -> dict[str, str]:
        """The variables that torch.distributed's ``env://`` rendezvous reads."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
        }


def discover(environ: Mapping[str, str] = os.environ, resource_config: Path | None = None) -> Cluster:
    """This process's place in the job, from the first source that is set.

    The sources, in this order, are the variables of torchrun (which a worker of Ray Train sets too, see
    segtrain/platforms/ray_worker.py), of MPI, and of Slurm's ``srun``, then SageMaker's file
    resourceconfig.json, then Vertex AI's CLUSTER_SPEC or TF_CONFIG. If a SageMaker job has several hosts, NCCL and gloo
    are also told to use the network interface that its file names, whatever the launcher, because they might choose
    another interface. Raises ConfigError when a launcher's variables are incomplete or contradict each other.
    """
    resource_config = resource_config or sagemaker_hosts.resource_config(environ)
    if resource_config.is_file():
        hosts = sagemaker_hosts.read_hosts(resource_config)
        if len(hosts.training) > 1 and hosts.interface:
            for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                if variable not in environ:
                    os.environ.setdefault(variable, hosts.interface)
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return _checked(_from_torchrun(environ))
    if "OMPI_COMM_WORLD_RANK" in environ and environ.get("OMPI_COMM_WORLD_SIZE", "1") != "1":
        return _checked(_from_mpi(environ, resource_config))
    # SLURM_NTASKS is set in a batch script and in salloc's shell as well; SLURM_STEP_NUM_TASKS only under srun.
    if _integer(environ, "SLURM_STEP_NUM_TASKS", "1") > 1 and "SLURM_PROCID" in environ:
        return _checked(_from_slurm(environ))
    if resource_config.is_file():
        return _checked(_from_sagemaker(environ, resource_config))
    replicas = read_replicas(environ)
    return _from_vertex(environ, replicas) if replicas else Cluster()


def _checked(cluster: Cluster) -> Cluster:
    if not (0 <= cluster.rank < cluster.world_size and 0 <= cluster.local_rank < cluster.local_world_size):
        raise ConfigError(
            f"{cluster.source} says rank {cluster.rank} of {cluster.world_size}, local rank {cluster.local_rank} of "
            f"{cluster.local_world_size}: its variables contradict each other: use torchrun or srun, or unset them",
            code="launcher-contradicts-itself", rank=cluster.rank, world_size=cluster.world_size,
        )  # fmt: skip
    return cluster


def _integer(environ: Mapping[str, str], key: str, default: str | None = None) -> int:
    text = environ.get(key, default)
    try:
        return int(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        problem = " is missing, but others of its launcher are set" if text is None else f"={text!r} is not a number"
        raise ConfigError(
            f"the environment variable {key}{problem}: start with torchrun or srun, or unset RANK and WORLD_SIZE",
            code="bad-launcher-variable", key=key, found=text,
        ) from None  # fmt: skip


def _from_torchrun(environ: Mapping[str, str]) -> Cluster:
    world_size = _integer(environ, "WORLD_SIZE")
    return Cluster(
        rank=_integer(environ, "RANK"),
        world_size=world_size,
        local_rank=_integer(environ, "LOCAL_RANK", environ["RANK"]),
        local_world_size=_integer(environ, "LOCAL_WORLD_SIZE", str(world_size)),
        master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=_integer(environ, "MASTER_PORT", "29500"),
        source="ray" if ray_hosts.WORKER in environ else "torchrun",
    )


def _from_mpi(environ: Mapping[str, str], resource_config: Path) -> Cluster:
    master = environ.get("MASTER_ADDR")
    if master is None and resource_config.is_file():
        master = sagemaker_hosts.read_hosts(resource_config).training[0]
    if master is None:
        text = "mpirun gives no rendezvous: set MASTER_ADDR to the host of rank 0 (mpirun -x MASTER_ADDR=HOST)"
        raise ConfigError(text, code="master-addr-missing")
    return Cluster(
        rank=_integer(environ, "OMPI_COMM_WORLD_RANK"),
        world_size=_integer(environ, "OMPI_COMM_WORLD_SIZE"),
        local_rank=_integer(environ, "OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        local_world_size=_integer(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
        master_addr=master,
        master_port=_integer(environ, "MASTER_PORT", "29500"),
        source="mpi",
    )


def _from_slurm(environ: Mapping[str, str]) -> Cluster:
    hosts = slurm_hosts.expand_hosts(environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_NODELIST", "127.0.0.1")))
    node = _integer(environ, "SLURM_NODEID", "0")
    world_size = _integer(environ, "SLURM_STEP_NUM_TASKS")
    tasks = tasks_per_node(environ)
    master = environ.get("MASTER_ADDR") or ("127.0.0.1" if len(hosts) == 1 else slurm_hosts.address(hosts[0]))
    return Cluster(
        rank=_integer(environ, "SLURM_PROCID"),
        world_size=world_size,
        local_rank=_integer(environ, "SLURM_LOCALID", "0"),
        local_world_size=tasks[node] if node < len(tasks) else -(-world_size // len(hosts)),
        master_addr=master,
        master_port=_integer(environ, "MASTER_PORT", str(slurm_hosts.port(environ))),
        source="slurm",
    )


def _from_sagemaker(environ: Mapping[str, str], resource_config: Path) -> Cluster:
    """One process per host, when the container's entry point started no launcher.

    Hosts are sorted here because instance groups list them in any order; the first need not be algo-1.
    """
    found = sagemaker_hosts.read_hosts(resource_config)
    hosts = sorted(found.training)
    if not found.trains:
        text = f"the host {found.current} is in the group {found.group!r}, which does not train: start nothing on it"
        raise ConfigError(text, code="host-does-not-train", host=found.current)
    rank = hosts.index(found.current)
    return Cluster(rank, len(hosts), 0, 1, hosts[0], _integer(environ, "MASTER_PORT", "29500"), source="sagemaker")


def _from_vertex(environ: Mapping[str, str], replicas: Replicas) -> Cluster:
    """One process per host, when neither segtrain.platforms.vertex nor a launcher started this process."""
    replicas.refuse_idle()
    if len(replicas.training) == 1:
        return Cluster()  # With one host, ``segtrain train`` starts one process per GPU by itself.
    host, port = replicas.address
    port = _integer(environ, "MASTER_PORT", str(port))
    return Cluster(replicas.number, len(replicas.training), 0, 1, host, port, source="vertex")


def free_port(limits: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> int:
    """A free port below the range that the kernel assigns from (``limits``), because a rank binds it seconds later."""
    try:
        first = int(limits.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768  # the default of Linux
    below = range(10_000, min(first, 30_000))
    for port in [*random.SystemRandom().sample(below, min(len(below), 100)), 0]:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise ConfigError("no port is free on this host: end programs that hold ports (ss -lnt)", code="no-free-port")
