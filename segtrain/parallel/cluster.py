"""Rank, world size, and rendezvous of a process, from the variables of its launcher or a platform.
Imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from segtrain.errors import ConfigError
from segtrain.parallel.launchers import (
    TORCHRUN,
    Launcher,
    mpi_launchers,
    number,
    refuse_unknown_launcher,
)


@dataclass(frozen=True)
class RankStarter:
    """What started the ranks.

    ``ranks_in_order``: the ranks of a host have consecutive numbers. ``hosts_are_up``: all hosts
    have started before the first rank, so that a name that does not resolve at once never will.
    """

    name: str
    ranks_in_order: bool = True
    hosts_are_up: bool = False


NOTHING = RankStarter("none")
SEGTRAIN = RankStarter("segtrain")


@dataclass(frozen=True)
class Cluster:
    """This process's place among all processes of the job.

    ``local_world_size``: 0 if the launcher does not say it, until the ranks meet. ``hosts`` and, on
    the first rank of each host, ``host``, its number, are right only after the ranks have met.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 29500
    source: RankStarter = NOTHING
    hosts: int = 1
    host: int = 0
    machine: str = ""  # type of this host, such as "ml.g5.xlarge"; "": unknown
    interface: str = ""  # network interface between the hosts; "": NCCL and gloo choose one
    # why this process cannot know which GPUs are its own, and the fix; "": it can
    gpu_caveat: str = ""
    lone_caveat: str = ""  # a warning if this process trains alone
    lone_refusal: ConfigError | None = None  # why this process must not train alone

    @property
    def alone(self) -> bool:
        """Whether nothing has started this process as a rank: it may start other ranks of this host
        itself.
        """
        return self.source == NOTHING

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


# The place of this process; None if the variables of this source are not set. Raises ConfigError if
# they are incomplete or contradict each other.
RankSource = Callable[[Mapping[str, str]], Cluster | None]


def from_torchrun(environ: Mapping[str, str]) -> Cluster | None:
    """Also for a single process, and for any program that sets the variables of torchrun."""
    return (
        _launched(TORCHRUN, environ)
        if TORCHRUN.rank in environ or TORCHRUN.size in environ
        else None
    )


def from_mpi(environ: Mapping[str, str]) -> Cluster | None:
    """Of several processes. Raises ConfigError if a launcher that is not known has started
    several.
    """
    for launcher in mpi_launchers(environ):
        return _launched(launcher, environ)
    refuse_unknown_launcher(environ)
    return None


LAUNCHERS: tuple[RankSource, ...] = (from_torchrun, from_mpi)


def discover(
    sources: Sequence[RankSource] = LAUNCHERS, environ: Mapping[str, str] = os.environ
) -> Cluster:
    """This process's place in the job, from the first source that knows it; else it is alone."""
    return next(
        (cluster for source in sources if (cluster := source(environ)) is not None), Cluster()
    )


def checked(cluster: Cluster) -> Cluster:
    """Raises ConfigError for values that cannot be."""
    local = cluster.local_world_size or 1
    if not (0 <= cluster.rank < cluster.world_size and 0 <= cluster.local_rank < local):
        raise ConfigError(
            f"{cluster.source.name} says rank {cluster.rank} of {cluster.world_size}, local rank "
            f"{cluster.local_rank} of {local}: its variables contradict each other: use torchrun "
            "or srun, or unset them",
            code="launcher-contradicts-itself",
            rank=cluster.rank,
            world_size=cluster.world_size,
        )
    if not 0 < cluster.master_port < 65536:
        raise ConfigError(
            f"the environment variable MASTER_PORT={cluster.master_port} is not a port: set it to "
            "a number from 1 to 65535 (1024 or more, unless you are root)",
            code="bad-launcher-variable",
            key="MASTER_PORT",
            found=cluster.master_port,
        )
    return cluster


def _launched(launcher: Launcher, environ: Mapping[str, str]) -> Cluster:
    rank = number(environ, launcher.rank)
    world_size = number(environ, launcher.size)
    local_rank, local_world_size = 0, int(world_size == 1)
    if launcher.local_rank in environ and launcher.local_size in environ:
        local_rank = number(environ, launcher.local_rank)
        local_world_size = number(environ, launcher.local_size)
    address = environ.get("MASTER_ADDR") or ("127.0.0.1" if local_world_size == world_size else "")
    port = number(environ, "MASTER_PORT", "29500")
    source = RankStarter(launcher.name, ranks_in_order=launcher is TORCHRUN)
    cluster = checked(
        Cluster(rank, world_size, local_rank, local_world_size, address, port, source)
    )
    if not address:
        error = ConfigError(
            f"{launcher.size}={world_size}, but no variable says where rank 0 is: set "
            "MASTER_ADDR to its host in each "
            "process (mpirun -x MASTER_ADDR=HOST, mpiexec -genv MASTER_ADDR HOST)",
            code="master-addr-missing",
            found=launcher.name,
        )
        error.silent = rank > 0
        raise error
    return cluster


def free_port(limits: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> int:
    """A free port below the range that the kernel assigns from (``limits``), because a rank binds
    it seconds later.
    """
    try:
        first = int(limits.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768  # the default of Linux
    below = range(10_000, min(first, 30_000))
    for port in [*random.SystemRandom().sample(below, min(len(below), 100)), 0]:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise ConfigError(
        "no port is free on this host: end programs that hold ports (ss -lnt)", code="no-free-port"
    )
