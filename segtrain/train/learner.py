"""The network in training with its loss, optimizer and moving average: built, restored and copied out as one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from segtrain import checkpoint
from segtrain.config import Config
from segtrain.data.labels.space import LabelSpace
from segtrain.errors import ConfigError
from segtrain.losses import Criterion, build_criterion
from segtrain.losses.own import OwnLoss, as_criterion
from segtrain.models import build_model
from segtrain.models.base import SegModel
from segtrain.models.deterministic import refuse_nondeterministic
from segtrain.models.own import as_seg_model
from segtrain.optim import Ema, LossScaler, build_optimizer
from segtrain.parallel.startup import compiler_kept_out
from segtrain.parallel.state import full_state, load_full_state, share
from segtrain.parallel.strategy import Strategy, unwrapped
from segtrain.train.derived import wants_channels_last
from segtrain.train.exact import mean_buffers, restore_buffers
from segtrain.train.initial import Initial, starting_network
from segtrain.train.parts import Parts
from segtrain.train.state import copy_into
from segtrain.train.step import Precision

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


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

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.plain.parameters() if p.requires_grad]

    def compile(self) -> None:
        self.model = torch.compile(self.model)  # type: ignore[assignment]


def set_numerics(config: Config, device: torch.device) -> None:
    """Choose deterministic or fast kernels. Raises ConfigError for a precision that the device lacks."""
    if config.train.precision == "fp16" and device.type != "cuda":
        raise ConfigError("train.precision=fp16 needs a GPU: use fp32 (or bf16 where the CPU has bf16 units)")
    if config.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = not config.train.deterministic  # crops have a fixed size


def build_network(
    config: Config, parts: Parts, labels: LabelSpace, strategy: Strategy, resumes: bool
) -> tuple[SegModel, Initial | None]:
    """The network with the weights that the run begins with, on the CPU, and what it took from ``model.init``. A collective.

    A run that resumes has its own weights: it needs no file, and no download, that it began with.
    """
    settings = config.model
    torch.manual_seed(config.train.seed)  # the same weights on every rank
    if parts.model is None:
        pretrained = None if resumes else settings.encoder_weights
        network = build_model(settings.model_copy(update={"encoder_weights": pretrained}), labels.num_classes)
    else:
        network = as_seg_model(parts.model, labels.num_classes).train()
    if not config.loss.aux_weight:
        network.freeze_auxiliary()
    if config.train.deterministic and strategy.device.type == "cuda":
        refuse_nondeterministic(network, settings.arch if parts.model is None else type(parts.model).__name__)
    initial = starting_network(network, "" if resumes else settings.init, settings.freeze, labels.names, strategy)
    return network, initial


def build_learner(
    config: Config,
    parts: Parts,
    network: SegModel,
    labels: LabelSpace,
    class_weights: list[float],
    strategy: Strategy,
) -> Learner:
    """Wrap the network for the strategy, and give it a loss and an optimizer. A collective."""
    channels_last = strategy.name != "fsdp" and wants_channels_last(config.train.channels_last, strategy.device)
    if channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with compiler_kept_out(not config.train.compile):
        model = strategy.wrap(network)
    plain: SegModel = unwrapped(model)  # type: ignore[assignment]
    if parts.criterion is None:
        weights = torch.tensor(class_weights) if class_weights else None
        criterion = build_criterion(config.loss, labels.num_classes, labels.ignore_index, weights)
    else:
        own = parts.criterion.to(strategy.device) if isinstance(parts.criterion, nn.Module) else parts.criterion
        criterion = as_criterion(own, labels.num_classes, labels.ignore_index)
    with compiler_kept_out(not config.train.compile):
        # The wrapped model's parameters: fsdp has replaced those of before.
        optimizer = build_optimizer(plain, plain.encoder_parameters(), config.optim, plain.head_parameters())
    # A loss from outside is a function of the whole micro-batch, not of one image after the other.
    full_logits = config.loss.full_logits or any(isinstance(term, OwnLoss) for term in criterion.terms)
    return Learner(
        model=model,
        plain=plain,
        criterion=criterion,
        optimizer=optimizer,
        ema=Ema(plain, config.optim.ema) if config.optim.ema else None,
        scaler=LossScaler(config.train.precision == "fp16"),
        precision=Precision(strategy.device.type, DTYPES[config.train.precision], full_logits, config.loss.stride),
        channels_last=channels_last,
    )


def restore_learner(learner: Learner, saved: Mapping[str, Any], strategy: Strategy, source: str) -> None:
    """Take weights, moments and averages from a checkpoint of the run folder ``source``. Raises CheckpointError."""
    ema = learner.ema
    checkpoint.refuse_foreign(saved, learner.plain.state_dict(), source, ema.shadow if ema else None)
    load_full_state(learner.model, learner.optimizer, saved["model"], saved["optimizer"])
    if ema is not None:
        copy_into(ema.shadow, {name: share(saved["ema"][name], value) for name, value in ema.shadow.items()})
    restore_buffers(learner.plain, ema, strategy, saved.get("buffers_of_ranks"))
    learner.scaler.load_state_dict(saved["scaler"])


def learner_state(learner: Learner, strategy: Strategy) -> dict[str, Any]:
    """What ``restore_learner`` takes, as whole tensors on the CPU. A collective."""
    with mean_buffers(learner.plain, learner.ema, strategy) as of_ranks:
        weights, moments = full_state(learner.model, learner.optimizer)
        shadow = {} if learner.ema is None else {k: whole_cpu(v) for k, v in learner.ema.shadow.items()}
    return {
        "model": weights,
        "optimizer": moments,
        "ema": shadow,
        "scaler": learner.scaler.state_dict(),
        "buffers_of_ranks": None if of_ranks is None else of_ranks.cpu(),
    }


def whole_cpu(value: Tensor) -> Tensor:
    """A copy on the CPU; a sharded tensor is gathered, which is a collective."""
    whole: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value  # type: ignore[operator]
    return whole.detach().cpu().clone()
