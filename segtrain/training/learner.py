"""The network in training with its loss, optimizer and moving average, which are built, restored
and saved together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from segtrain.base.precision import AUTOCAST
from segtrain.config import FEW_IMAGES, Config
from segtrain.data.dataset import Dataset
from segtrain.data.labels.space import LabelSpace
from segtrain.data.train_loader import Batch, normalize, widened
from segtrain.errors import ConfigError
from segtrain.losses.criterion import Criterion, OwnLoss, as_criterion, build_criterion
from segtrain.losses.ways import refuse_fused
from segtrain.models import build_model
from segtrain.models.base import SegModel, as_seg_model, normalization
from segtrain.models.deterministic import refuse_nondeterministic
from segtrain.models.fused import use_kernels
from segtrain.models.weights import fill
from segtrain.optim import Ema, LossScaler, build_optimizer
from segtrain.parallel.collective import all_reduce
from segtrain.parallel.model import (
    full_state,
    load_full_state,
    load_state,
    share,
    taken,
    unsaved,
    unwrapped,
)
from segtrain.parallel.strategy import Strategy
from segtrain.runfolder import checkpoint
from segtrain.training.compiled import compiled
from segtrain.training.start.initial import Initial, starting_network
from segtrain.training.start.numerics import wants_channels_last
from segtrain.training.start.user_objects import UserObjects
from segtrain.training.step import Micro, Precision


@dataclass
class Learner:
    """``model`` is wrapped for the strategy (and compiled), ``plain`` is the network inside it."""

    model: nn.Module
    plain: SegModel
    criterion: Criterion
    optimizer: torch.optim.Optimizer
    ema: Ema | None
    scaler: LossScaler
    precision: Precision
    channels_last: bool
    image_dtype: torch.dtype = torch.float32  # of the images that the network is given in training
    pixel_dtype: torch.dtype = torch.uint8  # of the images in batches

    def micro(self, batch: Batch) -> Micro:
        """The micro-batch with normalized images. They arrive on the device as uint8, or as stored
        values, and are converted there.
        """
        images = normalize(
            batch.images,
            *normalization(self.plain),
            self.channels_last,
            colors=batch.colors,
            covered=batch.covered,
            dtype=self.image_dtype,
        )
        return Micro(images, widened(batch.masks))

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.plain.parameters() if p.requires_grad]

    @property
    def own_loss(self) -> nn.Module:
        """The loss that was passed in, if it is a module or a method of one; else an empty
        module.
        """
        own = [
            getattr(term.mean, "__self__", term.mean)
            for term in self.criterion.terms
            if isinstance(term, OwnLoss)
        ]
        return next((loss for loss in own if isinstance(loss, nn.Module)), nn.Identity())


@dataclass(frozen=True)
class StartingNetwork:
    """The network on the CPU, and what it took from ``model.init``."""

    model: SegModel
    initial: Initial | None


def build_network(
    config: Config, parts: UserObjects, train: Dataset, strategy: Strategy, resumes: bool
) -> StartingNetwork:
    """The network with its first weights. A collective.

    A resumed run has its own weights, so it needs neither the file nor the download that it began
    with.
    """
    settings, labels = config.model, train.labels
    torch.manual_seed(config.train.seed)  # the same weights on every rank
    if parts.model is None:
        pretrained = None if resumes else settings.encoder_weights
        network = build_model(
            settings.model_copy(update={"encoder_weights": pretrained}),
            labels.num_classes,
            config.data.channels,
        )
    else:
        network = as_seg_model(parts.model, labels.num_classes).train()
    network.origin = network.origin.changed(config.data)  # it knows the number of bands
    if not config.loss.aux_weight:
        network.freeze_auxiliary()
    deterministic = config.train.deterministic or strategy.exact
    if deterministic and strategy.device.type == "cuda":
        refuse_nondeterministic(
            network, settings.arch if parts.model is None else type(parts.model).__name__
        )
    part = settings.frozen_with(len(train))
    initial = starting_network(
        network, "" if resumes else settings.init, part, labels.names, strategy
    )
    if part != settings.freeze and part == "encoder":
        network.remarks += (
            f"model.freeze=auto: the encoder is frozen, because {len(train)} training images are "
            f"fewer than {FEW_IMAGES}; to train all of it afterwards: model.init=RUN "
            "model.freeze=none",
        )
    origin = network.origin.changed(config.data)
    if initial and initial.origin and origin != initial.origin:
        raise ConfigError(
            f"data.mean and data.std: {settings.init} was trained with "
            f"{initial.origin.images()}: leave them out",
            code="normalization-differs",
            key="data.mean",
            found=settings.init,
        )
    network.origin = origin
    return StartingNetwork(network, initial)


def build_learner(
    config: Config,
    parts: UserObjects,
    network: SegModel,
    labels: LabelSpace,
    class_weights: list[float],
    strategy: Strategy,
    precision: str,
) -> Learner:
    """Wrap the network for the strategy, and give it a loss and an optimizer. A collective.

    ``precision``: from ``set_numerics``.
    """
    on_gpu = strategy.device.type == "cuda"
    channels_last = strategy.name != "fsdp" and wants_channels_last(
        config.train.channels_last, strategy.device
    )
    if channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = strategy.wrap(network, lambda module: compiled(module, config.train.compile))
    plain: SegModel = unwrapped(model)  # type: ignore[assignment]
    use_kernels(plain, config.train.kernels, strategy.device, all_reduce, strategy.reduce)
    if parts.criterion is None:
        weights = torch.tensor(class_weights) if class_weights else None
        criterion = build_criterion(config.loss, labels.num_classes, labels.ignore_index, weights)
    else:
        own = (
            parts.criterion.to(strategy.device)
            if isinstance(parts.criterion, nn.Module)
            else parts.criterion
        )
        criterion = as_criterion(own, labels.num_classes, labels.ignore_index)
    # The parameters of the wrapped model, because fsdp has replaced the original ones.
    optimizer = build_optimizer(
        plain,
        plain.encoder_parameters(),
        config.optim,
        plain.head_parameters(),
        bf16=precision == "bf16" and on_gpu,
    )
    if config.loss.upsample == "fused":
        refuse_fused(criterion, strategy.device)
    # The user's own loss is called on the whole micro-batch at once, not image by image.
    full_logits = config.loss.full_logits or any(
        isinstance(term, OwnLoss) for term in criterion.terms
    )
    return Learner(
        model=model,
        plain=plain,
        criterion=criterion,
        optimizer=optimizer,
        ema=Ema(plain, config.optim.ema) if config.optim.ema else None,
        scaler=LossScaler(precision == "fp16", strategy.device),
        precision=Precision(
            strategy.device.type, precision, full_logits, config.loss.stride, config.loss.upsample
        ),
        channels_last=channels_last,
        # Our networks begin with a convolution, for which autocast would round the images in
        # another pass.
        pixel_dtype=torch.float32 if config.data.stored else torch.uint8,
        image_dtype=(on_gpu and parts.model is None and AUTOCAST[precision]) or torch.float32,
    )


def restore_learner(
    learner: Learner, saved: Mapping[str, Any], strategy: Strategy, source: str
) -> None:
    """Load weights, optimizer state, and moving averages from a checkpoint of the run folder
    ``source``.

    Raises CheckpointError, or ConfigError with PowerSGD, whose state is not saved: on each rank, it
    is as large as the gradients.
    """
    if strategy.settings.compress == "powersgd":
        raise ConfigError(
            f"{source}: parallel.compress=powersgd keeps unsent gradients in the memory of each "
            "rank, and no checkpoint has them, so this run cannot go on as it would have: set "
            "parallel.compress to none, fp16, or bf16, or begin again with another out=FOLDER",
            code="compression-cannot-resume",
            run=source,
            found="powersgd",
        )
    ema = learner.ema
    checkpoint.refuse_foreign(
        saved, learner.plain.state_dict(), source, ema.shadow if ema else None
    )
    weights = {**saved["model"], **saved["buffers"]}
    load_full_state(learner.model, learner.optimizer, weights, saved["optimizer"])
    load_state(learner.own_loss, saved["criterion"])
    if ema is not None:
        fill(
            ema.shadow,
            {name: share(saved["ema"][name], value) for name, value in ema.shadow.items()},
        )
    # Each rank gets its own batch-norm statistics back; with another number of ranks, it keeps
    # their mean.
    buffers, rank_buffers = _statistics(learner), saved.get("buffers_of_ranks")
    if rank_buffers is not None and rank_buffers.shape == (
        strategy.world_size,
        sum(b.numel() for b in buffers),
    ):
        _fill(buffers, rank_buffers[strategy.rank].to(buffers[0].device))
    learner.scaler.load_state_dict(saved["scaler"])


def learner_state(
    learner: Learner, strategy: Strategy, take: Callable[[Any], Any]
) -> dict[str, Any]:
    """The state that ``restore_learner`` loads, as unsharded tensors, copied by ``take``. A
    collective.

    ``take``: see ``full_state``. The numbers of the loss scale are tensors, too: see ``as_saved``.
    """
    names = {name for name, _ in learner.plain.named_parameters()}
    loss = learner.own_loss
    with mean_buffers(learner, strategy) as rank_buffers:
        weights, moments = full_state(learner.model, learner.optimizer, take)
        shadow = {} if learner.ema is None else taken(learner.ema.shadow, names, take)
        buffers = taken(unsaved(learner.plain), set(), take)
        criterion = taken({**unsaved(loss), **loss.state_dict()}, set(), take)
    return {
        "model": weights,
        "buffers": buffers,
        "criterion": criterion,
        "optimizer": moments,
        "ema": shadow,
        "scaler": {name: take(value) for name, value in learner.scaler.state_dict().items()},
        "buffers_of_ranks": take(rank_buffers),
    }


def as_saved(content: dict[str, Any]) -> dict[str, Any]:
    """``learner_state`` as checkpoints have it, when the copies are there: the loss scale as
    numbers.
    """
    return {**content, "scaler": {name: value.item() for name, value in content["scaler"].items()}}


def _statistics(learner: Learner) -> list[Tensor]:
    """Running means and variances of batch norm, their moving averages, and float buffers of the
    user's own loss.

    Those of frozen parts are left out, because they are the same on all ranks.
    """
    model, ema = learner.plain, learner.ema
    still = {id(b) for part in model.frozen_parts() for b in part.buffers()}
    statistics = {
        name: b for name, b in model.named_buffers() if b.is_floating_point() and id(b) not in still
    }
    shadow = ema.shadow if ema is not None else {}
    loss_buffers = [buffer for buffer in learner.own_loss.buffers() if buffer.is_floating_point()]
    return [
        *statistics.values(),
        *(shadow[name] for name in statistics if name in shadow),
        *loss_buffers,
    ]


@torch.no_grad()
def _fill(buffers: list[Tensor], flat: Tensor) -> None:
    for buffer, values in zip(buffers, flat.split([b.numel() for b in buffers])):
        buffer.copy_(values.view_as(buffer))


@contextlib.contextmanager
def mean_buffers(learner: Learner, strategy: Strategy) -> Iterator[Tensor | None]:
    """Replace batch-norm statistics by their mean over ranks while the context lasts, to save or
    score the model.

    Yields the statistics of each rank, float64 (world_size, numbers), or None for one rank.
    Afterwards each rank has its own statistics again. The mean is the same as if the ranks had
    averaged their statistics after every step, because running statistics are linear in the
    statistics of the batches. A collective.
    """
    buffers = _statistics(learner)
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
