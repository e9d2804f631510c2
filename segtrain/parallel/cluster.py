"""Rank, world size, and rendezvous, as set by a launcher, Ray, SageMaker, or Vertex AI. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from segtrain.base.cores import tasks_per_node
from segtrain.errors import ConfigError
from segtrain.parallel.launchers import SLURM, Launcher, launcher_of, number
from segtrain.platforms.ray import hosts as ray_hosts
from segtrain.platforms.sagemaker import hosts as sagemaker_hosts
from segtrain.platforms.slurm import hosts as slurm_hosts
from segtrain.platforms.vertex.hosts import Replicas, read_replicas


@dataclass(frozen=True)
class Cluster:
    """This process's place among all processes of the job.

    ``local_world_size``: 0 if the launcher does not say it, until the ranks meet. ``hosts`` and, on the first rank of
    each host, ``host``, its number, are right only after the ranks have met.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 29500
    source: str = "none"  # where these values come from: segtrain, sagemaker, vertex, ray, none, or a launcher's name
    hosts: int = 1
    host: int = 0

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

    The sources, in this order, are the variables of launchers (see launchers.py; a worker of Ray Train sets torchrun's,
    see segtrain/platforms/ray/worker.py), then SageMaker's file
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
    launcher = launcher_of(environ)
    if launcher is not None:
        return _from_launcher(launcher, environ, resource_config)
    if resource_config.is_file():
        return _checked(_from_sagemaker(environ, resource_config))
    replicas = read_replicas(environ)
    return _checked(_from_vertex(environ, replicas)) if replicas else Cluster()


def _checked(cluster: Cluster) -> Cluster:
    local = cluster.local_world_size or 1
    if not (0 <= cluster.rank < cluster.world_size and 0 <= cluster.local_rank < local):
        raise ConfigError(
            f"{cluster.source} says rank {cluster.rank} of {cluster.world_size}, local rank {cluster.local_rank} of "
            f"{local}: its variables contradict each other: use torchrun or srun, or unset them",
            code="launcher-contradicts-itself", rank=cluster.rank, world_size=cluster.world_size,
        )  # fmt: skip
    if not 0 < cluster.master_port < 65536:
        raise ConfigError(
            f"the environment variable MASTER_PORT={cluster.master_port} is not a port: set it to a number from 1 to "
            "65535 (1024 or more, unless you are root)",
            code="bad-launcher-variable", key="MASTER_PORT", found=cluster.master_port,
        )  # fmt: skip
    return cluster


def _from_launcher(launcher: Launcher, environ: Mapping[str, str], resource_config: Path) -> Cluster:
    rank, world_size = number(environ, launcher.rank), number(environ, launcher.size)
    local_rank, here, master, port = 0, int(world_size == 1), environ.get("MASTER_ADDR", ""), 29500
    if launcher is SLURM:
        hosts = slurm_hosts.expand_hosts(environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_NODELIST", "127.0.0.1")))
        node, tasks, port = number(environ, "SLURM_NODEID", "0"), tasks_per_node(environ), slurm_hosts.port(environ)
        local_rank = number(environ, launcher.local_rank, "0")
        here = tasks[node] if node < len(tasks) else -(-world_size // len(hosts))
        master = master or ("127.0.0.1" if len(hosts) == 1 else slurm_hosts.address(hosts[0]))
    elif launcher.local_rank in environ and launcher.local_size in environ:
        local_rank, here = number(environ, launcher.local_rank), number(environ, launcher.local_size)
    if not master and here == world_size:
        master = "127.0.0.1"
    if not master and resource_config.is_file():
        master = sagemaker_hosts.read_hosts(resource_config).training[0]
    source = "ray" if ray_hosts.WORKER in environ else launcher.name
    port = number(environ, "MASTER_PORT", str(port))
    cluster = _checked(Cluster(rank, world_size, local_rank, here, master, port, source))
    if not master:
        error = ConfigError(
            f"{launcher.size}={world_size}, but no variable says where rank 0 is: set MASTER_ADDR to its host in each "
            "process (mpirun -x MASTER_ADDR=HOST, mpiexec -genv MASTER_ADDR HOST)",
            code="master-addr-missing", found=launcher.name,
        )  # fmt: skip
        error.silent = rank > 0
        raise error
    return cluster


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
    return Cluster(rank, len(hosts), 0, 1, hosts[0], number(environ, "MASTER_PORT", "29500"), source="sagemaker")


def _from_vertex(environ: Mapping[str, str], replicas: Replicas) -> Cluster:
    """One process per host, when neither segtrain.platforms.vertex nor a launcher started this process."""
    replicas.refuse_idle()
    if len(replicas.training) == 1:
        return Cluster()  # With one host, ``segtrain train`` starts one process per GPU by itself.
    host, port = replicas.address
    port = number(environ, "MASTER_PORT", str(port))
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
