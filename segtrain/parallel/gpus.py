"""Choice of a rank's GPU, and a check, before NCCL starts, that no two ranks have the same GPU."""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch

from segtrain.errors import ConfigError
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.slurm_hosts import gpus_unsaid

READ_S = 5.0


def own_device(wanted: str, cluster: Cluster, environ: Mapping[str, str] = os.environ) -> torch.device:
    """The CPU, or the GPU whose index is this rank's local rank.

    A rank that sees a single GPU takes it, whatever its local rank: Slurm (``--gpus-per-task 1``), Kubernetes, and MPI
    wrappers set CUDA_VISIBLE_DEVICES per rank. ``refuse_shared_gpus`` checks that no other rank has this GPU.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    unsaid = gpus_unsaid(environ)
    if not torch.cuda.is_available():
        fix = unsaid or "check the driver (nvidia-smi), or set train.device=cpu"
        raise ConfigError(f"train.device=cuda, but torch sees no GPU: {fix}", code="no-gpu")
    if unsaid and cluster.local_rank == 0:
        warnings.warn(f"{unsaid}; the GPUs that this job takes may be another job's", stacklevel=2)
    count = torch.cuda.device_count()
    if cluster.local_rank >= count > 1:
        error = ConfigError(
            f"local rank {cluster.local_rank} has no GPU of its own: this process sees {count} GPUs; start at most "
            "that many processes on this host (srun --ntasks-per-node, --gres=gpu:N), or give each process its own GPU "
            "(CUDA_VISIBLE_DEVICES, srun --gpus-per-task=1)",
            code="too-few-gpus", local_rank=cluster.local_rank, found=count,
        )  # fmt: skip
        error.silent = False  # The first rank of the host has a GPU, so it would not report this error.
        raise error
    index = cluster.local_rank if cluster.local_rank < count else 0
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def refuse_shared_gpus(store: Any, cluster: Cluster, device: torch.device, timeout_s: float) -> None:
    """Raise ConfigError on every rank if two ranks of a host have the same GPU, which NCCL refuses.

    ``store``: the store of the rendezvous. Every rank must call this function. If this version of torch does not know
    the UUID of a GPU, the check is left to NCCL itself ("Duplicate GPU detected").
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
        time.sleep(0.02)  # Let the others read the error first, because the store may end with this rank.
    raise error
