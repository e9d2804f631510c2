"""Sums of values by bin, for confusion matrices and losses, which neither wait for a GPU nor crowd
its atomics.
"""

from __future__ import annotations

import torch
from torch import Tensor

COPIES = 64  # of the bins on a GPU: twice the threads of a warp
MOST = 1 << 20  # numbers in all copies together, which stay in a GPU's cache


def add_up(size: int, index: Tensor, values: Tensor, copies: int | None = None) -> Tensor:
    """(size,), of the dtype of ``values`` (n,): their sum at each index (n,), which must be below
    ``size``.

    A GPU adds with atomics, one after the other if they have the same address, and in a mask most
    pixels have. So neighboring values are added to different copies of the bins there, and the
    copies are summed at the end.
    """
    if copies is None:
        copies = max(1, min(COPIES, MOST // max(1, size))) if index.is_cuda else 1
    if copies > 1:
        lane = torch.arange(len(index), device=index.device) % copies
        index = index * copies + lane
    sums = torch.zeros(size * copies, dtype=values.dtype, device=index.device).index_add_(
        0, index, values
    )
    return sums.view(size, copies).sum(1) if copies > 1 else sums
