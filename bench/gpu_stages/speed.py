"""Training steps on random images that stay on the device: images/s, TFLOP/s, and peak memory, each
choice on and off.

Random values, because a GPU computes faster on zeros. The base is what a user gets with
train.precision=auto.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from gpu_stages import layers
from gpu_stages.rig import Rig
from gpu_stages.runs import reported
from gpu_stages.timing import forget, peak_gib, rate
from segtrain.base.precision import AUTOCAST, allow_tf32, fitting
from segtrain.config import Config, Loss, Model, Parallel
from segtrain.data.train_loader import Batch
from segtrain.losses import build_criterion, term
from segtrain.models import build_model
from segtrain.models.fused import use_kernels
from segtrain.observe.clock import Clock
from segtrain.optim import Ema, LossScaler, build_optimizer, clip_
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import Strategy
from segtrain.training.compiled import compiled
from segtrain.training.graphs import StepGraphs
from segtrain.training.learner import Learner
from segtrain.training.step import Micro, Precision, gradients


@dataclass(frozen=True)
class Case:
    network: str
    size: tuple[int, int]
    images: int
    classes: int
    precision: str
    loss: str = "ce"
    channels_last: bool = True
    compiled: bool | str = False
    upsample: str = "auto"
    full_logits: bool = False
    one_by_one: bool = False  # one image of full-size logits at a time, as on a CPU
    optimizer: str = "adamw"
    bf16: bool = False  # of Muon's matrices
    ema: bool = False
    fast: bool = True
    graph: bool = False  # forward, loss, and backward as CUDA graphs
    kernels: tuple[str, ...] = ()  # of train.kernels


def run(rig: Rig) -> None:
    networks = rig.networks()
    best = fitting(torch.device(rig.device))[0]
    race(rig, networks, cases(rig, list(networks), best), 45)


def race(rig: Rig, networks: dict[str, Any], cases: list[tuple[str, Case]], least_s: float) -> None:
    """A row for each case; ``least_s``: seconds without which none is started."""
    for what, case in cases:
        if what in rig.earlier:
            continue
        with reported(rig, what):
            rig.require(least_s)
            reached, result = measure(rig, case, networks[case.network])
            rig.note(what, result)
            if not what.startswith(" ") and case.classes == 19:
                rig.note(
                    "  its convolutions and products alone",
                    ceiling(rig, case, networks[case.network], reached),
                )
        forget(rig.device)


def cases(rig: Rig, names: list[str], best: str) -> list[tuple[str, Case]]:
    """The sensible ones of all combinations, the most important first."""
    size, images = ((32, 32), 2) if rig.tiny else ((512, 1024), 16)
    base = Case(names[0], size, images, 19, best)
    wide = replace(base, size=size if rig.tiny else (512, 512), classes=150)
    found = [
        (
            f"{name}, {size[0]}x{size[1]}, {images} images, 19 classes, {best}",
            replace(base, network=name),
        )
        for name in names
    ]
    found += [
        (f"  {name}, the network's plain layers", replace(base, network=name, fast=False))
        for name in ("U-Net R34", "SegFormer-B2")
        if name in names
    ]
    found += [(f"{names[0]}, 150 classes, {wide.size[0]}x{wide.size[1]}, {best}", wide)]
    # Each of train.kernels alone, beside the row of its network: it should save 5 % of a step.
    for name, of_network in (
        (names[0], ("batch_norm", "depthwise")),
        ("SegFormer-B2", ("layer_norm", "linear", "depthwise")),
    ):
        if name in names:
            found += [
                (f"  {name}, kernel {kernel}", replace(base, network=name, kernels=(kernel,)))
                for kernel in of_network
            ]
    precisions = [
        name
        for name in ("fp32", "tf32", "bf16", "fp16")
        if name in fitting(torch.device(rig.device))
    ]
    graphs: dict[str, dict[str, Any]] = {
        "compiled, CUDA graphs": {"compiled": "reduce-overhead"},
        "CUDA graphs of the step": {"graph": True},
        "compiled, CUDA graphs of the step": {"compiled": True, "graph": True},
    }
    network = {
        "compiled": {"compiled": True},
        "blocks compiled": {"compiled": "regions"},
        **graphs,
        "NCHW": {"channels_last": False},
        "the network's plain layers": {"fast": False},
    }
    logits = {
        "upsampling direct": {"upsample": "direct"},
        "upsampling by products": {"upsample": "products"},
        "fused loss": {"upsample": "fused"},
        "full logits": {"full_logits": True},
        "one image at a time": {"one_by_one": True},
    }
    changes = {
        **{f"{name} instead of {best}": {"precision": name} for name in precisions if name != best},
        **{f"19 classes, {what}": change for what, change in {**network, **logits}.items()},
    }
    others = {
        **{f"loss {loss}": {"loss": loss} for loss in ("ohem", "dice", "lovasz", "focal")},
        **{
            f"loss {loss}, upsampling direct": {"loss": loss, "upsample": "direct"}
            for loss in ("ohem", "dice")
        },
        "sgd": {"optimizer": "sgd"},
        "muon": {"optimizer": "muon"},
        "muon, matrices in bf16": {"optimizer": "muon", "bf16": True},
        "with EMA": {"ema": True},
    }
    found += [(f"  {what}", replace(base, **change)) for what, change in changes.items()]
    found += [
        (f"  150 classes, {what}", replace(wide, **change)) for what, change in logits.items()
    ]
    found += [(f"  {what}", replace(base, **change)) for what, change in others.items()]
    return (
        [(what, case) for what, case in found if not (case.compiled or case.graph)][:3]
        if rig.tiny
        else found
    )


def measure(rig: Rig, case: Case, settings: dict[str, Any]) -> tuple[float, str]:
    """TFLOP/s of the step, and the row."""
    forget(rig.device)
    allow_tf32(case.precision == "tf32")
    before = term.AT_ONCE
    term.AT_ONCE = 0 if case.one_by_one else before
    try:
        step, network, images = built(rig.device, case, settings)
        warm, times = (1, 1) if rig.tiny else (8, 20)
        steps = rate(step, rig.device, warm, times)
    finally:
        term.AT_ONCE = before
    reached = 3e-12 * forward_flops(network, images) * steps
    return reached, (
        f"{steps * case.images:.1f} images/s, {1e3 / steps:.1f} ms per step, {reached:.1f} TFLOP/s, "
        f"peak {peak_gib(rig.device):.2f} GiB"
    )


def ceiling(rig: Rig, case: Case, settings: dict[str, Any], reached: float) -> str:
    """What the step could reach at most: the same convolutions and products in the same arithmetic,
    and nothing else.
    """
    forget(rig.device)
    _, network, images = built(rig.device, case, settings)
    most = layers.rate(network, images, case.precision, *((0, 1) if rig.tiny else (3, 10)))
    return f"{most:.1f} TFLOP/s, of which the step reaches {reached / most:.0%}"


def built(
    place: str, case: Case, settings: dict[str, Any]
) -> tuple[Callable[[], None], Any, torch.Tensor]:
    """A training step on a batch that stays on ``place``, the network, and the images of the
    batch.
    """
    device = torch.device(place)
    torch.manual_seed(0)
    network: Any = build_model(Model(**{**settings, "fast": case.fast}), case.classes).to(device)
    network.freeze_auxiliary()
    memory = torch.channels_last if case.channels_last else torch.contiguous_format
    network = network.to(memory_format=memory)
    use_kernels(network, case.kernels, device, lambda value: None)
    model = compiled(network, case.compiled)
    config = Config(optim={"name": case.optimizer, "lr": 1e-4})
    optimizer = build_optimizer(
        network,
        network.encoder_parameters(),
        config.optim,
        network.head_parameters(),
        bf16=case.bf16,
    )
    criterion, scaler = (
        build_criterion(Loss(terms=[case.loss]), case.classes),
        LossScaler(case.precision == "fp16", device),
    )
    ema = Ema(network, 0.99) if case.ema else None
    strategy = Strategy("single", Cluster(), device, Parallel())
    how = Precision(device.type, case.precision, case.full_logits, upsample=case.upsample)
    images = torch.randn(case.images, 3, *case.size, device=device).to(memory_format=memory)
    given = images.to(AUTOCAST[case.precision] or torch.float32)  # as normalize makes them
    masks = torch.randint(
        0, case.classes, (case.images, *case.size), device=device, dtype=torch.uint8
    )
    votes, parameters = (
        torch.zeros(2, dtype=torch.float64, device=device),
        list(network.parameters()),
    )
    graphs = None
    if case.graph:
        levels, none = (
            torch.randint(256, (case.images, *case.size, 3), device=device, dtype=torch.uint8),
            np.zeros(0),
        )
        batch = Batch(levels, masks, none, none)
        learner = Learner(
            model, network, criterion, optimizer, ema, scaler, how, case.channels_last, given.dtype
        )
        graphs = StepGraphs(learner, strategy, 0.0)
        graphs.capture(case.images, case.size, False)

    def step() -> None:
        if case.compiled == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        for parameter in parameters:
            parameter.grad = None
        if graphs is not None:
            graphs.gradients(batch, seed=1, votes=votes, clock=Clock())
        else:
            gradients(
                model,
                [Micro(given, masks)],
                criterion,
                strategy,
                how,
                seed=1,
                votes=votes,
                loss_scale=scaler.factor,
                clock=Clock(),
            )
        scaler.unscale_(parameters)
        skipped = scaler.step(optimizer, clip_(parameters, 0) if scaler.enabled else None)
        if ema is not None:
            ema.update(100, skipped)

    return step, network, images


def forward_flops(network: Any, images: torch.Tensor) -> float:
    """FLOPs of a forward pass of the network, without the loss. Training takes about three times as
    many.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(images, low=True)
    return float(counter.get_total_flops())
