"""Sentinel: checks that all ranks have equal networks, and that together they use each sample once
per epoch.

It checks this every ``log.sentinel`` steps.

After the update, every parameter, its moving average, and every buffer that must be equal on all
ranks are compared bit by bit. These may differ, and are not compared:

- Running mean and variance of batch norm, unless parallel.sync_bn is on: each rank keeps the
statistics of its own images until they are averaged for a score or a checkpoint (``mean_buffers``).
num_batches_tracked is compared.
- Parameters that fsdp has sharded: each value is on one rank only, so there is nothing to compare.
Buffers are not sharded, and are compared.

The hashes of the samples that all ranks used are summed. A second sum is over the samples that
should have been used, which the sampling order (data/order.py) gives for these steps. In this
order, an epoch has each sample once. So if the sums agree, no sample was used twice or left out.

A check is one collective of (ranks + 3) int64. In all other steps, a rank only notes the ids of its
samples. All ranks read the same sums, so they find the same fault, and run the same collectives to
describe it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from segtrain.base.compat import NormBase
from segtrain.config import Config
from segtrain.data.dataset import Dataset
from segtrain.data.order import samples
from segtrain.data.train_loader import Batch
from segtrain.errors import DataError, SegtrainError
from segtrain.observe.clock import Clock
from segtrain.optim import Ema
from segtrain.parallel.collective import digest, names_of, table
from segtrain.parallel.strategy import Strategy
from segtrain.training.learner import Learner
from segtrain.training.start.derived import Plan

SHOWN = 3  # samples in one error
LOW = 2**32 - 1


class Sentinel:
    """Checks every ``log.sentinel`` steps. Raises SegtrainError or DataError, the same on all
    ranks.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        strategy: Strategy,
        learner: Learner,
        dataset: Dataset,
        first: int,
    ) -> None:
        self._config = config
        self._plan = plan
        self._strategy = strategy
        self._learner, self._dataset = learner, dataset
        self._every = config.log.sentinel
        self._first = first  # the first step whose samples were not checked yet, counted from 0
        # epochs and ids of each micro-batch since that step
        self._taken: list[tuple[np.ndarray, np.ndarray]] = []

    def step(self, step: int, loaded: list[Batch], clock: Clock) -> None:
        """Call it after the update of ``step`` (counted from 1), which trained on ``loaded``."""
        if not self._every:
            return
        self._taken += [(batch.epochs, batch.indices) for batch in loaded]
        if step % self._every == 0 or step == self._plan.steps:
            with clock("log"):
                self._check(step)

    def _check(self, step: int) -> None:
        strategy, world = self._strategy, self._strategy.world_size
        tensors = alike(self._learner.plain, self._learner.ema, strategy) if world > 1 else {}
        epochs, ids = (np.concatenate(parts) for parts in zip(*self._taken))
        row = torch.zeros(world + 3, dtype=torch.int64, device=strategy.device)
        row[strategy.rank] = digest(tensors.values(), strategy.device)
        row[world:] = torch.tensor(_halves(epochs, ids), device=strategy.device)
        numbers = strategy.reduce(row).tolist()
        if len(set(numbers[:world])) > 1:
            raise _weights_differ(tensors, strategy, step)
        size = self._plan.batch_size
        due = samples(
            self._config.train.seed,
            len(self._dataset),
            self._first * size,
            (step - self._first) * size,
        )
        if _whole(numbers[world:]) != _whole(_halves(*due)):
            raise self._samples_differ((epochs, ids), due, step)
        self._first, self._taken = step, []

    def _samples_differ(
        self, taken: Sequence[np.ndarray], due: Sequence[np.ndarray], step: int
    ) -> DataError:
        """The error that says which samples came too often or not at all, and from which ranks. All
        ranks call this.
        """
        strategy = self._strategy
        n, first = len(self._dataset), int(due[0][0])
        size = (int(due[0][-1]) - first + 1) * n
        mine = (taken[0] - first) * n + taken[1]
        valid = (mine >= 0) & (mine < size) & (taken[1] >= 0) & (taken[1] < n)
        counts = torch.from_numpy(np.bincount(mine[valid], minlength=size)).to(strategy.device)
        all_ranks = strategy.reduce(counts.clone()).cpu().numpy()
        wrong = all_ranks - np.bincount((due[0] - first) * n + due[1], minlength=size)
        shown = np.flatnonzero(wrong)[:SHOWN].tolist()
        by_rank = table(strategy, counts[shown]).cpu().numpy() if shown else np.zeros((0, 0))
        lines = []
        for k, index in enumerate(shown):
            ranks = (
                ", ".join(f"rank {rank}" for rank in np.flatnonzero(by_rank[:, k]).tolist())
                or "no rank"
            )
            times = f"{all_ranks[index]} times" if all_ranks[index] else "not at all"
            name = self._dataset.entries[index % n].image
            lines.append(
                f"sample {index % n} ({name}) of epoch {first + index // n} {times} (by {ranks})"
            )
        more = np.count_nonzero(wrong) - len(lines)
        lines += [f"and {more:,} more"] if more else []
        return DataError(
            f"steps {self._first + 1} to {step} did not use the samples that the sampling order "
            f"specifies: {'; '.join(lines) or 'some are of another epoch, or of no epoch'}: check "
            "that each process has its own RANK and all have one WORLD_SIZE; the same command goes "
            "on from the newest checkpoint",
            code="samples-out-of-order",
            step=step,
        )


def alike(model: nn.Module, ema: Ema | None, strategy: Strategy) -> dict[str, Tensor]:
    """Tensors, by name, that must have equal bits on all ranks (the start of this file lists the
    others).
    """
    own: set[str] = set()
    if not strategy.settings.sync_bn:
        batch_norms = [
            prefix for prefix, module in model.named_modules() if isinstance(module, NormBase)
        ]
        own = {
            f"{prefix}.{name}".lstrip(".")
            for prefix in batch_norms
            for name in ("running_mean", "running_var")
        }
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if ema is not None:
        tensors |= {
            f"{name} (moving average)": value
            for name, value in ema.shadow.items()
            if name not in own
        }
    return {
        name: value
        for name, value in tensors.items()
        if name not in own and not hasattr(value, "full_tensor")
    }


def _halves(epochs: np.ndarray, ids: np.ndarray) -> list[int]:
    """A 64-bit hash of each (epoch, id), summed: the lower and the upper 32 bits of the sum, and
    the number of ids.
    """
    mixed = ids.astype(np.uint64) + epochs.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    # of splitmix64, Steele et al. 2014
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    whole = int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))
    return [whole & LOW, whole >> 32, len(ids)]


def _whole(halves: Sequence[int]) -> tuple[int, int]:
    return (halves[0] + (halves[1] << 32)) % 2**64, halves[2]


def _weights_differ(tensors: dict[str, Tensor], strategy: Strategy, step: int) -> SegtrainError:
    """The error that names the first tensor that differs, and on which ranks. All ranks must call
    this.
    """
    each = torch.stack([digest([value], strategy.device) for value in tensors.values()])
    columns = list(zip(*table(strategy, each).tolist()))
    differing = [k for k, column in enumerate(columns) if len(set(column)) > 1]
    first = differing[0]
    column = columns[first]
    # if several are equally frequent, that of the lowest rank
    usual = max(column, key=column.count)
    outliers = [rank for rank, value in enumerate(column) if value != usual]
    model = column.index(usual)
    name = list(tensors)[first]
    return SegtrainError(
        f"after step {step} the network is not the same on all ranks: {name} on "
        f"{names_of(strategy, outliers)} differs from rank {model} (it is the first of "
        f"{len(differing):,} of {len(tensors):,} tensors): look for code that changes weights on "
        "some ranks only, for hosts with other hardware or versions, or for faulty memory; the "
        "same command goes on from the newest checkpoint, which holds rank 0's weights; "
        "log.sentinel=0 turns this check off, as running statistics in a layer of your own need "
        "it, whose mean over ranks is scored and saved",
        code="rank-weights-differ",
        step=step,
        tensor=name,
        ranks=outliers,
    )
