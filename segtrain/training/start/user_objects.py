"""The user's own model, loss, datasets, and trackers, which are passed in instead of configured."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from segtrain.bucket import is_bucket
from segtrain.config import Config, Data
from segtrain.data.bucket.shared_listing import listed_once
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.own import own_dataset, own_labels
from segtrain.data.pixels.reading import Reading
from segtrain.errors import ConfigError, kind_of, some_of
from segtrain.losses.criterion import Mean
from segtrain.models.base import check_module
from segtrain.observe.tracker import Tracker
from segtrain.parallel.strategy import Strategy


@dataclass(frozen=True)
class UserObjects:
    """The parts that were passed to ``segtrain.train``. The config describes each part that is
    None.
    """

    model: nn.Module | None = None
    criterion: Mean | None = None
    train_data: Any = None
    val_data: Any = None
    trackers: Sequence[Tracker] = ()

    def names(self) -> dict[str, str]:
        """Qualified names of the parts by role. The run folder keeps these names."""
        parts = {
            "model": self.model,
            "criterion": self.criterion,
            "train_data": self.train_data,
            "val_data": self.val_data,
        }
        return {role: _qualified(part) for role, part in parts.items() if part is not None}


def _qualified(part: Any) -> str:
    named = part if hasattr(part, "__qualname__") else type(part)
    return f"{named.__module__}.{named.__qualname__}"


def refuse_parts(parts: UserObjects) -> None:
    """Raises ConfigError for a part that cannot work with any config."""
    model = parts.model
    criterion = parts.criterion
    trackers = parts.trackers
    if model is not None:
        check_module(model)
    parameters = [] if model is None else list(model.parameters())
    tensors = () if model is None else (*model.named_parameters(), *model.named_buffers())
    lazy = [name for name, value in tensors if is_lazy(value)]
    module = getattr(criterion, "__self__", criterion)
    named = module.named_parameters() if isinstance(module, nn.Module) else ()
    free = [name for name, value in named if value.requires_grad]
    methods = ("scalars", "image", "text", "close")
    a_list = isinstance(trackers, (list, tuple))
    lacks = [
        f"{_qualified(tracker)}.{method}"
        for tracker in (trackers if a_list else ())
        for method in methods
        if isinstance(tracker, type) or not callable(getattr(tracker, method, None))
    ]
    checks = (
        (
            "model-on-meta",
            any(parameter.is_meta for parameter in parameters),
            (
                "the model has parameters on the device meta, which hold no values: construct it "
                "on the CPU"
            ),
        ),
        (
            "model-lazy",
            bool(lazy),
            (
                f"{some_of(lazy, 3)} of the model have no shape yet: call the model on one batch "
                "before you pass it"
            ),
        ),
        (
            "model-not-trainable",
            model is not None and not any(parameter.requires_grad for parameter in parameters),
            "the model has no parameter to train: at least one must have requires_grad=True",
        ),
        (
            "criterion-not-callable",
            isinstance(criterion, type) or not (criterion is None or callable(criterion)),
            (
                f"the criterion is {kind_of(criterion)}: pass a function (logits, target), or an "
                "instance, as in MyLoss()"
            ),
        ),
        (
            "criterion-with-parameters",
            bool(free),
            f"no optimizer trains {some_of(free, 3)} of the criterion: freeze them with "
            "requires_grad_(False), or move them into the model",
        ),
        (
            "trackers-not-a-list",
            not a_list,
            (
                f"the argument trackers is {kind_of(trackers)}: pass a list, as in "
                "trackers=[MyTracker()]"
            ),
        ),
        (
            "tracker-incomplete",
            bool(lacks),
            (
                f"{', '.join(lacks)} is missing: a tracker is an instance with the methods "
                f"{', '.join(methods)}"
            ),
        ),
        (
            "gradients-off",
            not torch.is_grad_enabled() or torch.is_inference_mode_enabled(),
            (
                "gradients are turned off: call segtrain.train outside torch.no_grad() and "
                "torch.inference_mode()"
            ),
        ),
    )
    for code, wrong, message in checks:
        if wrong:
            raise ConfigError(message, code=code)


def refuse_conflicts(config: Config, parts: UserObjects) -> None:
    """Raises ConfigError for a setting that the user may rely on, but that has no effect on a part
    that was passed.
    """
    model, data = config.model, config.data
    own_data = (
        "train_data"
        if parts.train_data is not None
        else "val_data"
        if parts.val_data is not None
        else ""
    )
    checks = (
        (
            "model",
            parts.model is not None and bool(model.init),
            f"model.init={model.init}",
            "load the weights into the module",
        ),
        (
            "model",
            parts.model is not None and model.freeze != "none",
            f"model.freeze={model.freeze}",
            "call requires_grad_(False) on the module's parameters",
        ),
        (
            "model",
            parts.model is not None and config.parallel.strategy == "fsdp",
            "parallel.strategy=fsdp",
            "use ddp",
        ),
        (
            "criterion",
            parts.criterion is not None and config.loss.class_weights != "none",
            "loss.class_weights",
            "give the weights to the loss",
        ),
        (
            own_data,
            bool(own_data) and data.split_by.on,
            "data.split_by",
            "divide the dataset in Python",
        ),
    )
    for part, conflict, setting, fix in checks:
        if conflict:
            raise ConfigError(
                f"{setting} has no effect on the {part} that was passed to segtrain.train: "
                f"remove it, and {fix}",
                code="part-and-setting",
                part=part,
                setting=setting.partition("=")[0],
            )
    if own_data and parts.train_data is parts.val_data:
        raise ConfigError(
            "train_data and val_data are the same dataset: pass two, so that no training "
            "image is scored",
            code="same-train-and-val",
        )
    if parts.train_data is not None and parts.val_data is None and data.layout == "scenes":
        raise ConfigError(
            "train_data was passed, but data.layout=scenes would generate the validation "
            "images: pass val_data too",
            code="val-data-missing",
        )


def sharing_listings(data: Data, strategy: Strategy) -> contextlib.AbstractContextManager[None]:
    """Context in which one rank of a host lists a bucket, and the others read its listing. A
    collective.
    """
    # All ranks broadcast, because data.root may be a bucket on some hosts only.
    start = strategy.broadcast_object(secrets.token_hex(8))
    return listed_once(start if strategy.world_size > 1 and is_bucket(data.root) else "")


def open_splits(config: Config, parts: UserObjects) -> tuple[Dataset, Dataset]:
    """The training split and the validation split. Raises DataError or ConfigError."""
    data = config.data
    configured = {
        split: open_dataset(data, split)
        for split, own in ((data.train_split, parts.train_data), (data.split, parts.val_data))
        if own is None
    }
    default = next((split.labels for split in configured.values()), None)
    datasets = []
    for split, own in ((data.train_split, parts.train_data), (data.split, parts.val_data)):
        datasets.append(
            configured[split]
            if own is None
            else own_dataset(own, own_labels(own, data, default), split, Reading.from_data(data))
        )
        default = datasets[-1].labels
    train, val = datasets
    if (train.labels.names, train.labels.ignore_index) != (
        val.labels.names,
        val.labels.ignore_index,
    ):
        raise ConfigError(
            f"the training data has the classes {list(train.labels.names)}, the validation data "
            f"{list(val.labels.names)}: both must name the same classes, in the same order",
            code="splits-classes-differ",
        )
    return train, val
