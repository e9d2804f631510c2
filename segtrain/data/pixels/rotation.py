"""How does a crop come out of the picture when it is rotated? From an upright part that holds all of it, turned once.

The window is turned about its own center; its corners may leave the picture, and are padding there.
"""

from __future__ import annotations

import math
from dataclasses import replace

import cv2
import numpy as np

from segtrain.data.augment.geometry import FILL, Geometry


def upright(geometry: Geometry, crop: tuple[int, int]) -> tuple[Geometry, tuple[int, int], np.ndarray] | None:
    """The part to make first, its (height, width), and the float64 (2, 3) map from pixels (x, y) of the crop into it.

    The part has the picture's own pixels, or where the scale is below 1/2 the picture reduced by 2, 4, ... None where the turned
    window does not meet the picture at all.
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
    turn = np.array([[cos, sin], [-sin, cos]])  # of the window, counter-clockwise on the screen
    if geometry.flip:
        turn = turn @ np.diag([-1.0, 1.0])
    linear = ratio[:, None] * turn
    # The center of pixel p lies at p + 1/2, in the crop as in the part.
    offset = ratio * center + linear @ (0.5 - middle) - 0.5
    corners = np.array([[0, 0, 1], [crop[1] - 1, 0, 1], [0, crop[0] - 1, 1], [crop[1] - 1, crop[0] - 1, 1]])
    places = corners @ np.column_stack([linear, offset]).T
    left, top = (int(v) for v in np.floor(places.min(0)) - 1)
    right, bottom = (int(v) for v in np.ceil(places.max(0)) + 2)
    if min(right, reduced[1]) <= max(left, 0) or min(bottom, reduced[0]) <= max(top, 0):
        return None
    part = replace(geometry, scaled=reduced, top=top, left=left, flip=False, angle=0.0)
    return part, (bottom - top, right - left), np.column_stack([linear, offset - np.array([left, top])])


def turn(
    part: tuple[np.ndarray, np.ndarray], matrix: np.ndarray, ignore_index: int, out: tuple[np.ndarray, np.ndarray]
) -> None:
    """Write image uint8 (h, w, 3), bilinear, and mask uint8 (h, w), nearest, to ``out``; padding outside of ``part``."""
    size = out[1].shape[::-1]
    for source, target, flags, border in (
        (part[0], out[0], cv2.INTER_LINEAR, FILL),
        (part[1], out[1], cv2.INTER_NEAREST, (ignore_index,)),
    ):
        cv2.warpAffine(
            source, matrix, size, dst=target, flags=flags | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_CONSTANT, borderValue=border
        )  # fmt: skip
