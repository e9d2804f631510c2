"""Samples that code makes when they are read, such as the generated street scenes of the layout
``scenes``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from segtrain import config
from segtrain.data.dataset import Dataset
from segtrain.data.index.entries import Entry, LazyEntries
from segtrain.data.index.layout import Layout
from segtrain.data.labels import presets
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import StoredSample
from segtrain.data.scenes import scene as scenes
from segtrain.data.stages import DECODE

# index -> image uint8 (H, W, 3) RGB, mask uint8 (H, W) of train ids
MakeSample = Callable[[int], "tuple[np.ndarray, np.ndarray]"]


@dataclass(frozen=True, kw_only=True)
class GeneratedDataset(Dataset):
    """A split of arrays that ``make`` returns. An image and a mask have a name, but no file.

    shape: height and width of all images.
    """

    make: MakeSample
    shape: tuple[int, int] = (0, 0)

    @property
    def ids(self) -> Literal["raw", "train"]:
        return "train"

    @property
    def stored(self) -> bool:
        return False

    def stored_image(self, index: int) -> np.ndarray:
        return self.make(index)[0]

    def stored_mask(self, index: int) -> np.ndarray:
        return self.make(index)[1]

    def size(self, index: int) -> tuple[int, int]:
        return self.shape

    def header(self, index: int) -> decode.Header:
        return decode.Header("drawn", *self.size(index))

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.make(index)

    def record(self, index: int) -> StoredSample:
        entry = self.entries[index]
        with DECODE:
            image, mask = self.make(index)
        return StoredSample(image, mask, entry.image, entry.mask or "", self.ids)


def _open_scenes(layout: Layout, data: config.Data, split: str) -> Dataset:
    """Generated street scenes: ``data.scenes`` for training, a quarter as many different ones for
    any other split.
    """
    count = data.scenes if split == data.train_split else max(1, data.scenes // 4)
    count = min(count, data.limit or count)
    seed = int.from_bytes(hashlib.sha256(split.encode()).digest()[:4], "big")
    height, width = data.scene_size
    kind = f"scene{scenes.VERSION}:{split}:{height}x{width}"
    entries = LazyEntries(count, partial(_entry, kind, split))
    labels = layout.label_space(data)
    make = partial(_scene, seed, data.scene_size, labels)
    return GeneratedDataset("scenes", split, labels, entries, make=make, shape=data.scene_size)


def _entry(kind: str, split: str, index: int) -> Entry:
    name = f"{kind}/{index:05d}"
    return Entry(name, name, {"name": f"{split}_{index:05d}"})


def _scene(
    seed: int, size: tuple[int, int], labels: LabelSpace, index: int
) -> tuple[np.ndarray, np.ndarray]:
    image, raw = scenes.scene(seed, index, size)
    # the generated ids are train ids already
    if labels.raw_to_train == presets.SCENES.raw_to_train:
        return image, raw
    return image, labels.remap(raw, f"generated scene {index}")


SCENES = Layout(
    "scenes", "", lambda root, store: None, open=_open_scenes, labels=presets.SCENES, class_files=()
)
