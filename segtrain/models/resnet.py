"""ResNets (He et al. 2016) and ResNeXts (Xie et al. 2017) with torchvision's parameter names,
without importing it.
"""

from __future__ import annotations

from torch import Tensor, nn

from segtrain.models.layers import conv_bn, norm_act


class Basic(nn.Module):
    """Residual block of two 3x3 convolutions."""

    expansion = 1

    def __init__(
        self, inputs: int, planes: int, stride: int, dilation: int, groups: int, base: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, dilation, dilation, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, dilation, dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _projection(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        x = norm_act(self.bn1, self.relu, self.conv1(x))
        return norm_act(self.bn2, self.relu, self.conv2(x), identity)


class Bottleneck(nn.Module):
    """Residual block of 1x1, 3x3, and 1x1 convolutions; the 3x3 convolution has the stride, as in
    torchvision.
    """

    expansion = 4

    def __init__(
        self, inputs: int, planes: int, stride: int, dilation: int, groups: int, base: int
    ) -> None:
        super().__init__()
        width = planes * base // 64 * groups
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, dilation, dilation, groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, planes * 4, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _projection(inputs, planes * 4, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        x = norm_act(self.bn1, self.relu, self.conv1(x))
        x = norm_act(self.bn2, self.relu, self.conv2(x))
        return norm_act(self.bn3, self.relu, self.conv3(x), identity)


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    return (
        None
        if inputs == outputs and stride == 1
        else conv_bn(inputs, outputs, 1, stride, relu=False)
    )


# Name -> block, blocks per stage, number of groups, and width of a group in the first stage.
RESNETS: dict[str, tuple[type[Basic] | type[Bottleneck], tuple[int, ...], int, int]] = {
    "resnet18": (Basic, (2, 2, 2, 2), 1, 64),
    "resnet34": (Basic, (3, 4, 6, 3), 1, 64),
    "resnet50": (Bottleneck, (3, 4, 6, 3), 1, 64),
    "resnet101": (Bottleneck, (3, 4, 23, 3), 1, 64),
    "resnet152": (Bottleneck, (3, 8, 36, 3), 1, 64),
    "resnext50_32x4d": (Bottleneck, (3, 4, 6, 3), 32, 4),
    "resnext101_32x4d": (Bottleneck, (3, 4, 23, 3), 32, 4),
    "resnext101_32x8d": (Bottleneck, (3, 4, 23, 3), 32, 8),
    "resnext101_32x16d": (Bottleneck, (3, 4, 23, 3), 32, 16),
    "resnext101_32x32d": (Bottleneck, (3, 4, 23, 3), 32, 32),
    "resnext101_32x48d": (Bottleneck, (3, 4, 23, 3), 32, 48),
}


class ResNet(nn.Module):
    """An encoder with five features, at strides s from 2 to ``output_stride``.

    Stages that would exceed this stride are dilated instead (Chen et al. 2017). ``forward`` maps
    images (N, 3, H, W) to five features (N, channels[i], H/s, W/s). H and W must be multiples of
    ``output_stride``.
    """

    def __init__(self, name: str, output_stride: int = 32) -> None:
        super().__init__()
        block, depths, groups, base = RESNETS[name]
        self.output_stride = output_stride
        self.channels = (64, *(planes * block.expansion for planes in (64, 128, 256, 512)))
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        for stage, (depth, planes) in enumerate(zip(depths, (64, 128, 256, 512))):
            dilation = max(1, 4 * 2**stage // output_stride)
            stride = 1 if stage == 0 or dilation > 1 else 2
            inputs = [self.channels[stage], *[self.channels[stage + 1]] * (depth - 1)]
            blocks = [
                block(n, planes, stride if i == 0 else 1, dilation, groups, base)
                for i, n in enumerate(inputs)
            ]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> list[Tensor]:
        features = [norm_act(self.bn1, self.relu, self.conv1(images))]
        x = self.maxpool(features[0])
        for stage in range(4):
            x = getattr(self, f"layer{stage + 1}")(x)
            features.append(x)
        return features
