"""One optimizer step: forward, the loss over the global batch, backward. The same gradient on any
number of ranks.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from segtrain.base.compat import BatchNorm, after_own_gradients
from segtrain.base.precision import autocast
from segtrain.losses import Criterion, low_res_loss, low_res_totals
from segtrain.losses.upsampling import Thinned, Upsample
from segtrain.observe.clock import Clock
from segtrain.parallel.exact import aligned, seed_generators, tree
from segtrain.parallel.model import unwrapped
from segtrain.parallel.strategy import Strategy
from segtrain.training.host_copies import copy_to_host


@dataclass
class Micro:
    """One micro-batch on the device: images float (n, 3, H, W), masks uint8 or int64 (n, H, W)."""

    images: Tensor
    masks: Tensor


@dataclass(frozen=True)
class Precision:
    """The arithmetic of the forward pass, and the pixels that the loss reads."""

    device: str
    name: str = "fp32"  # of segtrain.base.precision.AUTOCAST
    # upsample the logits of the whole micro-batch at once, not image by image
    full_logits: bool = False
    loss_stride: int = 1  # the loss reads every n-th pixel in each direction
    upsample: str = "auto"  # see ``segtrain.losses.ways.chosen``

    @property
    def upsample_mode(self) -> str:
        """How ``low_res_loss`` computes."""
        return "direct" if self.full_logits else self.upsample

    def autocast(self) -> torch.autocast:
        return autocast(self.device, self.name)


def gradients(
    model: nn.Module,
    micros: list[Micro],
    criterion: Criterion,
    strategy: Strategy,
    precision: Precision,
    *,
    seed: int,
    votes: Tensor,
    aux_weight: float = 0.0,
    loss_scale: Tensor | float = 1.0,
    clock: Clock,
    backward: Callable[[Tensor], None] = Tensor.backward,
) -> tuple[Tensor, Tensor]:
    """Add the gradient of the global batch's loss to ``.grad``; return (this rank's share of the
    loss, votes).

    The shares of all ranks add up to the loss. Each term of the loss is weight * sum / count, where
    sum and count are those of the *global* batch. ``votes`` (float64, any length) is summed over
    ranks in the same collective as the totals that the loss needs. Every rank takes part in it,
    whatever its batch holds, and then in DDP's own. ``backward``: runs the backward pass of a
    micro-batch.
    """
    upsample: Upsample = unwrapped(model).upsample  # type: ignore[assignment]
    if precision.loss_stride > 1:
        micros, upsample = _thinned(micros, upsample, precision.loss_stride, seed)
    totals: list[Tensor] | None = None
    # With parallel.exact, no number may depend on the rank, or on what else the rank holds.
    slices = strategy.slices
    rank = 0 if strategy.exact else strategy.rank
    if not criterion.needs_logits:
        totals, votes = _reduced(strategy, [_label_totals(criterion, micros, slices)], votes, clock)
    elif len(micros) > 1:
        with clock("forward"):
            totals, votes = _totals_by_extra_forward(
                model, micros, criterion, upsample, strategy, precision, seed, votes, clock
            )

    share = torch.zeros((), dtype=torch.float64, device=strategy.device)
    for index, micro in enumerate(micros):
        masks = micro.masks.chunk(slices)
        seed_generators(seed_of(seed, rank, index))
        with strategy.sharing(model, last=index == len(micros) - 1):
            with clock("forward"):
                with precision.autocast():
                    heads = model(micro.images, low=True)
                if totals is None:  # one micro-batch, totals from its own logits
                    per_head = [
                        tree(
                            [
                                low_res_totals(criterion, *part, upsample, precision.upsample_mode)
                                for part in zip(aligned(head.detach(), slices), masks)
                            ]
                        )
                        for head in heads
                    ]
                    totals, votes = _reduced(strategy, per_head, votes, clock)
                loss = sum(
                    (1.0 if k == 0 else aux_weight)
                    * tree(
                        [
                            _share(
                                criterion,
                                *part,
                                totals[min(k, len(totals) - 1)],
                                upsample,
                                precision,
                            )
                            for part in zip(aligned(head, slices), masks)
                        ]
                    )
                    for k, head in enumerate(heads)
                    if k == 0 or aux_weight
                )
                share += loss.detach()  # type: ignore[union-attr]
            with clock("backward"):
                scaled: Tensor = loss * (strategy.gradient_scale * loss_scale)  # type: ignore[assignment]
                if strategy.world_size > 1:
                    # The time of backward after this rank's last gradient counts as the phase
                    # gradient_sync.
                    after_own_gradients(scaled, lambda: clock.turn("gradient_sync"))
                backward(scaled)
    return share, votes


def seed_of(seed: int, rank: int, micro: int) -> int:
    """The seed of dropout in a micro-batch: a function of step, rank, and micro-batch."""
    return (seed * 1_000_003 + rank * 1009 + micro) % (2**63)


def _label_totals(criterion: Criterion, micros: list[Micro], slices: int) -> Tensor:
    per_micro = [
        tree([criterion.totals(None, part) for part in micro.masks.chunk(slices)])
        for micro in micros
    ]
    return torch.stack(per_micro).sum(0)


def _thinned(
    micros: list[Micro], upsample: Upsample, stride: int, seed: int
) -> tuple[list[Micro], Thinned]:
    """Micro-batches with masks at every ``stride``-th pixel, and an ``upsample`` that gives the
    logits of these pixels.

    The first pixel is drawn at random for each step, and is the same on all ranks. Over many steps,
    every pixel counts equally, so the gradient is right on average, at a fraction of the loss's
    cost.
    """
    draw = random.Random(seed)
    top, left = draw.randrange(stride), draw.randrange(stride)
    thinned = Thinned(
        upsample, (micros[0].masks.shape[-2], micros[0].masks.shape[-1]), stride, (top, left)
    )
    return [Micro(m.images, m.masks[:, top::stride, left::stride]) for m in micros], thinned


def _share(
    criterion: Criterion,
    head: Tensor,
    masks: Tensor,
    totals: Tensor,
    upsample: Upsample,
    precision: Precision,
) -> Tensor:
    if precision.full_logits:
        return criterion.loss(upsample(head, (masks.shape[-2], masks.shape[-1])), masks, totals)
    return low_res_loss(criterion, head, masks, totals, upsample, precision.upsample_mode)


def _reduced(
    strategy: Strategy, per_head: list[Tensor], votes: Tensor, clock: Clock
) -> tuple[list[Tensor], Tensor]:
    together = torch.cat([*per_head, votes])
    with clock("sync"):
        strategy.reduce(together)
    *totals, votes = together.split([*map(len, per_head), len(votes)])
    return totals, votes


def _totals_by_extra_forward(
    model: nn.Module,
    micros: list[Micro],
    criterion: Criterion,
    upsample: Upsample,
    strategy: Strategy,
    precision: Precision,
    seed: int,
    votes: Tensor,
    clock: Clock,
) -> tuple[list[Tensor], Tensor]:
    """Totals of Dice, OHEM, ... over all micro-batches, from an extra forward pass without
    gradient.

    It draws the same dropout as the pass with gradient.
    """
    sums: list[Tensor] = []
    with torch.no_grad(), frozen_running_stats(model):
        for index, micro in enumerate(micros):
            seed_generators(seed_of(seed, strategy.rank, index))
            with precision.autocast():
                heads = unwrapped(model)(micro.images, low=True)
            each = [
                low_res_totals(criterion, head, micro.masks, upsample, precision.upsample_mode)
                for head in heads
            ]
            sums = [a + b for a, b in zip(sums, each)] if sums else each
    return _reduced(strategy, sums, votes, clock)


@contextlib.contextmanager
def frozen_running_stats(model: nn.Module) -> Iterator[None]:
    """Keep batch norm's running statistics unchanged by the forward passes in this context."""
    batch_norms = [m for m in model.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    before = [(norm.momentum, norm.num_batches_tracked.clone()) for norm in batch_norms]  # type: ignore[union-attr]
    try:
        for norm in batch_norms:
            norm.momentum = 0.0
        yield
    finally:
        for norm, (momentum, count) in zip(batch_norms, before):
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(count)  # type: ignore[union-attr]


@contextlib.contextmanager
def restored_buffers(model: nn.Module) -> Iterator[None]:
    """Afterwards, the buffers hold the values that they held before."""
    buffers = list(model.buffers())
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        if buffers:
            with torch.no_grad():
                torch._foreach_copy_(buffers, before)


class Votes:
    """A few numbers of each rank that are summed over ranks in the one collective of a step
    (``step.gradients``).

    On the CPU the sums of a step are read before the next one. On a GPU they are read two steps
    late, from page-locked memory: by then they have arrived, unless the host is two steps ahead.
    The delay must be the same on all ranks. With NCCL and SMDDP this holds, because every rank has
    a GPU. With gloo, some ranks may have no GPU, so all ranks read the sums before the next step.
    This costs no time, because the host waits for gloo's sums anyway.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._device = strategy.device
        self._on_gpu = strategy.device.type == "cuda"
        self.delay = 2 if self._on_gpu and strategy.backend != "gloo" else 1
        self.signaled = False  # whether a rank that voted for the stop had received a signal
        self._coming: deque[tuple[Tensor, Any]] = deque()

    def pack(self, *numbers: float) -> Tensor:
        """This rank's numbers, float64 on the device: of its signals, of its limits that are
        reached, and others.
        """
        packed = torch.empty(len(numbers), dtype=torch.float64, pin_memory=self._on_gpu)
        return packed.copy_(torch.tensor(numbers, dtype=torch.float64)).to(
            self._device, non_blocking=True
        )

    def copy_to_host(self, sums: Tensor) -> None:
        """Begin to copy the sums of a step to the host. Call it once per step."""
        self._coming.append(copy_to_host(sums))

    def stop(self) -> bool:
        """Whether one of the first two numbers was above zero on any rank, ``delay`` steps ago.

        Call it once before each step.
        """
        if len(self._coming) < self.delay:
            return False
        home, arrived = self._coming.popleft()
        if arrived is not None:
            arrived.synchronize()
        self.signaled = bool(home[0] > 0)
        return bool(home[:2].sum() > 0)
