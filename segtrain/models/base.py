"""What does every network here look like from outside? Any input size, and logits before or after upsampling."""

from __future__ import annotations

from typing import Union

import torch.nn.functional as F
from torch import Tensor, nn


class SegModel(nn.Module):
    """A segmentation network that takes images of any size.

    A subclass gives ``_low`` and ``_upsample``. Parameters carry the names that the original network gives them, so
    that state dicts go from one to the other.

    Attributes:
        num_classes: channels of the logits.
        stride: pixels by which the coarsest features are apart; multiples of it waste nothing on padding.
        pads: whether images are padded (right and bottom, with 0, the mean color) to a multiple of ``stride``.
        least: smallest height and width that the network takes; smaller images are padded too.
        frozen: whether the encoder is kept as it is (``freeze_encoder``).
    """

    num_classes: int
    stride: int
    pads: bool = True
    least: int = 1
    frozen: bool = False

    def forward(self, images: Tensor, low: bool = False) -> Union[Tensor, tuple[Tensor, ...]]:
        """Logits of normalized images.

        Args:
            images: float (N, 3, H, W).
            low: stop before upsampling.

        Returns:
            low=False: logits (N, C, H, W). low=True: ``(main, *auxiliary)``, each (N, C, h, w) of its own size, as
            ``upsample`` takes them; auxiliary ones only in training mode and where the network has such heads.
        """
        size = (images.shape[-2], images.shape[-1])
        if self.pads:
            below, right = (max(self.least, -(-side // self.stride) * self.stride) - side for side in size)
            if below or right:
                images = F.pad(images, (0, right, 0, below))
        outputs = self._low(images)
        return outputs if low else self.upsample(outputs[0], size)

    def upsample(self, low: Tensor, size: tuple[int, int]) -> Tensor:
        """Logits (N, C, h, w) from ``forward(low=True)`` to ``size`` = (H, W) of the images. Images are independent."""
        logits = self._upsample(low, size)
        return logits[..., : size[0], : size[1]]

    def encoder_parts(self) -> list[nn.Module]:
        """The modules of the (possibly pretrained) encoder; empty where the network has no such part."""
        return []

    def encoder_parameters(self) -> list[nn.Parameter]:
        """Parameters of ``encoder_parts``."""
        return [parameter for part in self.encoder_parts() for parameter in part.parameters()]

    def encoder_state(self) -> dict[str, Tensor]:
        """Tensors of the encoder, not copied, under the names that the encoder alone gives them.

        An encoder of several parts (pico's) has their names before: ``stem.0.weight``.
        """
        parts = self.encoder_parts()
        names = {id(module): name for name, module in self.named_children()}
        return {
            f"{names[id(part)]}.{name}" if len(parts) > 1 else name: value
            for part in parts
            for name, value in part.state_dict(keep_vars=True).items()
        }

    def freeze_encoder(self) -> None:
        """Keep the encoder as it is: no gradients, so nothing of it is stored or sent; batch norm's statistics stand still."""
        self.frozen = True
        for parameter in self.encoder_parameters():
            parameter.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> SegModel:
        super().train(mode)
        if self.frozen:
            for part in self.encoder_parts():
                part.eval()
        return self

    def auxiliary_parts(self) -> list[nn.Module]:
        """The modules that make auxiliary logits and nothing else; empty where the network has none."""
        return []

    def freeze_auxiliary(self) -> None:
        """Take auxiliary heads that the loss does not look at out of training: DDP would wait for their gradients."""
        for part in self.auxiliary_parts():
            part.requires_grad_(False)

    def heads(self) -> list[nn.Module]:
        """The layers that make logits, also auxiliary ones."""
        raise NotImplementedError

    def head_parameters(self) -> list[nn.Parameter]:
        """Parameters of ``heads``."""
        return [parameter for head in self.heads() for parameter in head.parameters()]

    def _low(self, images: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _upsample(self, low: Tensor, size: tuple[int, int]) -> Tensor:
        raise NotImplementedError
