"""Gradients of one step on the GPU, in each arithmetic and with each form of the loss, against
float64 on the CPU.

There is no dropout. The small network is compared as it trains. In the deep ones, rounding turns
some ReLU on or off, and batch norm amplifies it, most of all where it sees one pixel per image: on
a CPU, the gradient of a new DeepLabV3+ in float32 is off by 7 %. So there SiLU takes the place of
ReLU, and batch norm has fixed statistics, those of the images with variances of at least 0.05. Then
the same gradient is off by 2e-6.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from gpu_stages.rig import Rig
from gpu_stages.runs import reported
from segtrain.base.precision import fitting, tf32
from segtrain.config import Loss, Model, Parallel
from segtrain.losses import build_criterion, ways
from segtrain.models import build_model
from segtrain.observe.clock import Clock
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import Strategy
from segtrain.training.step import Micro, Precision, gradients

CLASSES = 19
LOSSES = ("ce", "ohem", "focal", "dice", "jaccard", "tversky", "lovasz")
# Largest relative difference ||g - g64|| / ||g64|| of a gradient, by arithmetic. 16 bits differ by
# the network: theirs is compared with what the same arithmetic costs on the CPU.
BOUNDS = {"float64": 1e-9, "fp32": 1e-4, "tf32": 3e-2}
HALF = 3e-2  # of bf16 and fp16, or twice the CPU's bf16


def run(rig: Rig) -> None:
    torch.backends.cudnn.deterministic = True
    size = 32 if rig.tiny else 128
    for name, settings in rig.networks().items():
        if f"{name}, fp32" in rig.earlier:
            continue
        with reported(rig, name):
            rig.require(30)
            compare(rig, name, settings, size)
    small = next(settings for name, settings in rig.networks().items() if name == "pico")
    for loss in LOSSES[-2:] if rig.tiny else LOSSES:
        if f"loss {loss}, full, fp32" in rig.earlier:
            continue
        with reported(rig, f"loss {loss}"):
            rig.require(15)
            forms(rig, loss, small, size)


def compare(rig: Rig, name: str, settings: dict[str, Any], size: int) -> None:
    images, masks = batch(size)
    network = prepared(settings, images if settings["arch"] != "pico" else None)
    expected = gradient(network, images, masks, "cpu", "float64")
    rig.below(
        f"{name}, float64",
        difference(gradient(network, images, masks, rig.device, "float64"), expected),
        1e-9,
    )
    own = difference(gradient(network, images, masks, "cpu", "bf16"), expected)
    fits = [part for part in fitting(torch.device(rig.device)) if part != "float64"]
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        if precision not in fits and (precision != "bf16" or rig.on_gpu):
            continue
        found = difference(gradient(network, images, masks, rig.device, precision), expected)
        most = BOUNDS.get(precision, max(HALF, 2 * own))
        rig.below(f"{name}, {precision}", found, most)


def forms(rig: Rig, loss: str, settings: dict[str, Any], size: int) -> None:
    """The same loss by the network's upsampling, by products, and on all logits at once, in float64
    and in fp32.

    The fused loss: in fp32, and in bf16 against the network's upsampling in bf16.
    """
    network = prepared(settings)
    images, masks = batch(size)
    expected = gradient(network, images, masks, "cpu", "float64", loss)
    for upsample in ("direct", "products", "full"):
        for precision, most in (
            ("float64", 1e-9),
            ("fp32", 1e-3 if loss in ("ohem", "lovasz") else 1e-4),
        ):
            found = gradient(network, images, masks, rig.device, precision, loss, upsample)
            rig.below(f"loss {loss}, {upsample}, {precision}", difference(found, expected), most)
    fault = ways.unavailable(build_criterion(Loss(terms=[loss]), CLASSES), torch.device(rig.device))
    if fault:
        rig.left_out(f"loss {loss}, fused", fault)
        return
    found = gradient(network, images, masks, rig.device, "fp32", loss, "fused")
    rig.below(
        f"loss {loss}, fused, fp32", difference(found, expected), 1e-3 if loss == "ohem" else 1e-4
    )
    half = [
        gradient(network, images, masks, rig.device, "bf16", loss, way)
        for way in ("fused", "direct")
    ]
    rig.below(f"loss {loss}, fused against direct, bf16", difference(*half), HALF)


def prepared(settings: dict[str, Any], images: Tensor | None = None) -> Any:
    """The network; with ``images``, one that rounding changes little: with SiLU, and batch norm
    with their statistics.
    """
    torch.manual_seed(0)
    network = build_model(Model(**settings), CLASSES).train()
    network.freeze_auxiliary()
    for module in network.modules():
        if any(
            word in type(module).__name__ for word in ("Dropout", "DropPath", "StochasticDepth")
        ):
            module.eval()
    if images is not None:
        for module in list(network.modules()):
            for name, child in module.named_children():
                if isinstance(child, torch.nn.ReLU):
                    setattr(module, name, torch.nn.SiLU())
        norms = [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
        for norm in norms:
            norm.momentum = 1.0
        with torch.no_grad():
            network(images, low=True)
        for norm in norms:
            norm.eval().running_var.clamp_(min=0.05)  # type: ignore[union-attr]
    return network


def batch(size: int) -> tuple[Tensor, Tensor]:
    """Four images and masks that follow them, with void, on the CPU."""
    generator = torch.Generator().manual_seed(1)
    coarse = torch.randn(4, 3, size // 8, size // 8, generator=generator)
    images = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    masks = ((images[:, 0] + 3) * 3).long().clamp(0, CLASSES - 1)
    masks[:, : size // 8] = 255
    return images + 0.1 * torch.randn(images.shape, generator=generator), masks


def gradient(
    network: Any,
    images: Tensor,
    masks: Tensor,
    device: str,
    precision: str,
    loss: str = "ce",
    upsample: str = "auto",
) -> Tensor:
    """The gradient of the loss and the loss itself, as one float64 vector on the CPU."""
    place, dtype = torch.device(device), torch.float64 if precision == "float64" else torch.float32
    model = copy.deepcopy(network).to(place, dtype, memory_format=torch.channels_last)
    how = Precision(
        place.type,
        "fp32" if precision == "float64" else precision,
        upsample == "full",
        upsample="auto" if upsample == "full" else upsample,
    )
    criterion = build_criterion(Loss(terms=[loss]), CLASSES)
    inputs = images.to(place, dtype).contiguous(memory_format=torch.channels_last)
    scale = 1024.0 if precision == "fp16" else 1.0
    with tf32(precision == "tf32"):
        share, _ = gradients(
            model,
            [Micro(inputs, masks.to(place))],
            criterion,
            Strategy("single", Cluster(), place, Parallel()),
            how,
            seed=1,
            votes=torch.zeros(1, dtype=torch.float64, device=place),
            loss_scale=scale,
            clock=Clock(),
        )
    parts = [
        p.grad.reshape(-1).double().cpu() / scale for p in model.parameters() if p.grad is not None
    ]
    return torch.cat([*parts, share.detach().reshape(1).cpu()])


def difference(found: Tensor, expected: Tensor) -> float:
    """The larger relative difference: of the gradient, or of the loss. NaN stays NaN."""
    gradient = (found[:-1] - expected[:-1]).norm() / expected[:-1].norm()
    loss = (found[-1] - expected[-1]).abs() / expected[-1].abs()
    return float(torch.maximum(gradient, loss))
