"""The GPU of a rank, chosen from those it sees, and checked against the other ranks before NCCL starts."""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from typing import Any

import torch

from segtrain.errors import ConfigError
from segtrain.parallel.cluster import Cluster

READ_S = 5.0


def own_device(wanted: str, cluster: Cluster) -> torch.device:
    """The CPU, or the GPU of this rank's local number.

    A rank that sees a single GPU takes it, whatever its local number: Slurm (``--gpus-per-task 1``), Kubernetes and MPI
    wrappers give each rank a CUDA_VISIBLE_DEVICES of its own. ``refuse_shared_gpus`` checks that no other rank has it.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        text = "train.device=cuda, but torch sees no GPU: check the driver (nvidia-smi), or set train.device=cpu"
        raise ConfigError(text, code="no-gpu")
    count = torch.cuda.device_count()
    if cluster.local_rank >= count > 1:
        error = ConfigError(
            f"local rank {cluster.local_rank} has no GPU of its own: this process sees {count} GPUs; start at most "
            "that many processes on this host, or give each process its own GPU (CUDA_VISIBLE_DEVICES)",
            code="too-few-gpus", local_rank=cluster.local_rank, found=count,
        )  # fmt: skip
        error.silent = False  # the first rank of the host has one, and would say nothing
        raise error
    index = cluster.local_rank if cluster.local_rank < count else 0
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def refuse_shared_gpus(store: Any, cluster: Cluster, device: torch.device, timeout_s: float) -> None:
    """Raise ConfigError on every rank where two ranks of one host hold the same GPU, which NCCL refuses.

    ``store``: the one in which the ranks meet. Every rank calls it. A torch that does not know a GPU's UUID leaves the
    check to NCCL itself ("Duplicate GPU detected").
    """
    uuid, host = str(getattr(torch.cuda.get_device_properties(device), "uuid", "")), socket.gethostname()
    if uuid:
        if store.add(uuid, 1) == 1:
            store.set(f"{uuid}/rank", str(cluster.rank))
        else:
            other = store.get(f"{uuid}/rank").decode()
            store.set("shared", f"ranks {other} and {cluster.rank} both have GPU {uuid} of host {host}")
            store.add("doubles", 1)
    if store.add("ranks", 1) == cluster.world_size:
        store.set("all", "1")
    store.wait(["all"], timedelta(seconds=timeout_s))
    doubles = store.add("doubles", 0)
    if not doubles:
        return
    error = ConfigError(
        f"{store.get('shared').decode()} ({doubles} of {cluster.world_size} ranks have no GPU of their own): start at "
        "most one process per GPU, or give each process its own GPU (CUDA_VISIBLE_DEVICES, srun --gpus-per-task 1); "
        "parallel.backend=gloo lets processes share one",
        code="gpu-shared", found=doubles, world_size=cluster.world_size,
    )  # fmt: skip
    store.add("read", 1)
    end = time.monotonic() + READ_S
    while cluster.rank == 0 and store.add("read", 0) < cluster.world_size and time.monotonic() < end:
        time.sleep(0.02)  # the store may end with this rank
    raise error
