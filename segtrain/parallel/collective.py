"""Messages between ranks through sums, the one operation that every backend has, and digests of tensors."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from segtrain.parallel.strategy import Strategy

# Bytes that travel at once. _RECENT keeps a few of the last ones.
CHUNK = 1 << 24
# Words of small tensors that are digested together: each alone would cost a kernel launch, and large ones a copy.
TOGETHER = 1 << 19
LANES = 1024

# Gloo's thread may free a tensor after all_reduce has returned. In torch 2.0 it then waits for the interpreter, while
# the thread that frees the group holds the interpreter and waits for Gloo's. DDP keeps the group as long as the model,
# which may outlive destroy_process_group: these tensors stay alive until others come, so Gloo does not free them.
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


def broadcast_bytes(strategy: Strategy, source: int, content: bytes, wanted: bool = True) -> bytes:
    """Rank ``source``'s bytes, as sums of int32: SMDDP has no other operation. b"" where they are not wanted."""
    length = int(strategy.reduce(torch.tensor([len(content)], device=strategy.device)))
    parts = []
    for begin in range(0, length, CHUNK):
        size = min(CHUNK, length - begin)
        words = np.zeros(-(-size // 4), np.int32)
        if strategy.rank == source:
            words.view(np.uint8)[:size] = np.frombuffer(content, np.uint8, size, begin)
        whole = strategy.reduce(torch.from_numpy(words).to(strategy.device))
        if wanted:
            parts.append(whole.cpu().numpy().tobytes()[:size])
    return b"".join(parts)


def broadcast_json(strategy: Strategy, source: int, value: Any = None) -> Any:
    """Rank ``source``'s JSON value on every rank."""
    text = json.dumps(value).encode() if strategy.rank == source else b""
    return json.loads(broadcast_bytes(strategy, source, text))


def names_of(strategy: Strategy, ranks: list[int]) -> str:
    """``rank 3 (host b)``, or ``ranks 3, 4 and 9 more (host b)`` with the host of the first of them. A collective."""
    first = ranks[0]
    host = broadcast_json(strategy, first, socket.gethostname())
    if len(ranks) == 1:
        return f"rank {first} (host {host})"
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"ranks {', '.join(map(str, ranks[:4]))}{more} (host {host})"


def words(value: Tensor) -> Tensor:
    """int64: the bits in the order of the values, filled up with zeros. A view wherever memory allows it."""
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
    if raw.numel() % 8 or raw.data_ptr() % 8:
        raw = torch.cat([raw, raw.new_zeros(-raw.numel() % 8)])
    return raw.view(torch.int64)


def _together(values: Iterable[Tensor]) -> Iterator[Tensor]:
    held: list[Tensor] = []
    for each in map(words, values):
        if held and sum(map(len, held)) + len(each) > TOGETHER:
            yield torch.cat(held) if len(held) > 1 else held[0]
            held = []
        held.append(each)
    if held:
        yield torch.cat(held) if len(held) > 1 else held[0]


def digest(values: Iterable[Tensor], device: torch.device) -> Tensor:
    """int64 scalar on ``device``, where the values are, without waiting for it: equal bits give equal digests.

    The words of all tensors are added up in LANES sums, and these with odd weights: one pass at the speed of memory,
    modulo 2**64. A difference in a single word always shows; several would have to cancel out. This finds mistakes, not
    forgeries.
    """
    weights = (torch.arange(LANES, device=device) * 0x1E3779B97F4A7C15) | 1
    whole = torch.zeros((), dtype=torch.int64, device=device)
    for chunk in _together(values):
        rows = len(chunk) // LANES
        sums = chunk[: rows * LANES].view(rows, LANES).sum(0)
        rest = chunk[rows * LANES :]
        sums[: len(rest)] += rest
        whole = whole * 0x2545F4914F6CDD1D + (sums * weights).sum()
    return whole
