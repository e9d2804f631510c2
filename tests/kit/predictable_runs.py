"""Run folders with random weights, and pictures to predict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from segtrain.config import Config, make_config
from segtrain.data.labels.space import plain_space
from segtrain.models import build_model

NAMES = ("road", "sky", "car", "tree")
SETTINGS = {"model": {"arch": "pico"}, "data": {"crop": [64, 64]}, "name": "small"}


def make_run(folder: Path, settings: dict = SETTINGS, mirror: tuple[int, ...] = ()) -> Config:
    """A run folder with random weights: checkpoints for steps 3 (best, with a moving average) and 7
    (last).
    """
    config = make_config(settings)
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(config.to_yaml())
    (folder / "labels.json").write_text(
        json.dumps(replace(plain_space(NAMES), mirror=mirror).to_dict())
    )
    for step, seeds in ((3, (1, 2)), (7, (3, None))):
        states = [None if seed is None else weights(config, seed) for seed in seeds]
        content = {"format": 2, "step": step, "model": states[0], "ema": states[1]}
        torch.save(content, folder / "checkpoints" / f"step-{step:08d}.pt")
    (folder / "best.json").write_text(
        json.dumps({"checkpoint": "step-00000003.pt", "step": 3, "miou": 0.5})
    )
    return config


def weights(config: Config, seed: int) -> dict[str, torch.Tensor]:
    """Random, with a head large enough that all classes occur."""
    torch.manual_seed(seed)
    state = build_model(config.model, len(NAMES)).state_dict()
    return {
        key: torch.randn_like(value) * 0.3 if key == "head.weight" else value
        for key, value in state.items()
    }


def picture(path: Path, height: int, width: int, seed: int = 0) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(
        0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8
    )
    pixels = np.kron(pixels, np.ones((8, 8, 1), np.uint8))[:height, :width]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }
