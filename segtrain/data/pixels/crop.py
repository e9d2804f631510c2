"""Decodes a stored sample, whole or a crop: with the native decoder if possible, otherwise with
Python packages.

For a rotated crop, an upright part of the image that contains the crop is made first. It is then
rotated about the center of the crop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Union

import cv2
import numpy as np

from segtrain.data.augment.geometry import (
    FILL,
    Geometry,
    apply,
    apply_to_mask,
    source_window,
    warped,
)
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels import decode, native
from segtrain.data.pixels.bands import ALL, BandImage
from segtrain.data.pixels.floats import RGB, Floats, Pixels
from segtrain.data.stages import AUGMENT, DECODE
from segtrain.errors import DataError, file_error

Stored = Union[bytes, memoryview, np.ndarray]
# image uint8 (H, W, 3) RGB, or bands float32 (H, W, C); mask (H, W) of ``labels.mask_dtype``
Pair = tuple[np.ndarray, np.ndarray]
# like LabelSpace.table; maps each id to itself
_TRAIN_IDS = np.arange(256, dtype=np.uint8), np.ones(256, np.uint8)


@dataclass(frozen=True)
class StoredSample:
    """An image and its mask in their stored form; the names are for messages ("shard-000003.tar:
    000123.jpg").
    """

    image: Any  # Stored: a file's content, or decoded pixels; or a BandImage
    mask: Stored | None  # a file's content, or ids (H, W)
    image_name: str
    mask_name: str
    ids: Literal["raw", "train"]  # the kind of ids in ``mask``, if ``mask`` is an array


def size_of(record: StoredSample) -> tuple[int, int]:
    """Height and width of the image, from its header."""
    if isinstance(record.image, (np.ndarray, BandImage)):
        return record.image.shape[0], record.image.shape[1]
    size = native.size(record.image, record.image_name)
    if size is None:
        header = decode.read_header(record.image, record.image_name)
        size = header.height, header.width
    return size


def image_of(record: StoredSample) -> np.ndarray:
    """The whole image, uint8 (H, W, 3) RGB, or float32 (H, W, bands)."""
    return decode.decode_image(record.image, record.image_name)


def mask_of(record: StoredSample, labels: LabelSpace) -> np.ndarray:
    """The whole mask, (H, W) of train ids."""
    if isinstance(record.image, BandImage):
        return pixels_of(record, labels)[1]
    return _train_ids(record, labels)


def _train_ids(record: StoredSample, labels: LabelSpace) -> np.ndarray:
    """The mask without regard to the image."""
    if record.mask is None:
        reason = "has no mask: only `segtrain predict` can use it"
        raise file_error(record.image_name, reason, code="mask-missing")
    if not isinstance(record.mask, np.ndarray):
        return labels.remap(decode.decode_mask(record.mask, record.mask_name), record.mask_name)
    return record.mask if record.ids == "train" else labels.remap(record.mask, record.mask_name)


def pixels_of(
    record: StoredSample, labels: LabelSpace, rows: slice = ALL, columns: slice = ALL
) -> Pair:
    """A part of the image, and the whole mask of train ids, where the pixels without data in that
    part are ignored. Raises DataError, also if the image and the mask differ in size.
    """
    stored = record.image
    image = stored if isinstance(stored, BandImage) else image_of(record)
    mask, size = _train_ids(record, labels), image.shape[:2]
    if size != mask.shape:
        coded = not isinstance(stored, (np.ndarray, BandImage)) and mask.shape == size[::-1]
        rotated = coded and decode.read_header(stored, record.image_name).orientation >= 5
        raise size_error(record.mask_name, mask.shape, record.image_name, size, rotated)
    if not isinstance(image, BandImage):
        return image[rows, columns], mask
    values, void = image.read(rows, columns)
    if void.any():
        mask = mask.copy()
        mask[rows, columns][void] = labels.ignore_index
    return values, mask


def size_error(
    mask: str, size: tuple[int, ...], image: str, expected: tuple[int, ...], rotated: bool = False
) -> DataError:
    """The error for a mask of (height, width) ``size`` beside an image of the size
    ``expected``.
    """
    fix = "pair the right files, or resize one of them (masks by nearest)"
    if rotated:
        fix = "the image has an EXIF rotation, which is not applied: store its pixels upright"
    return file_error(
        mask,
        f"the mask has {size[0]} x {size[1]} pixels, its image {image} has {expected[0]} "
        f"x {expected[1]}: {fix}",
        code="mask-size-differs",
        found=size,
        expected=expected,
        rotated=rotated,
    )


def write_whole(record: StoredSample, labels: LabelSpace, out: Pair) -> None:
    """Write the whole image and mask to ``out``. Raises DataError, also if their sizes differ from
    that of ``out``.
    """
    if isinstance(record.image, BandImage):
        image, ids = pixels_of(record, labels)
        record = replace(record, image=image, mask=ids, ids="train")
    size, image_size, mask = out[1].shape, size_of(record), mask_of(record, labels)
    if image_size != size or mask.shape != size:
        reason = (
            f"has the size {image_size}, and its mask {record.mask_name} {mask.shape}, but its "
            f"batch has {size}: "
            "check whether the files changed since the run began"
        )
        values = {"mask": record.mask_name, "found": (image_size, mask.shape)}
        raise file_error(record.image_name, reason, code="sizes-differ", **values)
    out[1][...] = mask
    if (
        isinstance(record.image, np.ndarray)
        or native.whole(record.image, 3, size, record.image_name, out[0]) is None
    ):
        out[0][...] = image_of(record)


def write_crop(
    record: StoredSample,
    labels: LabelSpace,
    geometry: Geometry,
    crop: tuple[int, int],
    out: Pair,
    index: bytes = b"",
    floats: Floats | None = None,
    pixels: Pixels = RGB,
) -> None:
    """Write a crop of (height, width) to ``out``. Raises DataError.

    ``index``: the positions of the tiles in a JPEG, from ``jpeg_tiles.Tiles``; b"" for none.
    ``floats``: the form of ``out[0]``, if it is a view for normalized values. ``pixels``: the
    form of the image otherwise.
    """
    if (
        not geometry.angle
        and not pixels.stored
        and _native_crop(record, labels, geometry, crop, out, index, floats)
    ):
        return
    if floats is not None:
        levels = np.empty(pixels.shape(*crop), pixels.dtype)
        write_crop(record, labels, geometry, crop, (levels, out[1]), index, pixels=pixels)
        with AUGMENT:
            floats.write(levels, out[0])
        return
    if geometry.angle:
        upright = _upright(geometry, crop)
        if upright is None:
            out[0][...], out[1][...] = pixels.fill, labels.ignore_index
            return
        part, size, matrix = upright
        made = np.empty(pixels.shape(*size), pixels.dtype), np.empty(size, labels.mask_dtype)
        write_crop(record, labels, part, size, made, index, pixels=pixels)
        with AUGMENT:
            _rotate(made, matrix, labels.ignore_index, out, pixels.fill)
        return
    window = source_window(geometry, crop) if pixels.stored else (slice(0, None), slice(0, None))
    origin = window[0].start, window[1].start
    with DECODE:
        image, mask = pixels_of(record, labels, *window)
    with AUGMENT:
        apply(image, mask, geometry, crop, labels.ignore_index, out, pixels.fill, origin)


def _native_crop(
    record: StoredSample,
    labels: LabelSpace,
    geometry: Geometry,
    crop: tuple[int, int],
    out: Pair,
    index: bytes,
    floats: Floats | None,
) -> bool:
    """Write a crop with the native decoder. False if it cannot: see ``native.crop``. It makes masks
    of uint8 only; others are decoded whole by other packages.
    """
    if record.mask is None:
        return False
    image_out, mask_out = out
    small = labels.mask_dtype is np.uint8
    if not small:
        with DECODE:
            mask = mask_of(record, labels)
        if mask.shape != geometry.size:
            return False
        with AUGMENT:
            apply_to_mask(mask, geometry, crop, labels.ignore_index, mask_out)
    mapped = record.ids == "train" and isinstance(record.mask, np.ndarray)
    lut, known = _TRAIN_IDS if mapped else labels.table
    with DECODE:
        unknown = native.crop(
            record.image,
            record.mask,
            geometry,
            crop,
            lut,
            known,
            FILL,
            labels.ignore_index,
            image_out,
            mask_out if small else None,
            (record.image_name, record.mask_name),
            index,
            floats.form if floats else None,
        )
    if unknown is not None and unknown >= 0:
        mask_of(record, labels)  # its error names the unknown ids and counts their pixels
    return unknown is not None


def _upright(
    geometry: Geometry, crop: tuple[int, int]
) -> tuple[Geometry, tuple[int, int], np.ndarray] | None:
    """The upright part of the image to make before the rotation, its (height, width), and an affine
    map float64 (2, 3).

    The map goes from (x, y) in the crop to (x, y) in the part. The part comes from the image, or
    from the image reduced by 2, 4, ... if the scale is below 1/2. Returns None if the rotated crop
    does not overlap the image. Corners of the crop that are outside of the image are padded.
    """
    step = min(geometry.size[0] / geometry.scaled[0], geometry.size[1] / geometry.scaled[1])
    block = 1
    while step / block > 2:
        block *= 2
    reduced = (max(1, round(geometry.size[0] / block)), max(1, round(geometry.size[1] / block)))
    ratio = np.array([reduced[1] / geometry.scaled[1], reduced[0] / geometry.scaled[0]])  # x, y
    cos, sin = math.cos(math.radians(geometry.angle)), math.sin(math.radians(geometry.angle))
    middle = np.array([crop[1], crop[0]]) / 2
    center = np.array([geometry.left, geometry.top]) + middle
    rotation = np.array([[cos, sin], [-sin, cos]])  # of the window, counter-clockwise on the screen
    if geometry.flip:
        rotation = rotation @ np.diag([-1.0, 1.0])
    linear = ratio[:, None] * rotation
    # The center of pixel p is at p + 1/2, both in the crop and in the part.
    offset = ratio * center + linear @ (0.5 - middle) - 0.5
    corners = np.array(
        [[0, 0, 1], [crop[1] - 1, 0, 1], [0, crop[0] - 1, 1], [crop[1] - 1, crop[0] - 1, 1]]
    )
    mapped = corners @ np.column_stack([linear, offset]).T
    left, top = (int(v) for v in np.floor(mapped.min(0)) - 1)
    right, bottom = (int(v) for v in np.ceil(mapped.max(0)) + 2)
    if min(right, reduced[1]) <= max(left, 0) or min(bottom, reduced[0]) <= max(top, 0):
        return None
    part = replace(geometry, scaled=reduced, top=top, left=left, flip=False, angle=0.0)
    return (
        part,
        (bottom - top, right - left),
        np.column_stack([linear, offset - np.array([left, top])]),
    )


def _rotate(part: Pair, matrix: np.ndarray, ignore_index: int, out: Pair, fill: np.ndarray) -> None:
    """Write the image (bilinear) and the mask (nearest) to ``out``, and padding where ``part`` has
    no pixels.
    """
    size, border = out[1].shape[::-1], cv2.BORDER_CONSTANT
    out[0][...] = warped(part[0], matrix, size, cv2.INTER_LINEAR, border, fill)
    out[1][...] = warped(part[1], matrix, size, cv2.INTER_NEAREST, border, (ignore_index,))
