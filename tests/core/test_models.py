"""Tests of all networks: any image size, exact upsampling, gradients, and errors."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import pytest
import torch
from conftest import refused

from segtrain.config import Model, architectures
from segtrain.models import build_model

SIZE = (70, 93)
SMP = [arch for arch in architectures() if arch != "pico" and not arch.startswith("torchvision/")]
SMALL = {
    "dpt": {
        "encoder": "tu-vit_tiny_patch16_224",
        "options": {
            "decoder_intermediate_channels": [16, 16, 32, 32],
            "decoder_fusion_channels": 16,
        },
    },
    "segformer": {"encoder": "mit_b0"},
    "pan": {"encoder": "mobilenet_v2"},
}


def make(arch: str, classes: int = 5, **settings: Any) -> torch.nn.Module:
    if arch in SMP and importlib.util.find_spec("segmentation_models_pytorch") is None:
        pytest.skip("segmentation-models-pytorch is not installed")
    if arch.startswith("torchvision/") and importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    if arch == "dpt" and settings.get("encoder", "tu-").startswith("tu-"):
        vit = pytest.importorskip("timm.models.vision_transformer").VisionTransformer
        if not hasattr(vit, "forward_intermediates"):
            pytest.skip("this timm is too old for SMP's DPT")
    torch.manual_seed(0)
    default = {"encoder": "resnet18", **SMALL.get(arch, {})} if arch in SMP else {}
    return build_model(Model(arch=arch, **{**default, **settings}), classes)


@pytest.mark.parametrize("arch", [arch for arch in architectures() if "resnet101" not in arch])
def test_any_size_low_and_gradient(arch):
    model = make(arch)
    images = torch.randn(2, 3, *SIZE)
    model.train()
    main, *auxiliary = model(images, low=True)
    loss = sum((output.square().mean() for output in auxiliary), main.square().mean())
    loss.backward()
    without = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert not frozen or arch in ("pspnet", "dpt"), frozen
    assert not without, f"no gradient for {without}"
    encoder = {id(parameter) for parameter in model.encoder_parameters()}
    assert encoder < {id(parameter) for parameter in model.parameters()}
    model.eval()
    with torch.no_grad():
        full = model(images)
        low = model(images, low=True)
        assert full.shape == (2, 5, *SIZE)
        assert full.isfinite().all()
        assert [output.shape[1] for output in low] == [5]
        torch.testing.assert_close(model.upsample(low[0], SIZE), full, rtol=0, atol=0)
        torch.testing.assert_close(model.upsample(low[0][1:], SIZE), full[1:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("arch", ["unet", "fpn", "deeplabv3plus"])
@pytest.mark.parametrize("encoder", ["mobilenet_v2", "tu-resnet10t", "efficientnet-b0"])
def test_encoders(arch, encoder):
    if encoder.startswith("tu-") and importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    model = make(arch, encoder=encoder).eval()
    assert model.encoder_parameters()
    with torch.no_grad():
        assert model(torch.randn(1, 3, 40, 50)).shape == (1, 5, 40, 50)


def replica_of(network: torch.nn.Module) -> torch.nn.Module:
    """What torch.nn.DataParallel runs on each GPU: copies of all modules that hold tensors where
    the originals hold parameters.
    """
    copies = {module: module._replicate_for_data_parallel() for module in network.modules()}
    for module, copy in copies.items():
        for name, child in module._modules.items():
            setattr(copy, name, copies[child] if child is not None else None)
        for name, value in module._parameters.items():
            setattr(copy, name, value * 1 if value is not None else None)
    return copies[network]


@pytest.mark.parametrize("arch", ["pico", "unet", "deeplabv3plus", "manet", "segformer"])
def test_a_replica_of_dataparallel_gives_the_same(arch):
    """The strategy dp runs replicas, whose weights are no parameters."""
    model = make(arch).eval()
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(replica_of(model)(images), model(images))


@pytest.mark.parametrize(
    ("arch", "settings"),
    [
        ("pico", {"options": {"aux": True}}),
        ("unet", {}),
        ("unet", {"encoder": "mobilenet_v2", "fast": False}),
        ("deeplabv3plus", {}),
        ("segformer", {}),
        ("dpt", {}),
        ("torchvision/fcn_resnet50", {}),
        ("torchvision/deeplabv3_mobilenet_v3_large", {}),
        ("torchvision/lraspp_mobilenet_v3_large", {}),
    ],
)
def test_heads_are_the_layers_whose_shape_follows_the_classes(arch, settings):
    few, many = make(arch, classes=3, **settings), make(arch, classes=7, **settings)
    sizes = {name: p.shape for name, p in many.named_parameters()}
    follow = {name for name, p in few.named_parameters() if p.shape != sizes[name]}
    heads = {id(p) for p in few.head_parameters()}
    assert {name for name, p in few.named_parameters() if id(p) in heads} == follow != set()


def test_auxiliary_heads_only_in_training():
    for arch in ("pico", "torchvision/fcn_resnet50"):
        model = make(arch, options={"aux": True} if arch == "pico" else {})
        images = torch.randn(2, 3, 64, 64)
        with torch.no_grad():
            assert len(model(images, low=True)) == 2
            assert len(model.eval()(images, low=True)) == 1


@pytest.mark.parametrize(
    "arch", ["pico", "torchvision/fcn_resnet50", "torchvision/lraspp_mobilenet_v3_large"]
)
def test_heads_without_a_loss_are_out_of_training(arch):
    """With loss.aux_weight=0: DDP waits for the gradient of each parameter that wants one."""
    model = make(arch, options={"aux": True} if arch == "pico" else {})
    model.freeze_auxiliary()
    model(torch.randn(2, 3, 64, 64), low=True)[0].sum().backward()
    assert [
        name for name, p in model.named_parameters() if p.requires_grad != (p.grad is not None)
    ] == []


def test_weights_of_timm_are_named_by_the_encoder(monkeypatch):
    """``imagenet`` asks for those of ``tu-NAME.TAG``, without SMP's warning; another name would be
    lost.
    """
    timm = pytest.importorskip("timm")
    asked, create = [], timm.create_model

    def without_download(name: str, pretrained: bool = False, **settings: Any) -> Any:
        asked.append((name, pretrained))
        return create(name, **settings)

    monkeypatch.setattr(timm, "create_model", without_download)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make("upernet", encoder="tu-convnext_atto.d2_in1k", encoder_weights="imagenet")
    assert asked[-1] == ("convnext_atto.d2_in1k", True)
    with refused("unknown-encoder-weights", found="in22k"):
        make("upernet", encoder="tu-convnext_atto.d2_in1k", encoder_weights="in22k")


def test_same_as_torchvision():
    segmentation = pytest.importorskip("torchvision.models.segmentation")
    stock = segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5
    ).eval()
    model = make("torchvision/lraspp_mobilenet_v3_large").eval()
    model.load_state_dict(stock.state_dict())
    images = torch.randn(1, 3, *SIZE)
    with torch.no_grad():
        torch.testing.assert_close(model(images), stock(images)["out"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        (
            {"arch": "fpn", "encoder": "resnet_18"},
            "unknown-encoder",
            {"found": "resnet_18", "suggestion": "resnet18"},
        ),
        ({"arch": "fpn", "encoder": "tu-resnet10x"}, "unknown-encoder", {"found": "tu-resnet10x"}),
        ({"arch": "dpt", "encoder": "resnet18"}, "encoder-unfit", {"found": "resnet18"}),
        (
            {"arch": "fpn", "encoder_weights": "imagenot"},
            "unknown-encoder-weights",
            {"found": "imagenot"},
        ),
        ({"arch": "fpn", "options": {"classes": 3}}, "model-option-reserved", {"key": "classes"}),
        (
            {"arch": "fpn", "options": {"decoder_chanels": 3}},
            "unknown-model-option",
            {"key": "decoder_chanels"},
        ),
        ({"arch": "unet", "options": {"decoder_channels": [16, 16]}}, "model-options-unfit", {}),
        (
            {"arch": "deeplabv3plus", "options": {"decoder_atrous_rates": 5}},
            "model-options-unfit",
            {},
        ),
        (
            {"arch": "pico", "encoder_weights": "imagenet"},
            "unknown-encoder-weights",
            {"found": "imagenet"},
        ),
        (
            {"arch": "torchvision/fcn_resnet50", "encoder_weights": "x"},
            "unknown-encoder-weights",
            {"found": "x"},
        ),
    ],
)
def test_mistakes_are_explained(settings, code, values):
    with refused(code, **values):
        make(**settings)


def test_unreachable_weights(monkeypatch, tmp_path):
    encoders = pytest.importorskip("segmentation_models_pytorch.encoders")

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(encoders, "hf_hub_download", offline)
    monkeypatch.setattr("socket.getaddrinfo", offline)  # SMP 0.5 asks the weights' first home, too
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for arch in ("fpn", "unet"):
        with refused("encoder-weights-unreachable", found="imagenet"):
            make(arch, encoder_weights="imagenet")
