"""Small data sets for tests: pictures, masks, folders of pairs in several layouts, and packs of
them.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from segtrain.config import Data
from segtrain.data.audit.check import Checked, check_folder
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.shards.pack import PackSummary, pack
from segtrain.data.shards.pack_sample import Packing
from segtrain.data.train_loader import TrainLoader


def picture(path: Path, size: tuple[int, int] = (12, 16), seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (*size, 3), np.uint8)).save(path)
    return path


def ids(
    path: Path,
    values: tuple[int, ...] = (0, 1),
    size: tuple[int, int] = (12, 16),
    palette: bool = False,
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = Image.fromarray(np.resize(np.array(values, np.uint8), size))
    if palette:
        mask.putpalette([9] * 768)
    mask.save(path)
    return path


def run_check(root: Path, *settings: str) -> Checked:
    """`segtrain data check` of all splits."""
    return check_folder(str(root), None, list(settings))


def sample_names(dataset: Dataset) -> list[str]:
    return [entry.meta["name"] for entry in dataset.entries]


def camvid(root: Path, names: tuple[str, ...] = ("a", "b"), split: str = "val") -> Data:
    for name in names:
        picture(root / split / f"{name}.jpg")
        ids(root / f"{split}annot" / f"{name}.png", (0, 10, 11))
    return Data(layout="camvid", root=str(root))


def tree(root: Path, *pairs: str) -> Path:
    """``IMAGE MASK`` twice, with 1 and 2 for ``#``."""
    for seed in (1, 2):
        for pair in pairs:
            image, mask = pair.replace("#", str(seed)).split()
            picture(root / image, seed=zlib.crc32(image.encode()))
            ids(root / mask, (0, 1))
    return root


SIZE = (40, 56)


def smooth(seed: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """A picture that JPEG does not ruin."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), np.uint8)
    return cv2.resize(small, size[::-1], interpolation=cv2.INTER_CUBIC)


def blocks(
    seed: int, values: tuple[int, ...] = (0, 4, 10, 11), size: tuple[int, int] = SIZE
) -> np.ndarray:
    """A mask of SegNet's CamVid ids; 11 is void."""
    picked = np.random.default_rng(seed).choice(np.array(values, np.uint8), (5, 7))
    return cv2.resize(picked, size[::-1], interpolation=cv2.INTER_NEAREST)


def files(root: Path, count: int = 7, suffix: str = "jpg", split: str = "train") -> Dataset:
    for folder in (split, f"{split}annot"):
        (root / folder / "town").mkdir(parents=True)
    for seed in range(count):
        name = f"town/a{seed}" if seed % 3 == 1 else f"s{seed}.x"
        Image.fromarray(smooth(seed + 100 * (split != "train"))).save(
            root / split / f"{name}.{suffix}", quality=95
        )
        Image.fromarray(blocks(seed)).save(root / f"{split}annot" / f"{name}.png")
    return open_dataset(Data(layout="camvid", root=str(root)), split)


def packed(root: Path, split: str = "train", **settings: object) -> Dataset:
    return open_dataset(Data(**{"layout": "shards", "root": str(root), **settings}), split)


def quiet(
    dataset: Dataset, folder: Path, choice: Packing | None = None, **settings: object
) -> PackSummary:
    return pack(dataset, str(folder), choice or Packing(), say=lambda text: None, **settings)


def batches(dataset: Dataset, workers: int = 0, kind: str = "auto") -> list[bytes]:
    data = Data(crop=(24, 32), class_balanced_crop_prob=0.3, worker_kind=kind)
    with TrainLoader(dataset, data, seed=3, batch_size=4, last_step=6, workers=workers) as loader:
        return [
            b.images.numpy().tobytes() + b.masks.numpy().tobytes() for step in loader for b in step
        ]
