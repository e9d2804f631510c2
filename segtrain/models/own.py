"""Adapter that lets any ``nn.Module`` be trained, evaluated and predicted with: it returns logits at any stride."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segtrain.errors import ConfigError, kind_of
from segtrain.models.base import SegModel


class OwnModel(SegModel):
    """``module`` as a ``SegModel``: ``module(images)`` returns logits (N, C, h, w) of any size, upsampled bilinearly.

    Names in its state dict begin with ``module.``.
    """

    stride = 1
    pads = False

    def __init__(self, module: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.module = module
        self.num_classes = num_classes

    def encoder_parts(self) -> list[nn.Module]:
        """The module's attribute ``encoder``, as segmentation-models-pytorch names it; for ``optim.encoder_lr``."""
        encoder = getattr(self.module, "encoder", None)
        return [encoder] if isinstance(encoder, nn.Module) else []

    def heads(self) -> list[nn.Module]:
        return []

    def _low(self, images: Tensor) -> tuple[Tensor, ...]:
        logits: Any = self.module(images)
        if not isinstance(logits, Tensor) or logits.dim() != 4 or logits.shape[1] != self.num_classes:
            found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ConfigError(
                f"{type(self.module).__name__} returned {found} for images {tuple(images.shape)}: its forward must "
                f"return logits (N, {self.num_classes}, h, w), one channel per class",
                code="model-output-shape",
                found=found,
                expected=self.num_classes,
            )
        if self.training and torch.is_grad_enabled() and not logits.requires_grad:
            raise ConfigError(
                f"the logits of {type(self.module).__name__} have no gradient: its forward must not detach them, nor "
                "run under torch.no_grad()",
                code="model-output-detached",
            )
        return (logits,)

    def _upsample(self, low: Tensor, size: tuple[int, int]) -> Tensor:
        return F.interpolate(low, size=size, mode="bilinear", align_corners=False)


def check_module(module: object) -> None:
    """Raises ConfigError for anything but an instance of ``nn.Module``."""
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"the model is {kind_of(module)}: pass an instance of torch.nn.Module, as in model=MyNet()",
            code="model-not-a-module",
        )


def as_seg_model(module: nn.Module, num_classes: int) -> SegModel:
    """``module`` itself if it is a ``SegModel``, else its adapter. Raises ConfigError for anything but a module."""
    check_module(module)
    return module if isinstance(module, SegModel) else OwnModel(module, num_classes)
