"""A strict stand-in for SageMaker's collective library (SMDDP). It uses gloo, and refuses what the
real one refuses.

The real library (2.x) registers the backend "smddp" when it is imported. It supports SUM, MIN, MAX,
and PRODUCT but not AVG, and only one process group for the whole job. It does not support barrier
with device_ids, SyncBatchNorm, or _allgather_base.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class Refused(RuntimeError):
    pass


def _gloo(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


dist.Backend.register_backend("smddp", _gloo, devices=["cpu", "cuda"])

_all_reduce, _barrier = dist.all_reduce, dist.barrier


def _is_ours() -> bool:
    return dist.is_initialized() and dist.get_backend() == "smddp"


def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, *args: Any, **kwargs: Any) -> Any:
    if _is_ours() and op == dist.ReduceOp.AVG:
        raise Refused("SMDDP does not support: ReduceOp")
    return _all_reduce(tensor, op, *args, **kwargs)


def barrier(*args: Any, device_ids: Any = None, **kwargs: Any) -> Any:
    if _is_ours() and device_ids is not None:
        raise Refused("SMDDP does not support barrier(device_ids)")
    return _barrier(*args, **kwargs)


def _refuse(what: str, otherwise: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_ours():
            raise Refused(f"SMDDP does not support {what}")
        return otherwise(*args, **kwargs)

    return call


dist.all_reduce, dist.barrier = all_reduce, barrier
for _name in (
    "new_group",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "broadcast_object_list",
    "all_gather_object",
):
    setattr(dist, _name, _refuse(_name, getattr(dist, _name)))
nn.SyncBatchNorm.forward = _refuse("SyncBatchNorm", nn.SyncBatchNorm.forward)  # type: ignore[method-assign]
