"""The sum of a tensor over all ranks."""

from __future__ import annotations

from collections import deque

import torch.distributed as dist
from torch import Tensor

# Gloo's thread may drop a tensor after all_reduce has returned. In torch 2.0 it then waits for the interpreter, while
# whoever frees the group holds the interpreter and waits for the thread. DDP keeps the group until the model goes, and
# that may be long after destroy_process_group: these tensors live on until others come, so they are not its to free.
_RECENT: deque[Tensor] = deque(maxlen=8)


def all_reduce(value: Tensor) -> None:
    """Sum over ranks, in place. ``value`` stays alive for a while: one with a graph would keep that too."""
    _RECENT.append(value)
    dist.all_reduce(value)
