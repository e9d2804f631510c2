"""The plain computation of a crop: resize the whole image, pad, crop, flip."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from segtrain.data.augment.geometry import FILL, Geometry

VOID = 255


def plain_resize(image: np.ndarray, scaled: tuple[int, int]) -> np.ndarray:
    """The whole image in float64: block means until no source pixel is skipped, then bilinear at
    pixel centers.
    """
    height, width = image.shape[:2]
    block = 1
    while min(height / scaled[0], width / scaled[1]) / block > 2:
        block *= 2
    padded = np.pad(
        image.astype(float), ((0, -height % block), (0, -width % block), (0, 0)), mode="edge"
    )
    level = padded.reshape(
        padded.shape[0] // block, block, padded.shape[1] // block, block, 3
    ).mean((1, 3))
    out = level
    for axis, length in ((0, height), (1, width)):
        centers = (np.arange(scaled[axis]) + 0.5) * (length / scaled[axis]) / block - 0.5
        first = np.floor(centers).astype(int)
        share = (centers - first).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        last = level.shape[axis] - 1
        low, high = (np.take(out, np.clip(first + k, 0, last), axis) for k in (0, 1))
        out = low * (1 - share) + high * share
    return out


def plain_nearest(mask: np.ndarray, scaled: tuple[int, int]) -> np.ndarray:
    rows, columns = (
        [int((Fraction(2 * i + 1, 2)) * Fraction(length, new)) for i in range(new)]
        for length, new in zip(mask.shape, scaled)
    )
    return mask[np.ix_(rows, columns)]


def plain(
    image: np.ndarray, mask: np.ndarray, g: Geometry, crop: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Resize the whole picture, lay it on a large canvas, cut the crop out, flip. Image in
    float64.
    """
    margin = max(crop)
    big = np.empty((g.scaled[0] + 2 * margin, g.scaled[1] + 2 * margin, 3))
    big[...] = FILL
    ids = np.full(big.shape[:2], VOID, np.uint8)
    inside = (slice(margin, margin + g.scaled[0]), slice(margin, margin + g.scaled[1]))
    big[inside], ids[inside] = plain_resize(image, g.scaled), plain_nearest(mask, g.scaled)
    cut = (
        slice(margin + g.top, margin + g.top + crop[0]),
        slice(margin + g.left, margin + g.left + crop[1]),
    )
    out = big[cut], ids[cut]
    return (out[0][:, ::-1], out[1][:, ::-1]) if g.flip else out
