"""What ranks tell each other through sums, the one operation that every backend has."""

from __future__ import annotations

import json
import socket
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from segtrain.parallel.strategy import Strategy

# Gloo's thread may drop a tensor after all_reduce has returned. In torch 2.0 it then waits for the interpreter, while
# whoever frees the group holds the interpreter and waits for the thread. DDP keeps the group until the model goes, and
# that may be long after destroy_process_group: these tensors live on until others come, so they are not its to free.
_RECENT: deque[Tensor] = deque(maxlen=8)


def all_reduce(value: Tensor) -> None:
    """Sum over ranks, in place. ``value`` stays alive for a while: one with a graph would keep that too."""
    _RECENT.append(value)
    dist.all_reduce(value)


def table(strategy: Strategy, row: Tensor) -> Tensor:
    """int64 (world, n): row r is rank r's ``row`` (n,), exactly. One collective: each rank adds its row to zeros."""
    rows = torch.zeros(strategy.world_size, len(row), dtype=torch.int64, device=strategy.device)
    rows[strategy.rank] = row
    return strategy.reduce(rows)


def broadcast_json(strategy: Strategy, source: int, value: Any = None) -> Any:
    """Rank ``source``'s JSON value on every rank, by two sums: SMDDP has no other operation."""
    text = json.dumps(value).encode() if strategy.rank == source else b""
    length = int(strategy.reduce(torch.tensor([len(text)], device=strategy.device)))
    letters = torch.zeros(length, dtype=torch.int32, device=strategy.device)
    if strategy.rank == source:
        letters.copy_(torch.tensor(list(text), dtype=torch.int32))
    return json.loads(bytes(strategy.reduce(letters).tolist()).decode())


def names_of(strategy: Strategy, ranks: list[int]) -> str:
    """``rank 3 (host b)``, or ``ranks 3, 4 and 9 more (host b)`` with the host of the first of them. A collective."""
    first = ranks[0]
    host = broadcast_json(strategy, first, socket.gethostname())
    if len(ranks) == 1:
        return f"rank {first} (host {host})"
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"ranks {', '.join(map(str, ranks[:4]))}{more} (host {host})"
