"""U-Net (Ronneberger et al. 2015) whose decoder blocks need no upsampled and no concatenated tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from segtrain.models.base import SegModel
from segtrain.models.compat import is_decoder_block, is_unet_block
from segtrain.models.fast_ops import upsample_conv
from segtrain.models.resnet import ResNet


class FastBlock(nn.Module):
    """Nearest upsampling x2, concatenation with the skip, then twice a convolution, norm, and ReLU. Names are those of SMP.

    conv1, conv2: Sequential(3x3 convolution, norm, activation). attention2: what follows conv2, or None.
    """

    def __init__(self, conv1: nn.Sequential, conv2: nn.Sequential, attention2: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = conv1
        self.conv2 = conv2
        self.attention2 = attention2

    def forward(self, x: Tensor, height: int = 0, width: int = 0, skip_connection: Tensor | None = None) -> Tensor:
        """(N, I, h, w) and the skip (N, S, 2h, 2w) to (N, O, 2h, 2w); ``height`` and ``width`` (SMP's) are 2h, 2w."""
        first: Any = self.conv1[0]
        # ConvNeXt and other encoders without features at stride 2 give a skip of 0 channels there.
        skip = skip_connection if skip_connection is not None and skip_connection.shape[1] else None
        x = upsample_conv(x, skip, first.weight, first.bias)
        x = self.conv2(self.conv1[2](self.conv1[1](x)))
        return x if self.attention2 is None else self.attention2(x)


class PlusBlock(FastBlock):
    """The same under the calling convention of SMP's U-Net++ and MA-Net."""

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x, skip_connection=skip)


def use_fast_decoder_blocks(decoder: nn.Module) -> int:
    """Replace the blocks of an SMP decoder (U-Net, U-Net++, or MA-Net) by fast ones; parameters and names stay.

    Blocks that do something between upsampling and convolution (attention over the joined tensor, bilinear
    upsampling) are left alone. Returns the number of blocks changed.
    """
    changed = 0
    for parent in [module for module in decoder.modules() if isinstance(module, (nn.ModuleList, nn.ModuleDict))]:
        block: Any
        for name, block in parent.named_children():
            if not _is_plain(block):
                continue
            kind = FastBlock if is_unet_block(block) else PlusBlock
            attention = getattr(block, "attention2", None)
            setattr(parent, name, kind(block.conv1, block.conv2, attention))
            changed += 1
    return changed


def _is_plain(block: Any) -> bool:
    """Whether a block of SMP computes conv2(conv1(cat(nearest x2, skip))), with at most an attention after it."""
    if not is_decoder_block(block) or getattr(block, "conv1", None) is None:
        return False
    between = getattr(block, "attention1", None)
    first = block.conv1[0]
    return (
        getattr(block, "interpolation_mode", "") == "nearest"
        and (between is None or not list(between.parameters()))
        and isinstance(first, nn.Conv2d)
        and first.kernel_size == (3, 3)
        and first.stride == (1, 1)
        and first.padding == (1, 1)
    )


def conv_bn_relu(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class FastUnetDecoder(nn.Module):
    def __init__(self, features: tuple[int, ...], channels: tuple[int, ...]) -> None:
        super().__init__()
        deep = features[::-1]
        inputs = (deep[0], *channels[:-1])
        skips = (*deep[1:], 0)
        self.blocks = nn.ModuleList(
            FastBlock(conv_bn_relu(i + s, o), conv_bn_relu(o, o)) for i, s, o in zip(inputs, skips, channels)
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, mode="fan_in", nonlinearity="relu")

    def forward(self, features: list[Tensor]) -> Tensor:
        x, *skips = features[::-1]
        for block, skip in zip(self.blocks, (*skips, None)):
            x = block(x, skip_connection=skip)
        return x


class Unet(SegModel):
    """The ``Unet`` of SMP on a ResNet: the same parameter names, initial distribution, outputs, and gradients."""

    stride = 32

    def __init__(
        self, encoder: str, num_classes: int, decoder_channels: tuple[int, ...] = (256, 128, 64, 32, 16)
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.encoder = ResNet(encoder)
        self.decoder = FastUnetDecoder(self.encoder.channels, tuple(decoder_channels))
        head = nn.Conv2d(decoder_channels[-1], num_classes, 3, padding=1)
        nn.init.xavier_uniform_(head.weight)
        nn.init.zeros_(head.get_parameter("bias"))
        self.segmentation_head = nn.Sequential(head)

    def encoder_parts(self) -> list[nn.Module]:
        return [self.encoder]

    def heads(self) -> list[nn.Module]:
        return [self.segmentation_head]

    def _low(self, images: Tensor) -> tuple[Tensor, ...]:
        return (self.segmentation_head(self.decoder(self.encoder(images))),)

    def _upsample(self, low: Tensor, size: tuple[int, int]) -> Tensor:
        return low
