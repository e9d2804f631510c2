"""Draws the geometry of a training sample before any pixel is decoded, and makes the pixels of its
crop.

The result equals that of resizing the image by the drawn scale, cropping at integer positions,
padding, flipping, and color jitter, but only the pixels of the crop are resampled, and only once.
Images are resampled bilinearly at pixel centers; below a scale of 1/2, blocks of 2x2, 4x4, ... are
averaged first, as in a mipmap. Masks are resampled with nearest neighbor, in integer arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from segtrain.config import Data

FILL = (124, 116, 104)  # ImageNet's mean color: zero after normalization
_FILL = np.array(FILL, np.uint8)
GRAY = np.array([0.299, 0.587, 0.114])  # luma weights of ITU-R BT.601, as in torchvision and PIL
# NTSC's: luma, and two axes of a color plane
YIQ = np.array([GRAY, [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
# A quarter turn of that color plane, from red toward yellow, as a matrix for RGB.
TURN = np.linalg.inv(YIQ) @ np.array([[0, 0, 0], [0, 0, 1], [0, -1, 0]]) @ YIQ

_TO_GRAY = np.ones((3, 1)) * GRAY
_WITHOUT_GRAY = np.eye(3) - _TO_GRAY


@dataclass(frozen=True)
class Geometry:
    """The place of a crop: its corner (top, left) in the image after it is resized from ``size`` to
    ``scaled``.

    Sizes are (height, width). Sizes and corner are in whole pixels. If the corner is negative, or
    the crop extends beyond ``scaled``, the crop is padded.
    """

    size: tuple[int, int]
    scaled: tuple[int, int]
    top: int
    left: int
    flip: bool = False
    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0  # turns of the color circle
    angle: float = 0.0  # degrees about the crop's center, see pixels/crop.py

    @property
    def colors(self) -> tuple[float, float, float, float]:
        """Brightness, contrast, saturation, hue; (1, 1, 1, 0) changes nothing."""
        return self.brightness, self.contrast, self.saturation, self.hue

    def plain(self) -> Geometry:
        """The same geometry without its color changes, for samples whose colors are changed on the
        device.
        """
        size, place = (self.size, self.scaled), (self.top, self.left)
        return Geometry(*size, *place, self.flip, angle=self.angle)

    def covered(self, crop: tuple[int, int]) -> tuple[int, int, int, int]:
        """The part of the crop that the image covers, after flipping: top, left, bottom, right in
        the crop's pixels.
        """
        top, bottom = max(0, -self.top), min(crop[0], self.scaled[0] - self.top)
        left, right = max(0, -self.left), min(crop[1], self.scaled[1] - self.left)
        return (
            (top, crop[1] - right, bottom, crop[1] - left)
            if self.flip
            else (top, left, bottom, right)
        )


def draw(
    rng: np.random.Generator,
    image_size: tuple[int, int],
    crop: tuple[int, int],
    data: Data,
    center: tuple[int, int] | None = None,
    scale: tuple[float, float] | None = None,
) -> Geometry:
    """Draw scale, place, flip, colors, and angle of one sample.

    Ten numbers are always drawn, so that the same state of ``rng`` gives the same relative place at
    every crop size. ``scale``: (min, max) of this step, if it differs from ``data.scale``
    (progressive size). ``center``: a source pixel (y, x) on which the crop is centered, as far as
    the borders of the image allow.
    """
    u = rng.random(10).tolist()
    low, high = scale or data.scale
    drawn = data.base_scale * (
        low + (high - low) * u[0]
        if data.scale_sampling == "uniform"
        else low * (high / low) ** u[0]
    )
    scaled = (max(1, round(image_size[0] * drawn)), max(1, round(image_size[1] * drawn)))
    y, x = (
        (None, None)
        if center is None
        else ((center[axis] + 0.5) / image_size[axis] for axis in (0, 1))
    )
    top, left = _place(scaled[0], crop[0], u[1], y), _place(scaled[1], crop[1], u[2], x)
    colors = [1.0, 1.0, 1.0, 0.0]
    if u[8] < data.color_jitter_prob:
        colors = [
            max(0.0, 1.0 - j) + (1.0 + j - max(0.0, 1.0 - j)) * v
            for j, v in zip(data.jitter, u[4:7])
        ]
        colors.append(data.hue * (2.0 * u[7] - 1.0))
    angle = data.rotate * (2.0 * u[9] - 1.0)
    flip, (brightness, contrast, saturation, hue) = bool(u[3] < data.flip), map(float, colors)
    return Geometry(
        image_size, scaled, top, left, flip, brightness, contrast, saturation, hue, float(angle)
    )


def _place(scaled: int, crop: int, u: float, center: float | None) -> int:
    """The crop's first pixel along one axis; ``u`` in [0, 1), ``center`` as a share of the axis."""
    free = scaled - crop
    if free < 0:  # the scaled image is smaller than the crop, and lies somewhere in it
        return -int(u * (1 - free))
    if center is None:
        return int(u * (1 + free))
    return min(max(round(center * scaled - crop / 2), 0), free)


def ids_in(mask: np.ndarray) -> np.ndarray:
    """The values in a mask, in their order."""
    if mask.dtype != np.uint8:
        return np.unique(mask)
    return np.flatnonzero(cv2.calcHist([mask], [0], None, [256], [0, 256]))


def class_center(mask: np.ndarray, u: np.ndarray, num_classes: int) -> tuple[int, int] | None:
    """The center (y, x) of a class-balanced crop: a uniformly random pixel of a uniformly random
    class in ``mask``.

    ``u``: two numbers in [0, 1). Returns None if all pixels are void.
    """
    ids = ids_in(mask)
    present = ids[ids < num_classes]
    if not present.size:
        return None
    pixels = np.flatnonzero(mask == present[int(u[0] * present.size)])
    y, x = divmod(int(pixels[int(u[1] * pixels.size)]), mask.shape[1])
    return y, x


def apply(
    image: np.ndarray,
    mask: np.ndarray,
    geometry: Geometry,
    crop: tuple[int, int],
    ignore_index: int,
    out: tuple[np.ndarray, np.ndarray] | None = None,
    fill: np.ndarray = _FILL,
    origin: tuple[int, int] = (0, 0),
) -> tuple[np.ndarray, np.ndarray]:
    """The crop's image uint8 (h, w, 3) and mask (h, w), written into ``out`` (two contiguous
    arrays) if given.

    ``image`` uint8 (H, W, 3) and ``mask`` (H, W) are the whole sample, and are not modified.
    Padding is ``fill`` in the image and ``ignore_index`` in the mask. Stored values are float32
    (H, W, bands), and may be the ``source_window`` of the image, which begins at ``origin``.
    """
    height, width = crop
    pixels, labels = out or (
        np.empty((height, width, len(fill)), fill.dtype),
        np.empty((height, width), mask.dtype),
    )
    y0, x0, y1, x1 = geometry.covered(crop)
    part = _resample(image, geometry, *_covering(geometry, crop), origin)
    seen = _color(part, geometry)
    if geometry.flip:
        seen = cv2.flip(seen, 1) if seen.dtype == np.uint8 else np.flip(seen, 1)
    if (y1 - y0, x1 - x0) != (height, width):
        # Whole rows at once: NumPy would be slow over a last axis of 3.
        pixels.reshape(height, -1)[...] = np.tile(fill, width)
    pixels[y0:y1, x0:x1] = seen
    apply_to_mask(mask, geometry, crop, ignore_index, labels)
    return pixels, labels


def apply_to_mask(
    mask: np.ndarray,
    geometry: Geometry,
    crop: tuple[int, int],
    ignore_index: int,
    out: np.ndarray,
) -> None:
    """Write the crop's mask, as ``apply`` does."""
    y0, x0, y1, x1 = geometry.covered(crop)
    ids = _nearest(mask, geometry.scaled, *_covering(geometry, crop))
    if ids.shape != out.shape:
        out[...] = ignore_index
    out[y0:y1, x0:x1] = cv2.flip(ids, 1) if geometry.flip else ids


def _covering(geometry: Geometry, crop: tuple[int, int]) -> tuple[slice, slice]:
    """The rows and columns of the resized image that a crop shows."""
    y0, x0, y1, x1 = geometry.covered(crop)
    left = geometry.left + (crop[1] - x1 if geometry.flip else x0)
    return slice(y0 + geometry.top, y1 + geometry.top), slice(left, left + x1 - x0)


def source_window(geometry: Geometry, crop: tuple[int, int]) -> tuple[slice, slice]:
    """The rows and columns of the stored image that a crop needs."""
    block, *spans = _blocks(geometry, *_covering(geometry, crop))
    rows, columns = (
        slice(span.start * block, min(span.stop * block, length))
        for span, length in zip(spans, geometry.size)
    )
    return rows, columns


def _blocks(geometry: Geometry, rows: slice, columns: slice) -> tuple[int, slice, slice]:
    """The side of the blocks that are averaged before the image is resampled, and the rows and
    columns of blocks that a part of the resized image needs.
    """
    steps, block = [geometry.size[axis] / geometry.scaled[axis] for axis in (0, 1)], 1
    while min(steps) / block > 2:
        block *= 2
    down, across = (
        slice(
            max(0, math.floor(part.start * step / block) - 1),
            min(-(-length // block), math.ceil(part.stop * step / block) + 1),
        )
        for part, step, length in zip((rows, columns), steps, geometry.size)
    )
    return block, down, across


def _resample(
    image: np.ndarray, geometry: Geometry, rows: slice, columns: slice, origin: tuple[int, int]
) -> np.ndarray:
    """These rows and columns of the image resized to ``geometry.scaled``. No other pixels are
    computed. ``image``: the part of it that begins at ``origin``.
    """
    size, scaled, (origin_y, origin_x) = geometry.size, geometry.scaled, origin
    if size == scaled:
        return image[_moved(rows, origin_y), _moved(columns, origin_x)]
    step_y, step_x = size[0] / scaled[0], size[1] / scaled[1]  # source pixels per pixel of the crop
    block, down, across = _blocks(geometry, rows, columns)
    if block > 1:
        image, origin_y, origin_x = _average_blocks(image, block, down, across, origin)
        step_y, step_x = step_y / block, step_x / block
    offset_x, offset_y = (
        (k + 0.5) * step - 0.5 for k, step in ((columns.start, step_x), (rows.start, step_y))
    )
    matrix = np.array([[step_x, 0, offset_x - origin_x], [0, step_y, offset_y - origin_y]])
    shape = (columns.stop - columns.start, rows.stop - rows.start)
    return warped(image, matrix, shape, cv2.INTER_LINEAR, cv2.BORDER_REPLICATE)


def warped(
    image: np.ndarray,
    matrix: np.ndarray,
    size: tuple[int, int],
    flags: int,
    border: int,
    fill: Sequence[float] | np.ndarray = (),
) -> np.ndarray:
    """The image that ``matrix`` maps onto ``image``, of ``size`` (width, height). OpenCV takes four
    bands at once.
    """
    parts = [
        cv2.warpAffine(
            image[..., first : first + 4] if image.ndim == 3 else image,
            matrix,
            size,
            flags=flags | cv2.WARP_INVERSE_MAP,
            borderMode=border,
            borderValue=[float(value) for value in fill[first : first + 4]],
        )
        for first in range(0, image.shape[2] if image.ndim == 3 else 1, 4)
    ]
    if image.ndim == 3:
        parts = [part if part.ndim == 3 else part[..., None] for part in parts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 2)


def _moved(part: slice, origin: int, block: int = 1) -> slice:
    """The place of a part, in blocks, within an image that begins at ``origin``."""
    return slice(part.start * block - origin, part.stop * block - origin)


def _average_blocks(
    image: np.ndarray, block: int, rows: slice, columns: slice, origin: tuple[int, int]
) -> tuple[np.ndarray, int, int]:
    """Means of ``block`` x ``block`` pixels of the image in these rows and columns of blocks, and
    the place of the first block.

    Blocks that extend beyond the right or lower border are filled with the last pixel.
    """
    region = image[_moved(rows, origin[0], block), _moved(columns, origin[1], block)]
    height, width = rows.stop - rows.start, columns.stop - columns.start
    short_y, short_x = height * block - region.shape[0], width * block - region.shape[1]
    if short_y or short_x:
        region = cv2.copyMakeBorder(region, 0, short_y, 0, short_x, cv2.BORDER_REPLICATE)
        region = region.reshape(*region.shape[:2], image.shape[2])
    means = cv2.resize(region, (width, height), interpolation=cv2.INTER_AREA)
    return means.reshape(*means.shape[:2], image.shape[2]), rows.start, columns.start


def _nearest(mask: np.ndarray, scaled: tuple[int, int], rows: slice, columns: slice) -> np.ndarray:
    """These rows and columns of ``mask`` resized to ``scaled``. A new pixel takes the source pixel
    at its center.
    """
    if mask.shape == scaled:
        return mask[rows, columns]
    index = [
        (2 * np.arange(part.start, part.stop) + 1) * length // (2 * new)
        for part, length, new in (
            (rows, mask.shape[0], scaled[0]),
            (columns, mask.shape[1], scaled[1]),
        )
    ]
    # Gathering whole rows twice, with a transposition between, is faster than gathering single
    # pixels.
    return cv2.transpose(cv2.transpose(mask[index[0]])[index[1]])


def color_matrix(brightness: float, contrast: float, saturation: float, hue: float) -> np.ndarray:
    """The RGB matrix of these color changes, float64 (3, 3), without the offset that contrast adds.
    Gray stays gray.

    Hue rotates the color plane (I and Q of YIQ) by ``hue`` turns. This is linear and does not
    change luma, as in DALI and FFCV. torchvision instead changes the hue of each pixel in HSV.
    """
    angle = 2 * math.pi * hue
    chroma = math.cos(angle) * _WITHOUT_GRAY + math.sin(angle) * TURN
    return np.asarray(brightness * contrast * (_TO_GRAY + saturation * chroma))


def color_terms(colors: tuple[float, float, float, float]) -> np.ndarray:
    """float32 (10,): ``color_matrix`` row by row, and the factor of the mean gray that is added to
    each channel.
    """
    # Round to float32 first, as older versions did, so that their runs resume bit for bit.
    brightness, contrast, saturation, hue = np.asarray(colors, np.float32).tolist()
    terms = np.empty(10, np.float32)
    terms[:9] = color_matrix(brightness, contrast, saturation, hue).ravel()
    terms[9] = (1 - contrast) * brightness
    return terms


def _color(image: np.ndarray, geometry: Geometry) -> np.ndarray:
    """Brightness, contrast, saturation (torchvision's formulas), and hue, in that order, as one
    affine map of colors.

    Contrast mixes each pixel with the mean gray of the brightened crop, saturation mixes it with
    its own gray. Values are clamped once, at the end; torchvision clamps after each of the four.
    """
    if geometry.colors == (1.0, 1.0, 1.0, 0.0):
        return image
    mean = float(GRAY @ cv2.mean(image)[:3])
    offset = np.full((3, 1), (1.0 - geometry.contrast) * geometry.brightness * mean)
    return cv2.transform(image, np.hstack([color_matrix(*geometry.colors), offset]))
