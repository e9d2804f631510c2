"""Guarantee 1: the gradient does not depend on the number of ranks or micro-batches. Checked in
float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from segtrain.base.compat import BatchNorm
from segtrain.config import Config, Origin
from segtrain.data.datasets import open_dataset
from segtrain.data.order import samples
from segtrain.data.pixels.normalize import normalize
from segtrain.data.train_loader import Batch, TrainLoader, widened
from segtrain.losses import build_criterion
from segtrain.models import build_model
from segtrain.observe.clock import Clock
from segtrain.parallel import syncbn
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.model import unwrapped
from segtrain.parallel.strategy import start
from segtrain.prove.ranks import on_ranks
from segtrain.prove.short import changed
from segtrain.prove.table import ONE_RANK, ProofRow, listed, row
from segtrain.training.start.initial import starting_network
from segtrain.training.step import Micro, Precision, gradients

BOUND = 1e-6  # relative; float64 rounding stays below 1e-10
NAME = "1 world size"


@dataclass(frozen=True)
class Measured:
    difference: float  # relative difference of a gradient from the reference
    images: int
    batch_norms: int  # in the model
    unsynced: int  # batch norms that cannot be synchronized over ranks


def prove_gradient(folder: Path, config: Config, worlds: list[int]) -> Iterator[ProofRow]:
    """Compare the gradient on each of ``worlds`` ranks with that on one rank."""
    batch = 2 * max(2, *worlds)
    wide = [world for world in worlds if world > 1]

    def measure(
        world: int, accumulate: int = 1, frozen: bool = False, write: bool = False
    ) -> Measured:
        settings = batch, accumulate, frozen, str(folder / "gradient.pt"), write
        return on_ranks(folder, world, gradient, config, *settings)[0]  # type: ignore[no-any-return]

    first = measure(1)
    if not wide:
        yield row(NAME, "gradient on several ranks", ONE_RANK)
    elif first.unsynced:
        why = (
            f"{first.unsynced} batch norms cannot be synchronized over ranks; the next row "
            "compares them frozen"
        )
        yield row(NAME, f"gradient on {listed(wide)} ranks compared with 1", why)
    else:
        synced = ", synchronized batch norm" if first.batch_norms else ""
        yield _row(
            f"gradient on {listed(wide)} ranks compared with 1{synced}",
            [measure(world) for world in wide],
        )

    if config.train.device == "cuda" and config.parallel.backend == "gloo":
        yield row(
            NAME,
            f"gradient on {listed(wide)} ranks over NCCL",
            "NCCL takes one rank per GPU; --ranks asks for more",
        )

    # With accumulation, batch norm sees micro-batches instead of the batch, so the network is a
    # different function. Freeze batch norm to make the gradients comparable.
    frozen = first.batch_norms > 0
    if frozen:
        measure(1, frozen=True, write=True)
    measurements = [measure(world, 2, frozen) for world in (1, *wide)]
    if wide and frozen:
        measurements.append(measure(max(wide), frozen=True))
    compared = (
        f"gradient in 2 micro-batches on {listed([1, *wide])} ranks compared with 1 whole batch"
    )
    why = (
        "batch norm is frozen, because with accumulation its statistics are those of a micro-batch"
    )
    yield _row(compared, measurements, why if frozen else "")


def _row(compared: str, measurements: list[Measured], remark: str = "") -> ProofRow:
    worst = max((m.difference for m in measurements), key=lambda d: d if d == d else float("inf"))
    compared = f"{compared}, {measurements[0].images} images, float64"
    return row(NAME, compared, remark, worst <= BOUND, f"{worst:.1e}", f"{BOUND:.0e}")


def gradient(
    cluster: Cluster,
    config: Config,
    batch: int,
    accumulate: int,
    frozen: bool,
    reference: str,
    write: bool = False,
) -> Measured:
    """Compare the gradient of the first step with the one in the file ``reference``.

    If the file does not exist, or with ``write``, this gradient is written to it instead.
    ``frozen``: batch norm uses the statistics of the whole batch, which the file contains.
    """
    settings = changed(
        config, parallel__sync_bn=not frozen, train__batch_size=batch, train__accumulate=accumulate
    )
    with start(settings.parallel, cluster, settings.train.device) as strategy:
        dataset = open_dataset(settings.data, settings.data.train_split)
        labels = dataset.labels
        torch.manual_seed(settings.train.seed)
        network = build_model(settings.model, labels.num_classes, settings.data.channels)
        if not settings.loss.aux_weight:
            network.freeze_auxiliary()
        starting_network(
            network,
            settings.model.init,
            settings.model.frozen_with(len(dataset)),
            labels.names,
            strategy,
        )
        plain = network.double()
        reference_state = (
            torch.load(reference, weights_only=True) if Path(reference).is_file() else None
        )
        batch_norms = _prepare(plain, reference_state if frozen else None)
        model = strategy.wrap(plain)
        unsynced = sum(
            type(m) is not nn.BatchNorm2d and not isinstance(m, syncbn.SyncBatchNorm2d)
            for m in batch_norms
        )
        criterion = build_criterion(settings.loss, labels.num_classes, labels.ignore_index, None)
        with TrainLoader(
            dataset,
            settings.data,
            seed=settings.train.seed,
            batch_size=batch,
            accumulate=accumulate,
            rank=cluster.rank,
            world=cluster.world_size,
            last_step=1,
        ) as loader:
            batches = next(iter(loader))
        epochs, indices = samples(settings.train.seed, len(dataset), 0, batch)
        origin = Origin().changed(settings.data)
        planted = list(zip(epochs[:2].tolist(), indices[:2].tolist()))
        share, _ = gradients(
            model,
            [_micro(b, planted, labels.ignore_index, strategy.device, origin) for b in batches],
            criterion,
            strategy,
            Precision(strategy.device.type, "fp32", settings.loss.full_logits),
            seed=settings.train.seed,
            votes=torch.zeros(1, dtype=torch.float64, device=strategy.device),
            aux_weight=settings.loss.aux_weight,
            clock=Clock(),
        )
        loss = strategy.reduce(share.clone())
        inner = unwrapped(model)
        parts = [p.grad.reshape(-1) for p in inner.parameters() if p.grad is not None]
        gradient_and_loss = torch.cat([*parts, loss.reshape(1)]).cpu()
        buffers = {name: value.to("cpu", copy=True) for name, value in inner.named_buffers()}
    if (reference_state is None or write) and cluster.rank == 0:
        torch.save(
            {
                "gradient": gradient_and_loss,
                "buffers": reference_state["buffers"] if reference_state else buffers,
            },
            reference,
        )
    expected = (
        gradient_and_loss if reference_state is None or write else reference_state["gradient"]
    )
    return Measured(_relative(gradient_and_loss, expected), batch, len(batch_norms), unsynced)


def _relative(actual: Tensor, expected: Tensor) -> float:
    """The larger of two relative differences: of the gradient, and of the loss (last element). NaN
    for 0 / 0.
    """
    if actual.shape != expected.shape:
        return float("inf")
    gradient = (actual[:-1] - expected[:-1]).norm() / expected[:-1].norm()
    loss = (actual[-1] - expected[-1]).abs() / expected[-1].abs()
    return float(torch.maximum(gradient, loss))  # maximum keeps NaN


def _prepare(model: nn.Module, reference_state: dict[str, Any] | None) -> list[BatchNorm]:
    """Set training mode without dropout. Batch norm records the statistics of the batch, or uses
    those in ``reference_state``.
    """
    model.train()
    for module in model.modules():
        if any(
            word in type(module).__name__ for word in ("Dropout", "DropPath", "StochasticDepth")
        ):
            module.eval()  # Otherwise each rank would draw its own dropout.
    batch_norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    for batch_norm in batch_norms:
        batch_norm.momentum = 1.0  # the running statistics become those of this batch
        batch_norm.train(reference_state is None)
    if reference_state is not None:
        for name, buffer in model.named_buffers():
            buffer.copy_(reference_state["buffers"][name])
    return batch_norms


def _micro(
    batch: Batch,
    planted: list[tuple[int, int]],
    ignore_index: int,
    device: torch.device,
    origin: Origin,
) -> Micro:
    """The batch in float64 on ``device``.

    The first of the ``planted`` samples (epoch, index) becomes void, and the second half void.
    """
    masks = widened(batch.masks.clone())
    for k, sample in enumerate(zip(batch.epochs.tolist(), batch.indices.tolist())):
        if sample == planted[0]:
            masks[k] = ignore_index
        elif sample == planted[1]:
            masks[k, : masks.shape[1] // 2] = ignore_index
    return Micro(
        normalize(batch.images, origin.mean, origin.std).double().to(device), masks.to(device)
    )
