"""What follows from a config, here? Each derived quantity in words, the decoder, the memory layout, the versions."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from segtrain.config import Config
from segtrain.data.datasets import Dataset
from segtrain.data.pixels import native
from segtrain.observe import console
from segtrain.parallel.strategy import Strategy
from segtrain.train.plan import Plan


def derive(
    config: Config,
    strategy: Strategy,
    plan: Plan,
    dataset: Dataset,
    counts: tuple[int, int],
    network: nn.Module,
    channels_last: bool,
    parts: Mapping[str, str],
) -> dict[str, Any]:
    """Name -> words, for the banner and the journal.

    ``counts``: images to train on and to score. ``parts``: qualified names of the parts that were passed in.
    """
    size = sum(p.numel() for p in network.parameters())
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    images, ranks = config.train.batch_size, strategy.world_size
    threads = f", {torch.get_num_threads()} threads each" if strategy.device.type == "cpu" else ""
    crops = ", ".join(f"{h}x{w} until step {until}" for until, (h, w), _ in plan.crops)
    arch = f"{config.model.arch} {config.model.encoder if config.model.arch != 'pico' else ''}".strip()
    return {
        "run folder": str(config.run_dir),
        "data": f"{dataset.name}: {counts[0]} images to train, {counts[1]} to score, {dataset.labels.num_classes} classes",
        "model": f"{parts.get('model', arch)}, {console.count(size)} parameters"
        + (
            f", {console.count(trained)} of them trained (the encoder is frozen)"
            if config.model.freeze == "encoder"
            else ""
        ),
        **({"loss": parts["criterion"]} if "criterion" in parts else {}),
        "ranks": f"{ranks} x {strategy.device.type}{threads}, strategy {strategy.name} {strategy.backend}".strip(),
        "batch": f"{images} images = {ranks} ranks x {config.train.accumulate} micro-batches x "
        f"{images / ranks / config.train.accumulate:g}",
        "crops": crops,
        "decoder": native.describe(),
        "steps": f"{plan.steps} = {plan.epoch(plan.steps):g} epochs; eval every {plan.eval_every}, save every {plan.save_every}"
        + (" (auto)" if "auto" in (config.eval.every, config.checkpoint.every) else ""),
        "numbers": f"{config.train.precision}"
        + (", channels_last" if channels_last else "")
        + (", compiled" if config.train.compile else ""),
    }


def decoder() -> str:
    return "native" if native.available() else "packages"


def wants_channels_last(setting: bool | str, device: torch.device) -> bool:
    """auto: where it is the faster layout, which is on GPUs and on CPUs with AVX512 (with AVX2 it makes no difference)."""
    if setting != "auto":
        return bool(setting)
    if device.type == "cpu":
        cpu = getattr(torch.backends, "cpu", None)  # torch 2.1
        return cpu is not None and "AVX512" in cpu.get_cpu_capability()
    return device.type == "cuda"


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__}
