"""How do ranks tell each other something, when sums are all they can exchange? Each one adds its own, and zeros elsewhere."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from segtrain.parallel.strategy import Strategy


def table(strategy: Strategy, row: Tensor) -> Tensor:
    """int64 (world, n): row r is rank r's ``row`` (n,), exactly. One collective."""
    rows = torch.zeros(strategy.world_size, len(row), dtype=torch.int64, device=strategy.device)
    rows[strategy.rank] = row
    return strategy.reduce(rows)


def broadcast_json(strategy: Strategy, source: int, value: Any = None) -> Any:
    """The JSON value that rank ``source`` gives, on every rank. Two collectives."""
    text = json.dumps(value).encode() if strategy.rank == source else b""
    length = int(strategy.reduce(torch.tensor([len(text)], device=strategy.device)))
    letters = torch.zeros(length, dtype=torch.int32, device=strategy.device)
    if strategy.rank == source:
        letters.copy_(torch.tensor(list(text), dtype=torch.int32))
    return json.loads(bytes(strategy.reduce(letters).tolist()).decode())


def names_of(strategy: Strategy, ranks: list[int]) -> str:
    """``rank 3 (host b)``, or ``ranks 3, 4 and 9 more (host b)`` with the host of the first of them. A collective."""
    import socket

    first = ranks[0]
    host = broadcast_json(strategy, first, socket.gethostname())
    if len(ranks) == 1:
        return f"rank {first} (host {host})"
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"ranks {', '.join(map(str, ranks[:4]))}{more} (host {host})"
