"""What must a resumed run of several ranks have besides the weights, so that it goes on to the bit?

Two things that no checkpoint of DDP holds. Batch norm's statistics are each rank's own between two scores; and DDP sums
gradients in buckets, which it lays anew after its first step: where a gradient lies in a bucket decides in which order it is
summed over the ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from segtrain.config import Size
from segtrain.models.base import SegModel
from segtrain.optim import Ema
from segtrain.parallel.strategy import Strategy
from segtrain.train.step import running_statistics_kept

if TYPE_CHECKING:
    from segtrain.train.learner import Learner


def _statistics(model: nn.Module, ema: Ema | None) -> list[Tensor]:
    """Batch norm's means and variances, and their moving averages; without a frozen encoder's, which all ranks share."""
    frozen = isinstance(model, SegModel) and model.frozen
    still = {id(b) for part in model.encoder_parts() for b in part.buffers()} if frozen else set()  # type: ignore[operator]
    found = [(name, b) for name, b in model.named_buffers() if b.is_floating_point() and id(b) not in still]
    shadow = ema.shadow if ema is not None else {}
    return [buffer for _, buffer in found] + [shadow[name] for name, _ in found if name in shadow]


@torch.no_grad()
def _fill(buffers: list[Tensor], flat: Tensor) -> None:
    for buffer, values in zip(buffers, flat.split([b.numel() for b in buffers])):
        buffer.copy_(values.view_as(buffer))


@contextlib.contextmanager
def mean_buffers(model: nn.Module, ema: Ema | None, strategy: Strategy) -> Iterator[Tensor | None]:
    """Batch-norm statistics are their mean over ranks while the context lasts: the saved and the scored model is the same on each.

    Yields those of each rank, float64 (world_size, numbers), or None for one rank. Afterwards each rank has its own again.
    Running statistics are linear in the batches, so the mean at the end is that of the whole run. A collective.
    """
    buffers = _statistics(model, ema)
    if strategy.world_size == 1 or not buffers:
        yield None
        return
    own = torch.cat([b.detach().reshape(-1).double() for b in buffers])
    rows = torch.zeros((strategy.world_size, len(own)), dtype=torch.float64, device=own.device)
    rows[strategy.rank] = own
    strategy.reduce(rows)  # each number plus zeros: nothing is rounded
    _fill(buffers, rows.mean(0))
    try:
        yield rows
    finally:
        _fill(buffers, own)


def restore_buffers(model: nn.Module, ema: Ema | None, strategy: Strategy, rows: Tensor | None) -> None:
    """Give a rank of a resumed run its own statistics; with another number of ranks each goes on from the mean."""
    buffers = _statistics(model, ema)
    size = (strategy.world_size, sum(b.numel() for b in buffers))
    if rows is not None and rows.shape == size:
        _fill(buffers, rows[strategy.rank].to(buffers[0].device))


def settle_buckets(learner: Learner, strategy: Strategy, images: int, size: Size, used_heads: int | None) -> None:
    """Let DDP lay its buckets as the run had them before it stopped: a backward pass that has no effect. A collective.

    ``images``: of one micro-batch of a rank, ``size``: their height and width. ``used_heads``: how many outputs the loss reads, None:
    all of them.
    """
    if strategy.name not in ("ddp", "smddp") or strategy.world_size == 1:
        return
    layout = torch.channels_last if learner.channels_last else torch.contiguous_format
    blank = torch.zeros(images, 3, *size, device=strategy.device).to(memory_format=layout)
    with running_statistics_kept(learner.model), strategy.sharing(learner.model, last=True):
        with learner.precision.autocast():
            heads = learner.model(blank, low=True)
        cast(Tensor, sum(head.float().sum() for head in heads[:used_heads])).backward()
    for parameter in learner.parameters:
        parameter.grad = None
