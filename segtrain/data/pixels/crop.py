"""How does the stored form of a sample become pixels? By the native decoder, which makes only what is needed, else by packages."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from segtrain.data.augment.geometry import FILL, Geometry, apply
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels import decode, native
from segtrain.data.pixels.rotation import turn, upright
from segtrain.data.record import StoredSample
from segtrain.data.stages import AUGMENT, DECODE
from segtrain.errors import DataError


def size_of(record: StoredSample) -> tuple[int, int]:
    """Height and width of the image, from its header."""
    if isinstance(record.image, np.ndarray):
        return record.image.shape[0], record.image.shape[1]
    found = native.size(record.image, record.image_name)
    if found is None:
        header = decode.read_header(record.image, record.image_name)
        found = header.height, header.width
    return found


def image_of(record: StoredSample) -> np.ndarray:
    """The whole image, uint8 (H, W, 3) RGB."""
    if isinstance(record.image, np.ndarray):
        return record.image
    return decode.decode_image(record.image, record.image_name)


def mask_of(record: StoredSample, labels: LabelSpace) -> np.ndarray:
    """The whole mask, uint8 (H, W) of train ids."""
    if record.mask is None:
        raise DataError(
            f"{record.image_name}: has no mask: only `segtrain predict` can use it",
            code="no-mask",
            file=record.image_name,
        )
    if not isinstance(record.mask, np.ndarray):
        return labels.remap(decode.decode_mask(record.mask, record.mask_name), record.mask_name)
    return record.mask if record.ids == "train" else labels.remap(record.mask, record.mask_name)


def write_whole(record: StoredSample, labels: LabelSpace, out: tuple[np.ndarray, np.ndarray]) -> bool:
    """Write the whole image and mask to ``out``, uint8 (H, W, 3) and (H, W). False where they have another size. Raises DataError."""
    size = out[1].shape
    if size_of(record) != size:
        return False
    if isinstance(record.image, np.ndarray) or native.whole(record.image, 3, size, record.image_name, out[0]) is None:
        out[0][...] = image_of(record)
    mask = mask_of(record, labels)
    if mask.shape != size:
        return False
    out[1][...] = mask
    return True


def write_crop(
    record: StoredSample,
    labels: LabelSpace,
    geometry: Geometry,
    crop: tuple[int, int],
    out: tuple[np.ndarray, np.ndarray],
    index: bytes = b"",
) -> None:
    """Write image uint8 (h, w, 3) and mask uint8 (h, w) of a crop to ``out``. ``index``: see ``tiles.Tiles``. Raises DataError."""
    if geometry.angle:
        found = upright(geometry, crop)
        if found is None:
            out[0][...], out[1][...] = FILL, labels.ignore_index
            return
        part, size, matrix = found
        pixels = np.empty((*size, 3), np.uint8), np.empty(size, np.uint8)
        write_crop(record, labels, part, size, pixels, index)
        with AUGMENT:
            turn(pixels, matrix, labels.ignore_index, out)
        return
    if record.mask is not None:
        lut, known = _tables(labels, record.ids == "train" and isinstance(record.mask, np.ndarray))
        with DECODE:
            unknown = native.crop(
                record.image, record.mask, geometry, crop, lut, known, FILL, labels.ignore_index, *out,
                (record.image_name, record.mask_name), index,
            )  # fmt: skip
        if unknown is not None and unknown >= 0:
            mask_of(record, labels)  # says which ids, and how many pixels of each
        if unknown is not None:
            return
    with DECODE:
        image, mask = image_of(record), mask_of(record, labels)
    if image.shape[:2] != mask.shape:
        raise DataError(
            f"{record.mask_name}: the mask has {mask.shape[0]} x {mask.shape[1]} pixels, its image {record.image_name} has "
            f"{image.shape[0]} x {image.shape[1]}: pair the right files, or resize one of them (masks by nearest)",
            code="mask-size-differs",
            file=record.mask_name,
            image=record.image_name,
            found=mask.shape,
            expected=image.shape[:2],
        )
    with AUGMENT:
        apply(image, mask, geometry, crop, labels.ignore_index, out)


def _tables(labels: LabelSpace, mapped: bool) -> tuple[np.ndarray, np.ndarray]:
    return _identity() if mapped else labels.table


@lru_cache(maxsize=1)
def _identity() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(256, dtype=np.uint8), np.ones(256, np.uint8)
