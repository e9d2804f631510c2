"""The GPUs that a rank sees, and the choice of one of its own for each rank."""

from __future__ import annotations

import warnings

import torch

from segtrain.errors import ConfigError
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.places import RankPlace, host_id, local_ranks


def gpus_in_sight(wanted: str, cluster: Cluster) -> list[str]:
    """An id of each GPU that this process sees, in torch's order; empty: train on the CPU.

    The id is the UUID. A torch that knows none takes the GPU's number, or trusts that a single GPU
    is the rank's own.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return []
    if not torch.cuda.is_available():
        fix = cluster.gpu_caveat or "check the driver (nvidia-smi), or set train.device=cpu"
        raise ConfigError(f"train.device=cuda, but torch sees no GPU: {fix}", code="no-gpu")
    if cluster.gpu_caveat and cluster.local_rank == 0:
        warnings.warn(
            f"{cluster.gpu_caveat}; the GPUs that this job takes may be another job's", stacklevel=2
        )
    count = torch.cuda.device_count()
    uuids = [
        str(getattr(torch.cuda.get_device_properties(index), "uuid", "")) for index in range(count)
    ]
    return [
        uuid or f"{host_id()}/{index if count > 1 else f'rank {cluster.rank}'}"
        for index, uuid in enumerate(uuids)
    ]


def own_gpu(rows: list[RankPlace], cluster: Cluster, backend: str) -> int:
    """The index of this rank's GPU among those that it sees, so that no two ranks have the same
    one.

    Slurm, Kubernetes, and MPI wrappers may show a rank all GPUs of its host, some of them, or one.
    A rank takes the GPU of its local rank if possible. Raises ConfigError on all ranks if one has
    no GPU of its own, which only gloo allows.
    """
    owner: dict[str, int] = {}  # GPU -> rank

    def find(rank: int, tried: set[str]) -> bool:
        """Give the rank a GPU; the present owner of one may have to take another (Kuhn's bipartite
        matching).
        """
        gpus = rows[rank].gpus
        first = local[rank] % max(1, len(gpus))
        # free ones first
        for gpu in sorted(gpus[first:] + gpus[:first], key=lambda gpu: gpu in owner):
            if gpu not in tried:
                tried.add(gpu)
                if gpu not in owner or find(owner[gpu], tried):
                    owner[gpu] = rank
                    return True
        return False

    local = local_ranks(rows)
    without = [rank for rank in range(len(rows)) if not find(rank, set())]
    if without and backend != "gloo":
        rank = without[0]
        raise ConfigError(
            f"rank {rank} (host {rows[rank].host_id.split()[0]}) has no own GPU: it sees "
            f"{len(rows[rank].gpus)}, and the {len(rows)} ranks together {len(owner)}: start at "
            "most one process per GPU (srun --ntasks-per-node, --gres=gpu:N), or give each process "
            "its own GPU (CUDA_VISIBLE_DEVICES, srun --gpus-per-task=1); parallel.backend=gloo "
            "lets processes share one",
            code="too-few-gpus",
            rank=rank,
            found=len(owner),
            expected=len(rows),
        )
    gpus = rows[cluster.rank].gpus
    own = [gpu for gpu, rank in owner.items() if rank == cluster.rank]
    return gpus.index(own[0]) if own else local[cluster.rank] % len(gpus)
