"""A pass of the network without data: FLOPs and bytes of its operators, its gradients, and the
memory that it needs.

The network runs on torch's meta device, whose tensors have shapes but no content.
tests/insight/test_plan_dry.py compares the bytes with those of real passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from segtrain.base.precision import AUTOCAST
from segtrain.config import FEW_IMAGES, Config
from segtrain.errors import ConfigError
from segtrain.insight.plan.device import ModelCost
from segtrain.insight.plan.trace import Autocast, Layer, Tally, saved_bytes
from segtrain.losses import build_criterion, low_res_loss, low_res_totals
from segtrain.models import build_model
from segtrain.models.base import SegModel

_SIDE = 64  # of the image on which the loss runs


@dataclass(frozen=True)
class Dry:
    """A training step of ``images`` images on one device. Sizes in bytes, unless said otherwise.

    ``layers``: of all images. ``parameters``: (all, trained), numbers. ``gradients``: size of each
    gradient in the order in which the backward pass makes them, and the share of its FLOPs that is
    done by then. ``saved``: of the activations, for the backward pass. ``peak``: the most of
    activations and gradients at the same time, beside the loss. ``loss``: the most that the loss
    needs beside its low-resolution logits: for one image, or with loss.full_logits for all.
    ``norms``: trained batch norms.
    """

    images: int
    layers: tuple[Layer, ...]
    parameters: tuple[int, int]
    buffers: float
    gradients: tuple[tuple[float, float], ...]
    saved: float
    peak: float
    loss: float
    norms: int = 0

    @property
    def flops(self) -> float:
        return sum(layer.flops for layer in self.layers)

    @property
    def moved(self) -> float:
        return sum(layer.moved for layer in self.layers)

    @property
    def work(self) -> ModelCost:
        """The costs of an image. A frozen encoder has no backward pass, so the FLOPs are a third of
        those of a step.
        """
        products = [layer for layer in self.layers if layer.flops and not layer.backward]
        return ModelCost(
            kind="dense",
            params=float(self.parameters[0]),
            flops=self.flops / 3 / self.images,
            activations=sum(layer.made for layer in products) / self.images,
            layers=len(products),
        )


class DryModel:
    """The config's network, without content. Raises ConfigError for what torch cannot trace."""

    def __init__(self, config: Config, classes: int, most: int, images: int = FEW_IMAGES) -> None:
        """``most``: images of a step. ``images``: of the training split."""
        self.config, self.most = config, max(4, most)
        network = build_model(
            config.model.model_copy(update={"encoder_weights": None, "init": ""}),
            classes,
            config.data.channels,
        )
        self._loss = _loss(config, classes)
        self._network = network.to("meta")
        if not config.loss.aux_weight:
            network.freeze_auxiliary()
        network.freeze(config.model.frozen_with(images))

    def step(self, images: int) -> Dry:
        """A step of up to ``most`` images on one device.

        Steps of 2 images, which batch norm needs, and of ``most`` are computed. Of any other step,
        ``peak`` and ``loss`` lie on straight lines between them, and the rest is that of ``most``.
        ``peak``, which is the largest of many sums, is never too low.
        """
        if images == 2:
            return self._few
        few = self._few
        many = self._many
        share = (images - 2) / (self.most - 2)
        return replace(
            many,
            peak=few.peak + share * (many.peak - few.peak),
            loss=few.loss + share * (many.loss - few.loss),
        )

    @cached_property
    def _few(self) -> Dry:
        return self._pass(2)

    @cached_property
    def _many(self) -> Dry:
        return self._pass(self.most)

    def _pass(self, images: int) -> Dry:
        network, (loss, rows) = self._network, self._loss
        try:
            tally = _network(self.config, network, images)
        except (NotImplementedError, RuntimeError, AttributeError) as error:
            arch = self.config.model.arch
            reason = (str(error) or type(error).__name__).splitlines()[0][:150]
            raise ConfigError(
                f"model.arch={arch}: its memory and FLOPs cannot be computed ({reason}): use "
                "plan --like RUN",
                code="model-not-traceable",
                found=arch,
            ) from error
        sizes = [(p.numel(), p.requires_grad) for p in network.parameters()]
        return Dry(
            images=images,
            layers=(*tally.rows, *(row.times(images) for row in rows)),
            parameters=(
                sum(size for size, _ in sizes),
                sum(size for size, trained in sizes if trained),
            ),
            buffers=float(sum(b.numel() * b.element_size() for b in network.buffers())),
            gradients=tuple(tally.gradients),
            saved=tally.saved,
            peak=float(tally.peak),
            loss=loss * (images if self.config.loss.full_logits else 1),
            norms=sum(isinstance(part, _BatchNorm) and part.training for part in network.modules()),
        )


def _network(config: Config, network: SegModel, images: int) -> Tally:
    """A forward and a backward pass of the network alone."""
    for parameter in network.parameters():
        parameter.grad = None
    existing = {t.untyped_storage()._cdata for t in (*network.parameters(), *network.buffers())}
    # auto: 16 bits on most GPUs
    tally = Tally(existing)
    dtype = AUTOCAST.get(config.train.precision, torch.bfloat16)
    with ExitStack() as stack:
        stack.enter_context(_gradient_order(network, tally))
        stack.enter_context(tally)
        with saved_bytes(existing) as saved, Autocast(dtype) if dtype else ExitStack():
            heads: Any = network(
                torch.empty(images, config.data.channels, *config.data.crop, device="meta"),
                low=True,
            )
            used = heads if config.loss.aux_weight else heads[:1]
            tally.saved = float(sum(saved.values()))
        tally.backward = True
        torch.autograd.backward(used, [torch.empty_like(head) for head in used])
    whole = sum(row.flops for row in tally.rows if row.backward) or 1.0
    tally.gradients = [(size, done / whole) for size, done in tally.gradients]
    return tally


@contextmanager
def _gradient_order(network: SegModel, tally: Tally) -> Iterator[None]:
    def noted(size: float) -> Callable[[Tensor], None]:
        def note(_: Tensor) -> None:
            tally.gradients.append((size, sum(row.flops for row in tally.rows if row.backward)))

        return note

    hooks = [
        p.register_post_accumulate_grad_hook(noted(float(p.numel() * p.element_size())))
        for p in network.parameters()
        if p.requires_grad
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _loss(config: Config, classes: int) -> tuple[float, list[Layer]]:
    """Peak bytes of the loss of one image of the crop's size, and its operators.

    It runs with real tensors on a small image, because some losses look at their values. It grows
    with the pixels.
    """
    criterion = build_criterion(config.loss.model_copy(update={"class_weights": "none"}), classes)
    low = torch.randn(1, classes, _SIDE // 4, _SIDE // 4, requires_grad=True)
    target = torch.randint(0, classes, (1, _SIDE, _SIDE))
    tally = Tally({t.untyped_storage()._cdata for t in (low, target)})

    def upsample(logits: Tensor, size: tuple[int, int]) -> Tensor:
        return torch.nn.functional.interpolate(logits, size=size, mode="bilinear")

    with tally:
        totals = low_res_totals(criterion, low.detach(), target, upsample)
        low_res_loss(criterion, low, target, totals, upsample).backward()
    grown = config.data.crop[0] * config.data.crop[1] / _SIDE**2 / config.loss.stride**2
    return tally.peak * grown, [row.times(grown) for row in tally.rows]
