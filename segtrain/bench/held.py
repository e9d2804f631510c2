"""One sample in memory, in its stored form or in another one, to measure the cost of each form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from segtrain.config import Data
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import StoredSample, pixels_of, size_of

JPEG_QUALITY = 95


@dataclass(frozen=True)
class Held:
    """A ``SampleSource`` that returns the same record for every index. The index still seeds the random crop."""

    kept: StoredSample
    labels: LabelSpace
    entries: Sequence[Any]

    def __len__(self) -> int:
        return len(self.entries)

    def record(self, index: int) -> StoredSample:
        return self.kept

    def size(self, index: int) -> tuple[int, int]:
        return size_of(self.kept)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return pixels_of(self.kept, self.labels)


def cut_to_size(record: StoredSample, image: np.ndarray, data: Data) -> tuple[StoredSample, Data] | None:
    """Resize a sample to the largest scale that training can draw. Returns it as JPEG and PNG, and settings for it.

    Returns None if that scale is 1 or more, if the sample is stored as pixels, or if data.transforms is set.
    ``image``: the decoded image. The settings correct base_scale for the smaller size.
    """
    most = max(data.scale[1], (data.scale_end or data.scale)[1]) * data.base_scale
    if most >= 1 or data.transforms or isinstance(record.mask, np.ndarray) or isinstance(record.image, np.ndarray):
        return None
    small = cv2.resize(image, None, fx=most, fy=most, interpolation=cv2.INTER_AREA)
    raw = decode.decode_mask(bytes(record.mask or b""), record.mask_name)
    ids = cv2.resize(raw, small.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    changed = data.model_copy(update={"base_scale": data.base_scale / most})
    return StoredSample(jpeg(small), png(ids), record.image_name, record.mask_name, "raw"), changed


def jpeg(image: np.ndarray) -> bytes:
    """RGB pixels as JPEG of quality 95."""
    options = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    return cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)[1].tobytes()


def png(ids: np.ndarray) -> bytes:
    """A mask as PNG: raw values (H, W), or RGB colors (H, W, 3)."""
    if ids.ndim == 3:
        ids = cv2.cvtColor(ids, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".png", ids)[1].tobytes()
