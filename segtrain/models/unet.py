"""U-Net (Ronneberger et al. 2015) whose decoder blocks never store upsampled or concatenated
tensors.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from segtrain.models.layers import conv_bn, norm_act, upsample_conv
from segtrain.models.resnet import ResNet


class FastBlock(nn.Module):
    """Nearest upsampling x2, concatenation with the skip, and two convolutions with norm and ReLU.
    Names are SMP's.

    conv1, conv2: Sequential(3x3 convolution, norm, activation). attention2: what follows conv2, or
    None.
    """

    def __init__(
        self, conv1: nn.Sequential, conv2: nn.Sequential, attention2: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.conv1 = conv1
        self.conv2 = conv2
        self.attention2 = attention2

    def forward(
        self, x: Tensor, height: int = 0, width: int = 0, skip_connection: Tensor | None = None
    ) -> Tensor:
        """Map x (N, I, h, w) and the skip (N, S, 2h, 2w) to (N, O, 2h, 2w).

        SMP also passes ``height`` and ``width``, which are 2h and 2w, and are not needed here.
        """
        first: Any = self.conv1[0]
        # ConvNeXt and other encoders without features at stride 2 give a skip of 0 channels there.
        skip = skip_connection if skip_connection is not None and skip_connection.shape[1] else None
        x = upsample_conv(x, skip, first.weight, first.bias)
        x = self.conv2(norm_act(self.conv1[1], self.conv1[2], x))
        return x if self.attention2 is None else self.attention2(x)


class PlusBlock(FastBlock):
    """A FastBlock with the call signature of the blocks in SMP's U-Net++ and MA-Net."""

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x, skip_connection=skip)


def use_fast_decoder_blocks(decoder: nn.Module) -> None:
    """Replace the blocks of an SMP decoder (U-Net, U-Net++, or MA-Net) by fast ones; parameters and
    names stay.

    Blocks with other operations between upsampling and convolution (attention, bilinear upsampling)
    stay as they are.
    """
    for parent in [
        module for module in decoder.modules() if isinstance(module, (nn.ModuleList, nn.ModuleDict))
    ]:
        block: Any
        for name, block in parent.named_children():
            if _is_plain(block):
                kind = FastBlock if type(block).__name__ == "UnetDecoderBlock" else PlusBlock
                setattr(
                    parent, name, kind(block.conv1, block.conv2, getattr(block, "attention2", None))
                )


def _is_plain(block: Any) -> bool:
    """Whether a block of SMP computes conv2(conv1(cat(nearest x2, skip))), with at most an
    attention after it.
    """
    # SMP does not export these classes, so their names are compared. Checked with SMP 0.6.0.
    if (
        type(block).__name__ not in ("UnetDecoderBlock", "DecoderBlock")
        or getattr(block, "conv1", None) is None
    ):
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


class UnetDecoder(nn.Module):
    """Combines features of strides 2 to 32 into one map of stride 1: (N, channels[-1], H, W)."""

    def __init__(self, features: tuple[int, ...], channels: tuple[int, ...]) -> None:
        super().__init__()
        deep = features[::-1]
        inputs = (deep[0], *channels[:-1])
        skips = (*deep[1:], 0)
        self.blocks = nn.ModuleList(
            FastBlock(conv_bn(i + s, o), conv_bn(o, o)) for i, s, o in zip(inputs, skips, channels)
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, mode="fan_in", nonlinearity="relu")

    def forward(self, features: list[Tensor]) -> Tensor:
        x, *skips = features[::-1]
        for block, skip in zip(self.blocks, (*skips, None)):
            x = block(x, skip_connection=skip)
        return x


def unet(
    encoder_name: str, classes: int, decoder_channels: tuple[int, ...] = (256, 128, 64, 32, 16)
) -> tuple[nn.Module, nn.Module, nn.Sequential]:
    """Encoder, decoder, and head under SMP's parameter names, with SMP's initial distribution."""
    encoder = ResNet(encoder_name)
    decoder = UnetDecoder(encoder.channels, tuple(decoder_channels))
    head = nn.Conv2d(decoder_channels[-1], classes, 3, padding=1)
    nn.init.xavier_uniform_(head.weight)
    nn.init.zeros_(head.get_parameter("bias"))
    return encoder, decoder, nn.Sequential(head, nn.Identity())
