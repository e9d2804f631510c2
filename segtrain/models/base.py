"""Base class of all networks (any image size, logits before or after upsampling), and an adapter
for other modules.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segtrain.config import Origin
from segtrain.errors import ConfigError, kind_of, some_of


class SegModel(nn.Module):
    """A segmentation network that takes images of any size.

    A subclass defines ``_low``, and ``_upsample`` if its logits are not upsampled bilinearly.
    Parameters have the names of the original network (of SMP or torchvision), so that state dicts
    fit both.

    num_classes: channels of the logits.
    stride: pixels of the image per pixel of the coarsest features. Images whose sides are multiples
    of it need no padding.
    pads: whether images are padded (right and bottom, with 0, the mean color) to a multiple of
    ``stride``. least: smallest height and width that the network takes; smaller images are padded
    too.
    frozen: the part that is not trained, a value of ``model.freeze``.
    remarks: what to say before the first step.
    origin: of its first weights; with the normalization of its images.
    """

    num_classes: int
    stride: int
    pads: bool = True
    least: int = 1
    frozen: str = "none"
    remarks: tuple[str, ...] = ()
    origin: Origin = Origin()
    # with parallel.exact, the context of a forward pass in training: parallel.exact.Slices
    exact: Any = None

    def forward(self, images: Tensor, low: bool = False) -> Tensor | tuple[Tensor, ...]:
        """Logits (N, C, H, W) of normalized images, float (N, bands, H, W).

        With ``low``, the logits before upsampling, for ``upsample``: ``(main, *auxiliary)``, each
        (N, C, h, w) of its own size. Auxiliary logits exist only in training mode, and only if the
        network has auxiliary heads.
        """
        size = (images.shape[-2], images.shape[-1])
        if self.pads:
            below, right = (
                max(self.least, -(-side // self.stride) * self.stride) - side for side in size
            )
            if below or right:
                images = F.pad(images, (0, right, 0, below))
        exact = self.exact if self.training else None
        with exact.of(images) if exact else contextlib.nullcontext():
            outputs = self._low(images)
        return outputs if low else self.upsample(outputs[0], size)

    def upsample(self, low: Tensor, size: tuple[int, int]) -> Tensor:
        """Upsample logits (N, C, h, w) of ``forward(low=True)`` to ``size``, the (H, W) of the
        images.
        """
        logits = self._upsample(low, size)
        return logits[..., : size[0], : size[1]]

    def encoder_parts(self) -> list[nn.Module]:
        """The modules of the (possibly pretrained) encoder; empty if the network has none."""
        return []

    def encoder_parameters(self) -> list[nn.Parameter]:
        """Parameters of ``encoder_parts``."""
        return [parameter for part in self.encoder_parts() for parameter in part.parameters()]

    def encoder_state(self) -> dict[str, Tensor]:
        """Tensors of the encoder, not copied, under their names inside the encoder.

        If the encoder has several parts (pico), each name begins with the name of its part:
        ``stem.0.weight``.
        """
        parts = self.encoder_parts()
        names = {id(module): name for name, module in self.named_children()}
        return {
            f"{names[id(part)]}.{name}" if len(parts) > 1 else name: value
            for part in parts
            for name, value in part.state_dict(keep_vars=True).items()
        }

    def freeze(self, part: str) -> None:
        """Do not train ``part``, a value of ``model.freeze``: its parameters get no gradients, and
        its batch norm statistics stay as they are. Raises ConfigError if the network has no such
        part.
        """
        self.frozen = part
        if part != "none" and not self.frozen_parts():
            raise ConfigError(
                f"model.freeze={part}: {type(self).__name__} has no {part}: use model.freeze=none",
                code="no-encoder",
                key="model.freeze",
            )
        for module in self.frozen_parts():
            module.requires_grad_(False)
        self.train(self.training)

    def frozen_parts(self) -> list[nn.Module]:
        """The modules that ``freeze`` keeps as they are."""
        return self.encoder_parts() if self.frozen == "encoder" else []

    def train(self, mode: bool = True) -> SegModel:
        super().train(mode)
        for part in self.frozen_parts():
            part.eval()
        return self

    def auxiliary_parts(self) -> list[nn.Module]:
        """The modules that make only auxiliary logits; empty if the network has none."""
        return []

    def freeze_auxiliary(self) -> None:
        """Do not train the auxiliary heads, for a loss without auxiliary logits: DDP would wait for
        their gradients.
        """
        for part in self.auxiliary_parts():
            part.requires_grad_(False)

    def heads(self) -> list[nn.Module]:
        """The layers that make logits, including auxiliary ones."""
        raise NotImplementedError

    def head_parameters(self) -> list[nn.Parameter]:
        """Parameters of ``heads``."""
        return [parameter for head in self.heads() for parameter in head.parameters()]

    def _low(self, images: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _upsample(self, low: Tensor, size: tuple[int, int]) -> Tensor:
        return F.interpolate(low, size=size, mode="bilinear", align_corners=False)


class OwnModel(SegModel):
    """``module`` as a ``SegModel``: ``module(images)`` returns logits (N, C, h, w) of any size,
    upsampled bilinearly.

    Names in its state dict begin with ``module.``. Frozen parts stay in evaluation mode, unless all
    of ``module`` was passed in it.
    """

    stride = 1
    pads = False

    def __init__(self, module: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.module = module
        self.num_classes = num_classes
        for value in (*module.parameters(), *module.buffers()):
            if value.layout == torch.strided and 0 in value.stride():
                value.data = value.data.clone()  # nothing can be loaded into an expanded view
        trained = {
            name: {parameter.requires_grad for parameter in part.parameters()}
            for name, part in module.named_modules()
            if module.training and not part.training
        }
        self._still = [
            module.get_submodule(name) for name, kinds in trained.items() if kinds == {False}
        ]
        if woken := [name for name, kinds in trained.items() if True in kinds]:
            text = (
                f"warning: {some_of(woken, 2)} of the model came in evaluation mode, but has "
                "parameters to train: "
            )
            self.remarks = (
                (
                    f"{text}its batch norm and dropout are in training mode; freeze it to keep "
                    "the mode"
                ),
            )

    def train(self, mode: bool = True) -> OwnModel:
        super().train(mode)
        for part in self._still:
            part.eval()
        return self

    def encoder_parts(self) -> list[nn.Module]:
        """The module's attribute ``encoder``, as segmentation-models-pytorch names it; for
        ``optim.encoder_lr``.
        """
        encoder = getattr(self.module, "encoder", None)
        return [encoder] if isinstance(encoder, nn.Module) else []

    def heads(self) -> list[nn.Module]:
        return []

    def _low(self, images: Tensor) -> tuple[Tensor, ...]:
        # A copy, because a module may change its input, and some images are used in several passes.
        logits: Any = self.module(images.clone())
        wanted = images.shape[0], self.num_classes
        if not isinstance(logits, Tensor) or logits.dim() != 4 or logits.shape[:2] != wanted:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ConfigError(
                f"{type(self.module).__name__} returned {shape} for images {tuple(images.shape)}: "
                f"its forward must return logits ({wanted[0]}, {wanted[1]}, h, w), one channel "
                "per class",
                code="model-output-shape",
                found=shape,
            )
        if self.training and torch.is_grad_enabled() and not logits.requires_grad:
            raise ConfigError(
                f"the logits of {type(self.module).__name__} have no gradient: remove detach() "
                "and torch.no_grad()",
                code="model-output-detached",
            )
        return (logits,)


def channels_of(model: nn.Module) -> int:
    """Bands of the images that ``model`` takes."""
    return len(normalization(model)[0])


def normalization(model: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the images that ``model`` expects."""
    origin = model.origin if isinstance(model, SegModel) else Origin()
    return origin.mean, origin.std


def check_module(module: object) -> None:
    """Raises ConfigError for anything but an instance of ``nn.Module``."""
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"the model is {kind_of(module)}: pass an instance of torch.nn.Module, as in "
            "model=MyNet()",
            code="model-not-a-module",
        )


def as_seg_model(module: nn.Module, num_classes: int) -> SegModel:
    """``module`` itself if it is a ``SegModel``, else an ``OwnModel`` of it. Raises ConfigError if
    not a module.
    """
    check_module(module)
    return module if isinstance(module, SegModel) else OwnModel(module, num_classes)
