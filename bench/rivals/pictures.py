"""The pictures of all sides: images/{train,val} (JPEG) and masks/{train,val} (PNG, ids 0..C-1, 255 void)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image


def make(folder: Path, source: str, classes: int, count: int = 367, size: tuple[int, int] = (360, 480)) -> str:
    """Generate pictures (``source`` empty), turn CamVid's folders into this layout, or take a folder that has it.

    Returns one line that says what they are. The validation split is tiny: nothing here is scored.
    """
    if source and not (Path(source) / "trainannot").is_dir():
        if not (Path(source) / "images" / "train").is_dir():
            raise SystemExit(f"{source} has neither trainannot (CamVid) nor images/train: --data cannot use it")
        return f"images of {Path(source).name}"
    for kind in ("images", "masks"):
        for split in ("train", "val"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
    if source:
        return _camvid(Path(source), folder, classes)
    rng = np.random.default_rng(0)
    for split, number in (("train", count), ("val", 4)):
        for index in range(number):
            image, mask = _picture(rng, size, classes)
            Image.fromarray(image).save(folder / "images" / split / f"{index:04d}.jpg", quality=95)
            Image.fromarray(mask).save(folder / "masks" / split / f"{index:04d}.png")
    return f"{count} generated images, {size[0]}x{size[1]}, JPEG quality 95"


def _picture(rng: np.random.Generator, size: tuple[int, int], classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes of one class each on a background, in colors with noise; some void."""
    height, width = size
    mask = np.full(size, rng.integers(classes), np.uint8)
    for index in range(24):
        top, left = rng.integers(height), rng.integers(width)
        box = np.s_[top : top + rng.integers(10, height // 2), left : left + rng.integers(10, width // 2)]
        mask[box] = 255 if index % 8 == 7 else rng.integers(classes)
    colors = np.random.default_rng(1).integers(20, 235, (256, 3))
    noise = rng.normal(0, 12, (height // 4, width // 4, 3)).repeat(4, 0).repeat(4, 1)
    return np.clip(colors[mask] + noise, 0, 255).astype(np.uint8), mask


def _camvid(source: Path, folder: Path, classes: int) -> str:
    names = sorted(p for p in (source / "train").iterdir() if p.suffix in (".png", ".jpg"))
    for split, chosen in (("train", names), ("val", names[:4])):
        for image in chosen:
            shutil.copy(image, folder / "images" / split / image.name)
            mask = np.array(Image.open(source / "trainannot" / f"{image.stem}.png"))
            mask[mask >= classes] = 255
            Image.fromarray(mask).save(folder / "masks" / split / f"{image.stem}.png")
    return f"CamVid, {len(names)} training images"
