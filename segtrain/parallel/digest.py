"""A digest of tensors, computed on their device without waiting for it: equal bits give equal digests.

The words of all tensors are added up in LANES sums, and these with odd weights: one pass at the speed of memory, modulo 2**64. A
difference in a single word always shows; several would have to cancel out. This finds mistakes, not forgeries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

LANES = 1024
CHUNK = 1 << 19  # words that are put together: small tensors would cost a kernel launch each, large ones a copy


def words(value: Tensor) -> Tensor:
    """int64: the bits in the order of the values, filled up with zeros. A view wherever memory allows it."""
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
    if raw.numel() % 8 or raw.data_ptr() % 8:
        raw = torch.cat([raw, raw.new_zeros(-raw.numel() % 8)])
    return raw.view(torch.int64)


def _together(values: Iterable[Tensor]) -> Iterator[Tensor]:
    held: list[Tensor] = []
    for each in map(words, values):
        if held and sum(map(len, held)) + len(each) > CHUNK:
            yield torch.cat(held) if len(held) > 1 else held[0]
            held = []
        held.append(each)
    if held:
        yield torch.cat(held) if len(held) > 1 else held[0]


def digest(values: Iterable[Tensor], device: torch.device) -> Tensor:
    """int64 scalar on ``device``, where the values are. Chunks have their places in it as words have."""
    weights = (torch.arange(LANES, device=device) * 0x1E3779B97F4A7C15) | 1
    whole = torch.zeros((), dtype=torch.int64, device=device)
    for chunk in _together(values):
        rows = len(chunk) // LANES
        sums = chunk[: rows * LANES].view(rows, LANES).sum(0)
        rest = chunk[rows * LANES :]
        sums[: len(rest)] += rest
        whole = whole * 0x2545F4914F6CDD1D + (sums * weights).sum()
    return whole
