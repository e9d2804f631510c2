"""Passes over noise before the first step: they compile the network, and let DDP arrange its
buckets.
"""

from __future__ import annotations

import contextlib
from typing import cast

import torch
from torch import Tensor

from segtrain.config import Size
from segtrain.models.base import OwnModel
from segtrain.parallel.strategy import Strategy
from segtrain.training.graphs import noise
from segtrain.training.learner import Learner
from segtrain.training.start.trial import state_restored
from segtrain.training.step import frozen_running_stats, restored_buffers

VARIANTS = 32  # of one block: its widths, strides, with and without gradients, ...


def settle_buckets(
    learner: Learner, strategy: Strategy, images: int, size: Size, used_heads: int | None
) -> None:
    """Let DDP arrange its buckets as before the run stopped, by a backward pass without effect. A
    collective.

    DDP rebuilds its buckets after its first step, and the bucket of a gradient decides in which
    order the ranks are summed. ``images``: number in one micro-batch of a rank; ``size``: their
    height and width. ``used_heads``: how many outputs the loss reads; None: all of them.
    """
    # With parallel.exact, the order of sums is that of a tree.
    if strategy.name in ("ddp", "smddp") and strategy.world_size > 1 and not strategy.exact:
        _blank_pass(learner, strategy, images, size, used_heads, sync=True)


def compile_ahead(
    learner: Learner,
    strategy: Strategy,
    images: set[int],
    sizes: list[Size],
    used_heads: int | None,
    twice: bool,
) -> None:
    """Compile for micro-batches of these numbers of images and sizes (height, width) now, by passes
    without effect.

    Otherwise a step would take as long as a compilation when the crops grow (train.progressive).
    ``twice``: a step also makes a pass without gradients, for the totals of its loss. Call it on
    all ranks alike.
    """
    limits = torch._dynamo.config
    name = "recompile_limit" if hasattr(limits, "recompile_limit") else "cache_size_limit"
    setattr(limits, name, max(getattr(limits, name), VARIANTS * len(sizes) * len(images)))
    for size in sizes:
        for count in sorted(images):
            if twice:
                with torch.no_grad(), frozen_running_stats(learner.model):
                    _blank_pass(learner, strategy, count, size, used_heads)
            _blank_pass(learner, strategy, count, size, used_heads)


def _blank_pass(
    learner: Learner,
    strategy: Strategy,
    images: int,
    size: Size,
    used_heads: int | None,
    sync: bool = False,
) -> None:
    """A forward pass, and if gradients are on a backward pass. Gradients and changes of the model
    are dropped.
    """
    blank = learner.micro(noise(learner, images, size, strategy.device)).images
    own = (
        state_restored(learner.plain)
        if isinstance(learner.plain, OwnModel)
        else contextlib.nullcontext()
    )
    with restored_buffers(learner.plain), own, strategy.sharing(learner.model, last=sync):
        with learner.precision.autocast():
            heads = learner.model(blank, low=True)
        if torch.is_grad_enabled():
            cast(Tensor, sum(head.float().sum() for head in heads[:used_heads])).backward()
    for parameter in learner.parameters:
        parameter.grad = None
