"""A small data set in a folder, as fixtures."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from segtrain.config import Data

N = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG and PNG images of two sizes, with masks."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for part in ("images", "masks"):
        (root / part / "train").mkdir(parents=True)
    for k in range(N):
        size = (60, 80) if k % 3 else (70, 50)
        image = cv2.resize(
            rng.integers(0, 256, (9, 12, 3), np.uint8), size[::-1], interpolation=cv2.INTER_CUBIC
        )
        mask = cv2.resize(
            rng.integers(0, 4, (6, 8), np.uint8), size[::-1], interpolation=cv2.INTER_NEAREST
        )
        assert cv2.imwrite(str(root / f"images/train/{k}.{'jpg' if k % 2 else 'png'}"), image)
        assert cv2.imwrite(str(root / f"masks/train/{k}.png"), mask)
    return root


@pytest.fixture
def data(folder: Path) -> Data:
    return Data(
        layout="folders",
        root=str(folder),
        classes=("a", "b", "c", "d"),
        crop=(24, 32),
        class_balanced_crop_prob=0.3,
        train_split="train",
    )
