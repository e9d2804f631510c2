"""Parts of a step and of an evaluation alone: loss, counts, optimizer, EMA, checkpoint, each with
its choices.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gpu_stages.rig import Rig
from gpu_stages.runs import reported
from gpu_stages.timing import forget, milliseconds, peak_gib
from segtrain import kernels
from segtrain.base import bins
from segtrain.config import Config, Loss, Model
from segtrain.data.pixels import normalize
from segtrain.losses import build_criterion, low_res_loss, low_res_totals, ways
from segtrain.metrics import confusions
from segtrain.models import build_model
from segtrain.optim import Ema, LossScaler, build_optimizer, clip_


def run(rig: Rig) -> None:
    for classes, size in ((5, (32, 32)),) if rig.tiny else ((19, (512, 1024)), (150, (512, 512))):
        for part in (normalization, loss, counts):
            with reported(rig, f"{part.__name__}, {classes} classes"):
                part(rig, classes, size)
    with reported(rig, "optimizers"):
        optimizers(rig)


def normalization(rig: Rig, classes: int, size: tuple[int, int]) -> None:
    """Of a batch in channels_last, by one or two kernels and by torch's operators."""
    images = 2 if rig.tiny else 16
    levels = torch.randint(0, 256, (images, *size, 3), device=rig.device, dtype=torch.uint8)
    colors = torch.rand(images, 10, device=rig.device)
    covered = (
        torch.tensor([[0, 0, *size]], dtype=torch.int32)
        .to(rig.device)
        .expand(images, 4)
        .contiguous()
    )
    fault = kernels.unavailable(torch.device(rig.device))
    for what, looks in (("", (None, None)), (", with color jitter", (colors, covered))):
        for dtype in (torch.float32, torch.bfloat16):
            how = (normalize.IMAGENET_MEAN, normalize.IMAGENET_STD, True, *looks, dtype)
            for way, make in (
                ("by operators", normalize._by_operators),
                ("by kernels", normalize._by_kernels),
            ):
                name = f"{images} images of {size[0]}x{size[1]} normalized{what}, {str(dtype)[6:]}, {way}"
                if way == "by kernels" and fault:
                    rig.left_out(name, fault)
                    continue
                took = milliseconds(
                    partial(make, levels, *how), rig.device, *((0, 1) if rig.tiny else (2, 5))
                )
                rig.note(name, f"{took:.3f} ms")


def loss(rig: Rig, classes: int, size: tuple[int, int]) -> None:
    images = 2 if rig.tiny else 16
    torch.manual_seed(0)
    low = torch.randn(images, classes, size[0] // 4, size[1] // 4, device=rig.device)
    low = low.to(memory_format=torch.channels_last).requires_grad_()
    target = torch.randint(0, classes, (images, *size), device=rig.device, dtype=torch.uint8)

    def bilinear(part: Any, to: Any) -> Any:
        return torch.nn.functional.interpolate(part, size=to, mode="bilinear", align_corners=False)

    def measure(what: str, criterion: Any, logits: Any, way: str) -> None:
        def call() -> None:
            totals = low_res_totals(criterion, logits.detach(), target, bilinear, way)
            low_res_loss(criterion, logits, target, totals, bilinear, way).backward()
            logits.grad = None

        forget(rig.device)
        held = peak_gib(rig.device)
        took = milliseconds(call, rig.device, *((0, 1) if rig.tiny else (2, 5)))
        rig.note(
            f"{what}, {classes} classes, {images} images",
            f"{took:.2f} ms, {peak_gib(rig.device) - held:.2f} GiB more",
        )

    half = low.detach().bfloat16().requires_grad_()
    for name in ("ce",) if rig.tiny else ("ce", "ohem", "focal", "dice", "lovasz"):
        criterion = build_criterion(Loss(terms=[name]), classes)
        fault = ways.unavailable(criterion, torch.device(rig.device))
        for way in ("direct", "products", "fused"):
            if way == "fused" and fault:
                rig.left_out(f"loss {name}, fused", fault)
                continue
            measure(f"loss {name}, {way}", criterion, low, way)
            if name in ("ce", "dice"):
                measure(f"loss {name}, {way}, logits in bf16", criterion, half, way)


def counts(rig: Rig, classes: int, size: tuple[int, int]) -> None:
    """Masks of streets and skies: half of the pixels have two of the classes."""
    pixels = torch.rand(4, *size, device=rig.device)
    target = torch.where(
        pixels < 0.4, 0, torch.where(pixels < 0.5, 1, (pixels * classes).long())
    ).to(torch.uint8)
    index = target.flatten().long()
    ones = torch.ones((), dtype=torch.int64, device=rig.device).expand(len(index))
    for copies in (1, 64):
        took = milliseconds(lambda: bins.add_up(classes * classes, index, ones, copies), rig.device)  # noqa: B023
        rig.note(
            f"counts of {len(index) / 1e6:.1f} M pixels, {classes} classes, {copies} copies",
            f"{took:.3f} ms",
        )
    took = milliseconds(lambda: confusions(target, target, classes, later=[]), rig.device)
    rig.note(f"confusion matrices of 4 images, {classes} classes", f"{took:.3f} ms")


def optimizers(rig: Rig) -> None:
    name, settings = next(iter(rig.networks().items()))
    network: Any = build_model(Model(**settings), 19).to(rig.device)
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    for kind in ("sgd", "adamw", "muon"):
        optim = Config(optim={"name": kind, "lr": 1e-5}).optim
        optimizer = build_optimizer(
            network, network.encoder_parameters(), optim, network.head_parameters()
        )
        rig.note(f"update of {name}, {kind}", f"{milliseconds(optimizer.step, rig.device):.2f} ms")
    optim = Config(optim={"name": "muon", "lr": 1e-5}).optim
    half = build_optimizer(
        network, network.encoder_parameters(), optim, network.head_parameters(), bf16=True
    )
    rig.note(
        f"update of {name}, muon, matrices in bf16", f"{milliseconds(half.step, rig.device):.2f} ms"
    )
    ema, scaler = Ema(network, 0.99), LossScaler(True, rig.device)
    parameters = list(network.parameters())
    rig.note(f"EMA of {name}", f"{milliseconds(lambda: ema.update(9), rig.device):.2f} ms")
    rig.note(
        f"unscaling of {name} (fp16)",
        f"{milliseconds(lambda: scaler.unscale_(parameters), rig.device):.2f} ms",
    )
    took = milliseconds(lambda: scaler.step(half, clip_(parameters, 0)), rig.device)
    rig.note(f"norm and update of {name}, muon, fp16", f"{took:.2f} ms")
