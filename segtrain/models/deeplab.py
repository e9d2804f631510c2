"""DeepLabV3+ (Chen et al. 2018) on a ResNet, equal to SMP's, without importing it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from segtrain.models.layers import ConvNorm, conv_bn, upsampled
from segtrain.models.resnet import ResNet


def separable_bn(inputs: int, outputs: int, dilation: int = 1) -> nn.Sequential:
    """Depthwise 3x3, then pointwise (both without bias), batch norm, and ReLU: (N, I, H, W) to (N,
    O, H, W).
    """
    separable = nn.Sequential(
        nn.Conv2d(
            inputs, inputs, 3, padding=dilation, dilation=dilation, groups=inputs, bias=False
        ),
        nn.Conv2d(inputs, outputs, 1, bias=False),
    )
    return ConvNorm(separable, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class ImagePool(nn.Sequential):
    """The mean over the image, projected and then copied to every pixel."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), *conv_bn(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        # Copied in its memory format: torch.cat of an expanded tensor would write NCHW.
        memory = (
            torch.channels_last
            if x.is_contiguous(memory_format=torch.channels_last)
            else torch.contiguous_format
        )
        return super().forward(x).expand(-1, -1, *x.shape[-2:]).contiguous(memory_format=memory)


class Aspp(nn.Module):
    """Atrous spatial pyramid pooling with separable kernels."""

    def __init__(self, inputs: int, outputs: int, rates: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        self.convs = nn.ModuleList([conv_bn(inputs, outputs, 1)])
        self.convs.extend(separable_bn(inputs, outputs, rate) for rate in rates)
        self.convs.append(ImagePool(inputs, outputs))
        self.project = nn.Sequential(
            *conv_bn(len(self.convs) * outputs, outputs, 1), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.project(torch.cat([branch(x) for branch in self.convs], 1))


class DeepLabDecoder(nn.Module):
    """Combines features of strides 4 and ``4 * scale`` into one map of stride 4: (N, outputs, H/4,
    W/4).
    """

    def __init__(
        self,
        deep: int,
        shallow: int,
        outputs: int,
        rates: tuple[int, ...],
        dropout: float,
        scale: int,
    ) -> None:
        super().__init__()
        narrow = 48  # as in the paper
        pyramid = separable_bn(outputs, outputs)
        self.aspp = nn.Sequential(Aspp(deep, outputs, rates, dropout), *pyramid)
        self.scale = scale
        self.block1 = conv_bn(shallow, narrow, 1)
        self.block2 = separable_bn(narrow + outputs, outputs)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = upsampled(self.aspp(features[-1]), True, scale_factor=self.scale)
        return self.block2(torch.cat([x, self.block1(features[1])], 1))


def deeplabv3plus(
    encoder_name: str,
    classes: int,
    encoder_output_stride: int = 16,
    decoder_channels: int = 256,
    decoder_atrous_rates: tuple[int, ...] = (12, 24, 36),
    decoder_aspp_dropout: float = 0.5,
) -> tuple[nn.Module, nn.Module, nn.Sequential]:
    """Encoder, decoder, and head under SMP's parameter names; the latter two keep PyTorch's initial
    values.
    """
    encoder = ResNet(encoder_name, encoder_output_stride)
    decoder = DeepLabDecoder(
        encoder.channels[-1],
        encoder.channels[1],
        decoder_channels,
        tuple(decoder_atrous_rates),
        decoder_aspp_dropout,
        encoder_output_stride // 4,
    )
    head = nn.Sequential(
        nn.Conv2d(decoder_channels, classes, 1), nn.UpsamplingBilinear2d(scale_factor=4)
    )
    return encoder, decoder, head
