"""DeepLabV3+ (Chen et al. 2018) with the decoder of SMP, without kernel taps that meet only padding."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segtrain.models.base import SegModel
from segtrain.models.fast_ops import live_taps
from segtrain.models.resnet import ResNet


class Separable(nn.Sequential):
    """Depthwise 3x3, then pointwise (both without bias): (N, I, H, W) to (N, O, H, W)."""

    def __init__(self, inputs: int, outputs: int, dilation: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, inputs, 3, padding=dilation, dilation=dilation, groups=inputs, bias=False),
            nn.Conv2d(inputs, outputs, 1, bias=False),
        )
        self.dilation = dilation

    def forward(self, x: Tensor) -> Tensor:
        # Not get_parameter: the replicas of DataParallel hold plain tensors in the place of parameters.
        depthwise, pointwise = (cast(Tensor, layer.weight) for layer in self)
        dilation = self.dilation
        kernel, padding = live_taps(depthwise, dilation, (x.shape[-2], x.shape[-1]))
        # One factor per channel: fold it into the pointwise kernel.
        if kernel.shape[-2:] == (1, 1):
            return F.conv2d(x, pointwise * kernel.transpose(0, 1))
        return F.conv2d(F.conv2d(x, kernel, None, 1, padding, dilation, x.shape[1]), pointwise)


def norm_relu(convolution: nn.Module, channels: int) -> nn.Sequential:
    return nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


class ImagePool(nn.Sequential):
    """The mean over the image, projected, at every pixel."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).expand(-1, -1, *x.shape[-2:])


class Aspp(nn.Module):
    """Atrous spatial pyramid pooling with separable kernels."""

    def __init__(self, inputs: int, outputs: int, rates: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        self.convs = nn.ModuleList([norm_relu(nn.Conv2d(inputs, outputs, 1, bias=False), outputs)])
        self.convs.extend(norm_relu(Separable(inputs, outputs, rate), outputs) for rate in rates)
        self.convs.append(ImagePool(inputs, outputs))
        project = norm_relu(nn.Conv2d(len(self.convs) * outputs, outputs, 1, bias=False), outputs)
        self.project = nn.Sequential(*project, nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        return self.project(torch.cat([branch(x) for branch in self.convs], 1))


class FastDeepLabDecoder(nn.Module):
    def __init__(
        self, deep: int, shallow: int, outputs: int, rates: tuple[int, ...], dropout: float, scale: int
    ) -> None:
        super().__init__()
        narrow = 48  # the paper's
        pyramid = norm_relu(Separable(outputs, outputs), outputs)
        self.aspp = nn.Sequential(Aspp(deep, outputs, rates, dropout), *pyramid)
        self.scale = scale
        self.block1 = norm_relu(nn.Conv2d(shallow, narrow, 1, bias=False), narrow)
        self.block2 = norm_relu(Separable(narrow + outputs, outputs), outputs)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = F.interpolate(self.aspp(features[-1]), scale_factor=self.scale, mode="bilinear", align_corners=True)
        return self.block2(torch.cat([x, self.block1(features[1])], 1))


class DeepLabV3Plus(SegModel):
    """SMP's ``DeepLabV3Plus`` on a ResNet: same parameter names, same initial distribution, outputs and gradients.

    SMP leaves decoder and head of this one at PyTorch's default initial values, and so do we.
    """

    def __init__(
        self,
        encoder: str,
        num_classes: int,
        encoder_output_stride: int = 16,
        decoder_channels: int = 256,
        decoder_atrous_rates: tuple[int, ...] = (12, 24, 36),
        decoder_aspp_dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.stride = encoder_output_stride
        self.encoder = ResNet(encoder, encoder_output_stride)
        channels = self.encoder.channels
        self.decoder = FastDeepLabDecoder(
            channels[-1],
            channels[1],
            decoder_channels,
            tuple(decoder_atrous_rates),
            decoder_aspp_dropout,
            encoder_output_stride // 4,
        )
        self.segmentation_head = nn.Sequential(nn.Conv2d(decoder_channels, num_classes, 1))

    def encoder_parts(self) -> list[nn.Module]:
        return [self.encoder]

    def heads(self) -> list[nn.Module]:
        return [self.segmentation_head]

    def _low(self, images: Tensor) -> tuple[Tensor, ...]:
        return (self.segmentation_head(self.decoder(self.encoder(images))),)

    def _upsample(self, low: Tensor, size: tuple[int, int]) -> Tensor:
        return F.interpolate(low, scale_factor=4, mode="bilinear", align_corners=True)
