"""Measures, before the first step, how much time this network loses with more compute threads than
cores.

The diagnosis needs this, because no other figure of a run shows it. At the same CPU usage, a small
network loses most of its time, because threads wait for each other at the end of each operator, and
a large one loses little.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

from segtrain.base.cores import cores, runqueue_wait
from segtrain.config import Config, Size
from segtrain.models.base import channels_of
from segtrain.observe.journal import Say
from segtrain.parallel.strategy import Strategy
from segtrain.training.learner import Learner
from segtrain.training.start.trial import undisturbed
from segtrain.training.step import Precision

THREADS = 1.5  # threads for each core: with fewer, nothing is measured
WORTH = 1.1  # A slowdown by more than this factor, against the best number of threads, is reported.
SECONDS = 1.0  # for each number of threads, because the times vary with how the threads share cores
# If one thread alone had to wait for a core for more than this share of its time, other programs
# used the cores.
LATE = 0.1
# A first pass of more seconds is not repeated, although it includes one-time preparations.
LONG = 4.0


def oversubscription_slowdown(
    learner: Learner,
    strategy: Strategy,
    config: Config,
    size: Size,
    images: int,
    say: Say,
) -> dict[str, Any] | None:
    """The slowdown factors of a ``forward`` and a ``backward`` pass now, against the best number of
    ``threads``.

    None with few threads for each core (``THREADS``), on a GPU, and if the network cannot run on
    one rank alone (sharded, compiled, synchronized batch norm, parallel.exact). Also None if other
    programs used the cores meanwhile: many threads then get a larger share of the cores, and seem
    fast. Weights, gradients, running statistics and random numbers stay unchanged.
    """
    now = torch.get_num_threads()
    ranks = strategy.cluster.local_world_size
    if strategy.device.type != "cpu" or now * ranks < THREADS * cores():
        return None
    together = config.parallel.sync_bn or strategy.exact
    if strategy.name == "fsdp" or config.train.compile or together:
        return None
    batch = torch.rand(
        images,
        channels_of(learner.plain),
        *size,
        generator=torch.Generator().manual_seed(0),
    )
    if learner.channels_last:
        batch = batch.contiguous(memory_format=torch.channels_last)
    random_numbers = torch.get_rng_state()
    try:
        took = {
            n: _passes(learner.plain, batch, learner.precision, n)
            for n in (now, max(1, cores() // ranks))
        }
        before, began = runqueue_wait(), time.perf_counter()
        took[1] = _passes(learner.plain, batch, learner.precision, 1)
        lacked = ((runqueue_wait() or 0.0) - (before or 0.0)) / max(
            1e-9, time.perf_counter() - began
        )
    finally:
        torch.set_num_threads(now)
        torch.set_rng_state(random_numbers)
    if ranks == 1 and lacked > LATE:  # several ranks wait for each other's cores anyway
        say(
            f"  the cost of {now} compute threads on {cores()} cores is not known: other programs "
            f"had the cores for {lacked:.0%} of the time in which one thread was measured"
        )
        return None
    best = min(took, key=lambda n: sum(took[n]))
    times = sum(took[now]) / sum(took[best])
    if times > WORTH:
        say(
            f"  {now} compute threads{' of each rank' * (ranks > 1)} share {cores()} cores: a pass "
            f"takes {times:.2g} x as long as with parallel.threads={best}"
        )
    forward, backward = (round(slow / quick, 3) for slow, quick in zip(took[now], took[best]))
    return {"threads": best, "forward": forward, "backward": backward}


def _passes(
    network: nn.Module, batch: Tensor, precision: Precision, threads: int
) -> tuple[float, float]:
    """Median seconds of a forward and of a backward pass in training mode, after one warm-up pass
    of each.
    """
    torch.set_num_threads(threads)
    weights = [p for p in network.parameters() if p.requires_grad]
    took: list[tuple[float, float]] = []
    network.train()
    with undisturbed(network):
        while len(took) < 2 or sum(map(sum, took[1:])) < SECONDS:
            begin = time.perf_counter()
            with precision.autocast():
                heads = network(batch, low=True)
            total: Tensor = sum(head.float().square().mean() for head in heads)  # type: ignore[assignment]
            middle = time.perf_counter()
            torch.autograd.grad(total, weights, allow_unused=True)
            took.append((middle - begin, time.perf_counter() - middle))
            if sum(took[0]) > LONG:
                break
    forward, backward = (statistics.median(column) for column in zip(*(took[1:] or took)))
    return forward, backward
