"""One sample in memory, in its own form or another, to measure what it costs when stored so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from segtrain.config import Data
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels import decode
from segtrain.data.record import StoredSample
from segtrain.errors import DataError

JPEG_QUALITY = 95


@dataclass(frozen=True)
class Held:
    """A ``SampleSource`` that returns the same record for every index, so that the draw of a sample stays its own."""

    kept: StoredSample
    labels: LabelSpace
    entries: Sequence[Any]

    def __len__(self) -> int:
        return len(self.entries)

    def record(self, index: int) -> StoredSample:
        return self.kept

    def size(self, index: int) -> tuple[int, int]:
        if isinstance(self.kept.image, np.ndarray):
            return self.kept.image.shape[0], self.kept.image.shape[1]
        header = decode.read_header(bytes(self.kept.image), self.kept.image_name)
        return header.height, header.width

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return decoded(self.kept, self.labels)


def decoded(record: StoredSample, labels: LabelSpace) -> tuple[np.ndarray, np.ndarray]:
    """Image uint8 (H, W, 3) and mask uint8 (H, W) of train ids. Raises DataError naming the file."""
    image, mask = record.image, record.mask
    if not isinstance(image, np.ndarray):
        image = decode.decode_image(bytes(image), record.image_name)
    if not isinstance(mask, np.ndarray):
        raw = decode.decode_mask(bytes(mask or b""), record.mask_name)
        mask = labels.remap(raw, record.mask_name)
    elif record.ids == "raw":
        mask = labels.remap(mask, record.mask_name)
    if image.shape[:2] != mask.shape:
        raise DataError(
            f"{record.mask_name}: the mask has {mask.shape[0]} x {mask.shape[1]} pixels, its image {record.image_name} "
            f"{image.shape[0]} x {image.shape[1]}: `segtrain data check` lists all such files",
            code="mask-size-differs",
            file=record.mask_name,
            image=record.image_name,
            found=mask.shape,
            expected=image.shape[:2],
        )
    return image, mask


def cut_to_size(record: StoredSample, image: np.ndarray, data: Data) -> tuple[StoredSample, Data] | None:
    """The sample at the largest scale that is ever drawn, as JPEG and PNG, and settings for it.

    None where that is the whole size, for pixels in memory, and with the user's transforms. ``image``: the decoded one.
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
    """Raw mask values, or the RGB colors of a mask that is a picture, as PNG."""
    if ids.ndim == 3:
        ids = cv2.cvtColor(ids, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".png", ids)[1].tobytes()
