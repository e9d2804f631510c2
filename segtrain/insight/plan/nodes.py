"""Machines without a type: the nodes of a cluster, and the host of a past run."""

from __future__ import annotations

from segtrain.insight.diagnose.stats import Rank
from segtrain.machines import Machine
from segtrain.machines.gpu_names import gpu_named

GBIT = 25.0  # network of a node, which neither sinfo nor a run tells


def node(name: str, cores: int, memory_gb: float, kind: str, count: int) -> Machine:
    """A node with ``count`` GPUs that its cluster, or its driver, calls ``kind``. It costs nothing."""
    known = gpu_named(kind) if count else None
    gpu = known.name if known else kind
    return Machine(
        name=f"{name} ({count} x {gpu or 'GPU'})" if count else name,
        gpus=count,
        gpu=gpu,
        arch=known.arch if known else "",
        gpu_memory_gb=known.memory_gb if known else 0,
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
    gpus = rank.ranks_here if rank.device.startswith("cuda") else 0
    return node(f"a host of {rank.host_cores} cores", rank.host_cores, 0.0, rank.gpu, gpus)
