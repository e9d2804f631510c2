"""Opens data sets with annotations, and reads the reference masks of ``../shared/data/formats``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from PIL import Image

from segtrain.data.audit.check import settings_of
from segtrain.data.datasets import open_dataset

FORMATS = Path(os.environ.get("SEGTRAIN_FORMATS", ROOT.parent / "shared/data/formats"))
needs_formats = pytest.mark.skipif(not FORMATS.is_dir(), reason="needs ../shared/data/formats")


def opened(root: Path, *overrides: str, split: str = "") -> Any:
    data, splits = settings_of(str(root), list(overrides))
    split = split or splits[0]
    return open_dataset(data.model_copy(update={"train_split": split}), split)


def masks_of(dataset: Any) -> dict[str, np.ndarray]:
    return {
        entry.meta["name"]: dataset.read_mask(index) for index, entry in enumerate(dataset.entries)
    }


def referenced(dataset: Any, path: Path, names: dict[int, str]) -> np.ndarray:
    """The train ids of a reference mask. names: reference id -> class name."""
    ids = {0: 0, 255: dataset.labels.ignore_index}
    ids |= {raw: dataset.labels.names.index(name) for raw, name in names.items()}
    table = np.full(256, 254, np.uint8)
    table[list(ids)] = list(ids.values())
    return table[np.array(Image.open(path))]


def outline(mask: np.ndarray) -> int:
    """The number of pixels with another value than the pixel above or to the left of them."""
    edge = np.zeros(mask.shape, bool)
    edge[1:] |= mask[1:] != mask[:-1]
    edge[:, 1:] |= mask[:, 1:] != mask[:, :-1]
    return int(edge.sum())
