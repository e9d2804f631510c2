"""Messages between ranks, sent as sums, the only collective that every backend has; and digests of
tensors.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from segtrain.parallel.strategy import Strategy

# A message is sent in parts of at most this many bytes. The parts are small because _RECENT keeps a
# few of them alive.
CHUNK = 1 << 24
# Small tensors are concatenated up to this number of words and digested together, to save kernel
# launches. Larger tensors are digested alone, because concatenating them would copy them.
TOGETHER = 1 << 19
LANES = 1024

# Gloo's thread may free a tensor after all_reduce has returned. In torch 2.0 it then waits for the
# GIL, while the thread that frees the process group holds the GIL and waits for Gloo's thread: a
# deadlock. DDP keeps the group as long as the model, which may outlive destroy_process_group. So
# the newest tensors stay alive here: Gloo does not free them.
_RECENT: deque[Tensor] = deque(maxlen=8)


def all_reduce(value: Tensor) -> None:
    """Sum over ranks, in place. ``value`` stays alive for a while, and with it its autograd graph,
    if it has one.
    """
    _RECENT.append(value)
    dist.all_reduce(value)


def table(strategy: Strategy, row: Tensor) -> Tensor:
    """The rows of all ranks, as int64 (world, n): row r is the ``row`` (n,) of rank r. All ranks
    must call it.

    Each rank puts its row into a table of zeros. One sum over ranks joins the tables, without
    rounding (integers).
    """
    rows = torch.zeros(strategy.world_size, len(row), dtype=torch.int64, device=strategy.device)
    rows[strategy.rank] = row
    return strategy.reduce(rows)


def outliers_of(strategy: Strategy, numbers: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Ranks whose numbers differ from those of rank 0, and the numbers of all ranks. A
    collective.
    """
    row = torch.tensor(numbers, dtype=torch.int64, device=strategy.device)
    rows = table(strategy, row).tolist()
    return [rank for rank, row in enumerate(rows) if row != rows[0]], rows


def broadcast_bytes(strategy: Strategy, source: int, content: bytes, wanted: bool = True) -> bytes:
    """The ``content`` of rank ``source``, on every rank. A rank that passes ``wanted=False`` gets
    b"" instead.

    All ranks must call it. What ranks other than ``source`` pass as ``content`` is ignored. The
    bytes are sent as sums of int32, because SMDDP has no other operation.
    """
    mine = len(content) if strategy.rank == source else 0
    length = int(strategy.reduce(torch.tensor([mine], device=strategy.device)))
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


def broadcast_json(strategy: Strategy, source: int, value: Any) -> Any:
    """Rank ``source``'s JSON value on every rank."""
    text = json.dumps(value).encode() if strategy.rank == source else b""
    return json.loads(broadcast_bytes(strategy, source, text))


def names_of(strategy: Strategy, ranks: list[int]) -> str:
    """``rank 3 (host b)``, or ``ranks 3, 4, 5, 6 and 9 more (host b)`` with the first rank's host.
    A collective.
    """
    first = ranks[0]
    host = broadcast_json(strategy, first, socket.gethostname())
    if len(ranks) == 1:
        return f"rank {first} (host {host})"
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"ranks {', '.join(map(str, ranks[:4]))}{more} (host {host})"


def words(value: Tensor) -> Tensor:
    """int64 (n,): the bytes of ``value`` in order, padded with zeros. A view if size and alignment
    allow it.
    """
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
    """Digest of tensors on ``device``, as an int64 scalar on it. Equal bits give equal digests. No
    wait for the GPU.

    The words of all tensors are added up in LANES sums, and these sums are added with odd weights,
    modulo 2**64. This takes one pass at the speed of memory. A difference in a single word always
    changes the digest; several differences could only cancel out by chance. This finds mistakes,
    not forgeries.
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
