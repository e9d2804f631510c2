"""Tests of the exact rewrites of slow layers against the plain form in float64: outputs, gradients,
parameter names.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import refused
from torch import nn

from segtrain.config import Model
from segtrain.models import build_model
from segtrain.models.deeplab import Aspp
from segtrain.models.deterministic import refuse_nondeterministic
from segtrain.models.layers import grid_means, upsample_conv
from segtrain.models.resnet import RESNETS, ResNet

TOLERANCE = 1e-12


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((ours - theirs).norm() / theirs.norm().clamp(min=1e-300)).item()


def compare(
    fast: nn.Module, stock: nn.Module, training: bool = True, size: tuple[int, int] = (64, 96)
) -> None:
    """Same state dict, then the same outputs, gradients and running statistics."""
    assert list(fast.state_dict()) == list(stock.state_dict())
    fast.load_state_dict(stock.state_dict())
    fast.double().train(training)
    stock.double().train(training)
    images = torch.randn(
        2, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    results = []
    for network in (fast, stock):
        torch.manual_seed(2)  # dropout
        logits = network(images)
        (
            logits
            * torch.linspace(-1, 1, logits.numel(), dtype=torch.float64).view_as(logits).sin()
        ).sum().backward()
        results.append(logits)
    assert difference(*results) < TOLERANCE
    for (name, ours), theirs in zip(fast.named_parameters(), stock.parameters()):
        if ours.requires_grad:
            assert difference(ours.grad, theirs.grad) < TOLERANCE, name
    for (name, ours), theirs in zip(fast.named_buffers(), stock.buffers()):
        assert difference(ours.double(), theirs.double()) < TOLERANCE, name


@pytest.mark.parametrize("skip", [0, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (2, 5), (7, 4)])
def test_upsample_conv(size, bias, skip):
    generator = torch.Generator().manual_seed(0)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)

    x, weight = tensor(2, 4, *size), tensor(6, 4 + skip, 3, 3)
    inputs = [x, weight]
    side = tensor(2, skip, 2 * size[0], 2 * size[1]) if skip else None
    add = tensor(6) if bias else None
    inputs += [extra for extra in (side, add) if extra is not None]
    up = F.interpolate(x, scale_factor=2.0, mode="nearest")
    plain = F.conv2d(up if side is None else torch.cat([up, side], 1), weight, add, padding=1)
    fast = upsample_conv(x, side, weight, add)
    assert difference(fast, plain) < TOLERANCE
    grad = torch.randn(plain.shape, dtype=torch.float64, generator=generator)
    for ours, theirs in zip(
        torch.autograd.grad(fast, inputs, grad), torch.autograd.grad(plain, inputs, grad)
    ):
        assert difference(ours, theirs) < TOLERANCE


@pytest.mark.parametrize("bins", [1, 2, 3, 4, 6])
# divided by the bins, not divided, smaller than they
@pytest.mark.parametrize("size", [(12, 24), (7, 5), (1, 2)])
def test_grid_means(size, bins):
    x = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    plain, ours = F.adaptive_avg_pool2d(x, bins), grid_means(x, bins)
    assert ours.shape == plain.shape
    assert difference(ours, plain) < TOLERANCE
    grad = torch.randn_like(plain)
    assert difference(*(torch.autograd.grad(y, x, grad)[0] for y in (ours, plain))) < TOLERANCE


@pytest.mark.parametrize(
    ("arch", "layer"),
    [
        ("pico", ""),
        ("unet", ""),
        ("deeplabv3plus", ""),
        ("fpn", ""),
        ("segformer", ""),
        ("deeplabv3", ""),
        ("torchvision/lraspp_mobilenet_v3_large", ""),
        ("pspnet", "decoder.psp.blocks.1.pool.0"),
        ("upernet", "decoder.psp"),
    ],
)
def test_what_is_not_deterministic_on_a_gpu_is_refused_by_its_layer(arch, layer):
    encoder = "mit_b0" if arch == "segformer" else "resnet18"
    if not arch.startswith(("pico", "torchvision")):
        pytest.importorskip("segmentation_models_pytorch")
    network = build_model(Model(arch=arch, encoder=encoder), 5)
    torch.use_deterministic_algorithms(True)
    try:
        if not layer:
            refuse_nondeterministic(network, arch)
            return
        with refused("layer-not-deterministic", arch=arch) as info:
            refuse_nondeterministic(network, arch)
        assert info.value.values["layer"].startswith(layer)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("arch", "encoder", "options"),
    [
        ("FPN", "resnet18", {}),  # no layer is replaced
        ("Unet", "resnet18", {}),
        ("Unet", "resnet50", {"decoder_channels": [32, 16, 16, 8, 8]}),
        ("Unet", "mobilenet_v2", {}),
        ("Segformer", "mit_b0", {}),
        ("Segformer", "resnet18", {"decoder_segmentation_channels": 32}),
        ("Unet", "resnet18", {"decoder_attention_type": "scse"}),
        ("Unet", "resnet18", {"decoder_interpolation": "bilinear"}),
        ("Unet", "vgg11", {}),
        ("Unet", "tu-convnext_atto", {}),  # no features at stride 2: a skip of 0 channels
        ("UnetPlusPlus", "resnet18", {}),
        ("MAnet", "resnet18", {}),
        ("DeepLabV3Plus", "resnet18", {}),
        ("DeepLabV3Plus", "resnet50", {"encoder_output_stride": 8, "decoder_channels": 32}),
        (
            "DeepLabV3Plus",
            "resnet18",
            {"decoder_atrous_rates": [1, 2, 3], "decoder_aspp_dropout": 0.1},
        ),
    ],
)
def test_network_equals_smp(arch, encoder, options):
    smp = pytest.importorskip("segmentation_models_pytorch")
    if encoder.startswith("tu-"):
        pytest.importorskip("timm")
    torch.manual_seed(0)
    stock = getattr(smp, arch)(encoder, encoder_weights=None, classes=5, **options)
    # In training mode mobilenet's 52 norms amplify rounding (of stock against stock, too) beyond
    # the tolerance; in SegFormer, a batch norm makes the gradients of biases before it zero.
    compare(
        build_model(Model(arch=arch.lower(), encoder=encoder, options=options), 5),
        stock,
        encoder != "mobilenet_v2" and arch != "Segformer",
    )


def test_fast_off_is_stock():
    smp = pytest.importorskip("segmentation_models_pytorch")
    for arch, block in (("unet", "UnetDecoderBlock"), ("unetplusplus", "DecoderBlock")):
        network = build_model(Model(arch=arch, encoder="resnet18", fast=False), 5)
        assert any(type(module).__name__ == block for module in network.modules())
        assert type(network.encoder).__module__.startswith(smp.__name__)
    network = build_model(Model(arch="unetplusplus", encoder="resnet18"), 5)
    assert not any(type(module).__name__ == "DecoderBlock" for module in network.modules())


@pytest.mark.parametrize("name", RESNETS)
def test_resnet_has_smps_parameters(name):
    encoders = pytest.importorskip("segmentation_models_pytorch.encoders")
    with torch.device("meta"):
        stock = encoders.get_encoder(name, weights=None)
        ours = ResNet(name)
    shapes = [
        {key: value.shape for key, value in net.state_dict().items()} for net in (ours, stock)
    ]
    assert shapes[0] == shapes[1]
    assert list(ours.channels) == list(stock.out_channels[1:])


def test_same_initial_distribution():
    smp = pytest.importorskip("segmentation_models_pytorch")
    for arch in ("Unet", "DeepLabV3Plus"):
        torch.manual_seed(0)
        stock = getattr(smp, arch)("resnet18", encoder_weights=None, classes=5)
        ours = build_model(Model(arch=arch.lower(), encoder="resnet18"), 5)
        for (name, mine), theirs in zip(ours.named_parameters(), stock.parameters()):
            if theirs.std() == 0 or theirs.numel() == 1:
                assert torch.equal(mine, theirs), name
            elif theirs.numel() > 400:
                assert 0.85 < mine.std() / theirs.std() < 1.18, name
                assert 0.7 < mine.abs().max() / theirs.abs().max() < 1.43, name


def test_native_networks_do_not_import_smp():
    code = (
        "import sys; from segtrain.config import Model; from segtrain.models import build_model; "
        "[build_model(Model(arch=arch, encoder='resnet18'), 3) for arch in ('pico', 'unet', 'deeplabv3plus')]; "
        "print([m for m in ('segmentation_models_pytorch', 'timm', 'torchvision', 'torch._dynamo') if m in "
        "sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert found.strip() == "[]"


@pytest.mark.parametrize("last", [False, True])
def test_the_pyramid_of_deeplab_keeps_the_memory_format(last):
    """The branch that is one pixel copied to all would make their concatenation contiguous."""
    memory = torch.channels_last if last else torch.contiguous_format
    aspp = Aspp(8, 4, (2, 3), 0.0).to(memory_format=memory)
    seen: list[torch.Tensor] = []
    aspp.project.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.randn(2, 8, 6, 9).contiguous(memory_format=memory)
    aspp(x)
    assert seen[0].is_contiguous(memory_format=memory)
    assert torch.equal(
        seen[0], torch.cat([*(branch(x) for branch in aspp.convs[:-1]), aspp.convs[-1](x)], 1)
    )


@pytest.mark.parametrize("arch", ["pico", "deeplabv3plus", "segformer"])
def test_features_are_upsampled_in_their_own_type(arch, monkeypatch):
    """Autocast of a GPU, but not that of a CPU, would compute them in float32."""
    if arch == "segformer":
        pytest.importorskip("segmentation_models_pytorch")
    seen, plain = [], F.interpolate

    def interpolate(x: torch.Tensor, *args: Any, **more: Any) -> torch.Tensor:
        seen.append((x.dtype, torch.is_autocast_enabled("cpu")))
        return plain(x, *args, **more)

    network = build_model(Model(arch=arch, encoder="resnet18"), 3).eval()
    monkeypatch.setattr(F, "interpolate", interpolate)
    with torch.autocast("cpu", torch.bfloat16):
        network(torch.rand(1, 3, 64, 64), low=True)
    assert (torch.bfloat16, False) in seen
