"""Variables of a rank that a worker of Ray Train starts: its place among the workers, and the
rendezvous.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from segtrain.parallel.cluster import Cluster, RankStarter, from_torchrun

RAY = RankStarter("ray", ranks_in_order=False)
WORKER = "SEGTRAIN_RAY_WORKER"  # set for a rank that Ray Train has started


def environment(context: Any, address: str, port: int) -> dict[str, str]:
    """``context``: ``ray.train.get_context()``; ``address`` and ``port``: the rendezvous, on the
    host of rank 0.
    """
    return {
        WORKER: "1",
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def ranks(environ: Mapping[str, str]) -> Cluster | None:
    """The place of a rank that a worker of Ray Train has started."""
    cluster = from_torchrun(environ) if WORKER in environ else None
    return replace(cluster, source=RAY) if cluster else None
