"""Hausdorff distance between the outlines of a class in truth and prediction."""

from __future__ import annotations

import math

import cv2
import numpy as np

_PERCENT = 95


def hausdorff(truth: np.ndarray, guess: np.ndarray, classes: int, void: int) -> list[float]:
    """The distance in pixels for each class of an image, (H, W) each; NaN for a class that truth or
    prediction lacks.

    It is the larger one of two 95th percentiles: of the distances from the outline in the truth to
    the nearest pixel of the outline in the prediction, and the other way round.
    """
    guess = np.where(truth == void, void, guess)
    return [_distance(truth == c, guess == c) for c in range(classes)]


def _distance(truth: np.ndarray, guess: np.ndarray) -> float:
    if not truth.any() or not guess.any():
        return math.nan
    ours, theirs = _outline(truth), _outline(guess)
    pairs = (ours, theirs), (theirs, ours)
    return max(float(np.percentile(_to_nearest(to)[start], _PERCENT)) for start, to in pairs)


def _outline(mask: np.ndarray) -> np.ndarray:
    """The pixels of a mask that have a neighbor outside of it, or lie on the border of the
    image.
    """
    kernel = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    inner = cv2.erode(mask.astype(np.uint8), kernel, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    return mask & (inner == 0)


def _to_nearest(outline: np.ndarray) -> np.ndarray:
    """The distance of each pixel to the outline, float64.

    The last bits of OpenCV's float32 vary from call to call, but squares of distances are whole.
    """
    away = (~outline).astype(np.uint8)
    distances = cv2.distanceTransform(away, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    return np.sqrt(np.rint(distances.astype(np.float64) ** 2))
