"""A split in which only the pixels inside a region of each image count, such as the field of view
of a camera.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from segtrain.data.dataset import Dataset
from segtrain.data.index.subset import Subset
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import StoredSample
from segtrain.errors import DataError


@dataclass(frozen=True, eq=False)
class Inside(Subset):
    """A view of ``base`` whose masks are void where the image's file in ``regions`` is 0."""

    regions: tuple[Path, ...] = field(kw_only=True)

    @property
    def ids(self) -> Literal["raw", "train"]:  # type: ignore[override]
        return "train"

    def stored_mask(self, index: int) -> np.ndarray:
        return self._inside(index, self.base.read_mask(index))

    def record(self, index: int) -> StoredSample:
        mask = self.stored_mask(index)
        return replace(self.base.record(index), mask=mask, ids="train")

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        image, mask = self.base.read(index)
        return image, self._inside(index, mask)

    def _inside(self, index: int, mask: np.ndarray) -> np.ndarray:
        file = self.regions[index]
        region = decode.decode_mask(file.read_bytes(), str(file))
        inside = region.any(2) if region.ndim == 3 else region > 0
        if inside.shape != mask.shape:
            raise DataError(
                f"eval.region: {file} has {inside.shape[0]} x {inside.shape[1]} pixels, the mask "
                f"{mask.shape[0]} x {mask.shape[1]}: make one for each image, of its size",
                code="region-size",
                file=str(file),
            )
        return np.where(inside, mask, mask.dtype.type(self.labels.ignore_index))


def inside(dataset: Dataset, pattern: str) -> Dataset:
    """``dataset`` inside the regions of ``eval.region``; ``dataset`` itself if it is empty.

    Raises DataError if an image has no region, or several.
    """
    if not pattern:
        return dataset
    if "{name}" not in pattern:
        pattern = f"{pattern}/{{name}}.*"
    files = []
    for index in range(len(dataset)):
        name = Path(dataset.entries[index].image).stem
        wanted = pattern.replace("{split}", dataset.split).replace("{name}", glob.escape(name))
        matches = sorted(Path(path) for path in glob.glob(str(Path(dataset.root, wanted))))
        if len(matches) != 1:
            raise DataError(
                f"eval.region: {len(matches)} files match {Path(dataset.root, wanted)}, the region "
                f"of {dataset.entries[index].image}: each image needs one. The pattern is relative "
                "to data.root, with {name} for the image's name and {split} for the split",
                code="region-missing",
                found=list(map(str, matches)),
            )
        files += matches
    facts = (dataset.entries, dataset.root, dataset.notes, dataset.reading, dataset.store)
    return Inside(
        dataset.name,
        dataset.split,
        dataset.labels,
        *facts,
        dataset.mask_code,
        base=dataset,
        keep=np.arange(len(dataset)),
        regions=tuple(files),
    )
