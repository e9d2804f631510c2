"""Draws shapes into a mask. The rule is that of pycocotools: a pixel belongs to a polygon if its
center lies inside (even-odd), on a grid of a fifth of a pixel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from PIL import Image

from segtrain.data.annotations.read import run_lengths
from segtrain.data.annotations.shapes import Size, unpacked

Paint = Literal["file", "smallest", "void"]
# A part of a mask: its pixels, bool (h, w), and the (top, left) of its upper left pixel.
Part = tuple[np.ndarray, tuple[int, int]]
# What turns an upright image into one that is stored with this EXIF orientation.
_STORED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def draw(
    shapes: Sequence[dict[str, Any]],
    size: Size,
    ids: Mapping[str, int],
    background: int,
    void: int,
    paint: Paint,
    dtype: Any = np.uint8,
) -> np.ndarray | None:
    """The mask of shapes, (H, W) of train ids; None if all shapes are outside of the image.

    shapes: as in the JSON of ``shapes.to_text``, with the pixels of files as arrays. ids: class
    name -> train id. background: the id of pixels in no shape. paint: the shape to which a pixel in
    several shapes belongs. "file": the last one; "smallest": the one with the fewest pixels;
    "void": none, the pixel becomes ``void``.
    """
    parts = [(part, ids[shape["name"]]) for shape in shapes if (part := _part(shape, size))]
    if shapes and not parts:
        return None
    if paint == "smallest":
        parts.sort(key=lambda part: -int(np.count_nonzero(part[0][0])))  # stable
    mask, covered = np.full(size, background, dtype), np.zeros(size, bool)
    for (pixels, (top, left)), train_id in parts:
        where = slice(top, top + pixels.shape[0]), slice(left, left + pixels.shape[1])
        mask[where][pixels] = train_id
        if paint == "void":
            mask[where][pixels & covered[where]] = void
            covered[where] |= pixels
    return mask


def _part(shape: dict[str, Any], size: Size) -> Part | None:
    """The pixels of a shape that are in the image; None if it is outside."""
    from pycocotools import mask as rle

    height, width = size
    if "pixels" in shape:
        pixels = shape["pixels"]
        pixels = pixels if isinstance(pixels, np.ndarray) else rle.decode(pixels)
        left, top = shape.get("at", (0, 0))
        pixels = pixels[max(0, -top) : height - top, max(0, -left) : width - left]
        inside = top < height and left < width and pixels.size
        return (pixels.astype(bool), (max(0, top), max(0, left))) if inside else None
    if "runs" in shape:
        rows = shape["order"] == "rows"
        pixels = unpacked(shape["runs"], size if rows else size[::-1])
        return pixels if rows else pixels.T, (0, 0)
    scale = (width, height) if shape.get("relative") else (1, 1)
    rings, holes = (
        [np.array(ring).reshape(-1, 2) * scale for ring in shape[kind]]
        for kind in ("polygons", "holes")
    )
    points = np.concatenate(rings)
    left, top = (int(value) for value in np.maximum(np.floor(points.min(0)), 0))
    right, bottom = (int(value) + 1 for value in np.ceil(points.max(0)))
    extent = min(bottom, height) - top, min(right, width) - left
    if min(extent) <= 0:
        return None
    pixels = _filled(rings, (left, top), extent)
    return (pixels & ~_filled(holes, (left, top), extent) if holes else pixels), (top, left)


def _filled(rings: list[np.ndarray], corner: tuple[int, int], extent: Size) -> np.ndarray:
    """The union of rings, bool (h, w), in the part of the image that begins at ``corner`` (x, y).

    The points are not moved: that would round them otherwise than in the whole image. The columns
    before the part are cut from the run lengths instead, whose first number counts them.
    """
    from pycocotools import mask as rle

    (left, top), (height, width) = corner, extent
    bottom = top + height
    polygons = rle.frPyObjects([ring.ravel().tolist() for ring in rings], bottom, left + width)
    runs = rle.merge(polygons)["counts"]
    # The characters of all numbers but their last ones are "P" or greater.
    end = next(place for place, char in enumerate(runs, 1) if char < 80)
    first = _compressed(run_lengths(runs[:end])[0] - left * bottom)
    part = {"size": [bottom, width], "counts": first + runs[end:]}
    return rle.decode(part)[top:].astype(bool)


def _compressed(length: int) -> bytes:
    """The first number of COCO's run lengths (rleToString in maskApi.c)."""
    more = b""
    while length > 15:
        more += bytes([48 + 32 + length % 32])
        length //= 32
    return more + bytes([48 + length])


def stored_orientation(mask: np.ndarray, orientation: int) -> np.ndarray:
    """A mask of the upright image, as the image is stored. orientation: the EXIF tag, 1 to 8."""
    if orientation not in _STORED:
        return mask
    return np.array(Image.fromarray(mask).transpose(_STORED[orientation]))
