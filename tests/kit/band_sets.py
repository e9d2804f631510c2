"""Small data sets of images with several bands, whose values are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from segtrain.config import Data, make_config

CLASSES = ["ground", "water", "wood"]
MEAN, STD = [100.0, 2000.0, -3.0, 0.5, 60.0], [50.0, 400.0, 2.0, 0.25, 9.0]


def image(seed: int, mask: np.ndarray) -> np.ndarray:
    """float32 (H, W, 5): a value for each class and noise. Some pixels miss one band, some all."""
    rng = np.random.default_rng(seed)
    tones = mask[..., None] / 2 - 0.5 + rng.normal(0, 0.3, (*mask.shape, 5))
    values = (np.array(MEAN) + np.array(STD) * tones).astype(np.float32)
    values[3:9, 5:12] = np.nan
    values[20:26, 30:40, 2] = np.nan
    return values


def band_set(root: Path, count: int = 6, channels_first: bool = False) -> Path:
    """Two splits of .npy images and PNG masks in the layout 'folders'."""
    for split in ("train", "val"):
        for index in range(count):
            seed = index + 100 * (split == "val")
            mask = np.random.default_rng(seed).integers(0, 3, (5, 6)).astype(np.uint8)
            mask = np.kron(mask, np.ones((8, 8), np.uint8))
            values = image(seed, mask)
            for part in ("images", "masks"):
                (root / part / split).mkdir(parents=True, exist_ok=True)
            stored = values.transpose(2, 0, 1) if channels_first else values
            np.save(root / "images" / split / f"{index}.npy", stored)
            Image.fromarray(mask).save(root / "masks" / split / f"{index}.png")
    return root


def band_data(root: Path, **settings: Any) -> Data:
    """The settings of ``band_set``."""
    values = {"root": str(root), "layout": "folders", "classes": CLASSES, "channels": 5}
    values |= {"mean": MEAN, "std": STD, "crop": (24, 32)}
    return make_config({"data": {**values, **settings}}, "the test").data
