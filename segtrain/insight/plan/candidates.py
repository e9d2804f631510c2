"""The machines that a plan chooses from: types of a cloud's table, nodes of a cluster, and the host
of a past run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

from segtrain.errors import ConfigError, closest
from segtrain.insight.diagnose.stats import Rank
from segtrain.machines import TABLES, Machine, all_types, machines
from segtrain.machines.gpu_names import gpu_named

GBIT = 25.0  # network of a node, which neither sinfo nor a run tells


def node(name: str, cores: int, memory_gb: float, kind: str, count: int) -> Machine:
    """A node with ``count`` GPUs that its cluster, or its driver, calls ``kind``. It costs
    nothing.
    """
    gpu_type = gpu_named(kind) if count else None
    gpu = gpu_type.name if gpu_type else kind
    return Machine(
        name=f"{name} ({count} x {gpu or 'GPU'})" if count else name,
        gpus=count,
        gpu=gpu,
        arch=gpu_type.arch if gpu_type else "",
        gpu_memory_gb=gpu_type.memory_gb if gpu_type else 0,
        vcpus=cores,
        memory_gb=round(memory_gb, 1),
        nvme_gb=0,
        network_gbit=GBIT,
        efa=False,
        smddp=False,
        price=0.0,
        price_source="",
        retired="",
        speed=None,
        source="sinfo",
    )


def host_of(rank: Rank) -> Machine:
    """The host of a run's rank."""
    gpus = rank.ranks_on_host if rank.device.startswith("cuda") else 0
    return node(f"a host of {rank.host_cores} cores", rank.host_cores, 0.0, rank.gpu, gpus)


_SINFO = ("sinfo", "--noheader", "--Node", "--format=%N|%c|%m|%G")
_GRES = re.compile(r"(?:^|,)gpu(?::([^:,(]+))?:(\d+)")


def machines_of(where: str) -> list[Machine]:
    """The machines of ``where``: "aws", "gcp", "slurm:PARTITION", or types with commas, also
    retired ones.

    Raises ConfigError.
    """
    if where in TABLES:
        return list(machines(TABLES[where]).values())
    if where.startswith("slurm:"):
        return partition(where.removeprefix("slurm:"))
    types = all_types()
    names = [name.strip() for name in where.split(",")]
    for name in names:
        if name not in types:
            near = closest(name, [*types, *TABLES], 0.6)
            fix = (
                f"did you mean {near}?"
                if near
                else f"write {', '.join(TABLES)}, slurm:PARTITION, or types of their tables"
            )
            raise ConfigError(
                f"--where={where}: unknown machine type {name!r}: {fix}",
                code="unknown-machine-type",
                found=name,
            )
    return [replace(types[name], retired="") for name in names]  # a type that is named is wanted


def partition(name: str) -> list[Machine]:
    """The kinds of node in a Slurm partition, by ``sinfo``. Nodes of a partition cost nothing.
    Raises ConfigError.
    """
    if not shutil.which("sinfo"):
        raise ConfigError(
            f"--where=slurm:{name}: this host has no sinfo: run plan on a login node of the "
            "cluster",
            code="no-sinfo",
            found=name,
        )
    arguments = [*_SINFO, "--partition", name]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(arguments, 1, "", "no answer within 20 s")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(
            f"--where=slurm:{name}: sinfo failed ({reason}): check that the cluster can be "
            "reached from this host",
            code="sinfo-failed",
            found=name,
        )
    kinds = nodes(done.stdout)
    if not kinds:
        raise ConfigError(
            f"--where=slurm:{name}: sinfo lists no node in this partition: `sinfo` lists the "
            "partitions",
            code="no-such-partition",
            found=name,
        )
    return kinds


def nodes(text: str) -> list[Machine]:
    """The kinds of node in the output of sinfo, one for each number of cores and kind of GPU: the
    smallest memory.
    """
    kinds: dict[tuple[int, str, int], Machine] = {}
    for line in text.splitlines():
        name, cores, memory, gres = (word.strip() for word in line.split("|"))
        (kind, count) = next(iter(_GRES.findall(gres)), ("", "0"))
        machine = node(name, int(cores), int(memory.rstrip("+")) / 1024, kind, int(count))
        before = kinds.setdefault((machine.vcpus, machine.gpu, machine.gpus), machine)
        kinds[(machine.vcpus, machine.gpu, machine.gpus)] = replace(
            before, memory_gb=min(before.memory_gb, machine.memory_gb)
        )
    return list(kinds.values())
