"""Generated street scenes with exact masks: a pure function of (seed, index).

A pinhole camera stands on a straight street. Facades, trees, poles, signs, cars, people, and
cyclists have positions in meters. They are painted from far to near with shade, haze, and cast
shadows; then sensor blur and noise are added.
"""

from __future__ import annotations

import itertools

import cv2
import numpy as np

from segtrain.data.labels.presets import VOID
from segtrain.data.scenes.canvas import BUILDING, FAR, ROAD, SIDEWALK, SKY, VEGETATION, Canvas
from segtrain.data.scenes.props import things

# part of the data set's fingerprint: raise it when a change of the code changes any pixel
VERSION = 1


def scene(
    seed: int, index: int, size: tuple[int, int] = (144, 192)
) -> tuple[np.ndarray, np.ndarray]:
    """Image uint8 (H, W, 3) RGB and mask uint8 (H, W) of train ids of ``SCENES`` (255: void).

    Two sizes with equal aspect ratios show the same street, with different noise. The same
    arguments give the same pixels.
    """
    rng = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), index]))
    canvas = Canvas(rng, *size)
    _backdrop(canvas)
    for z, side, paint in sorted(things(rng), key=lambda thing: -thing[0]):
        paint(canvas, z, side)
    _develop(canvas)
    _void(canvas)
    return canvas.image, canvas.mask


def _backdrop(canvas: Canvas) -> None:
    """Sky, far skyline, ground, road, and sidewalks with their texture."""
    height, width, rng, half = canvas.height, canvas.width, canvas.rng, canvas.half
    share = np.clip(np.arange(height) / max(1.0, canvas.horizon), 0, 1)[:, None, None]
    canvas.image[:] = (np.multiply(canvas.top, 1 - share) + np.multiply(canvas.haze, share)).astype(
        np.uint8
    )
    canvas.mask[:] = SKY
    clouds = np.clip(_field(rng, height, width, 5) - 0.1, 0, 1)[..., None] * rng.uniform(0, 1.2)
    canvas.image[:] = cv2.addWeighted(
        canvas.image, 1, (clouds * (250 - canvas.image)).astype(np.uint8), 0.9, 0
    )
    edge = 0.0
    while edge < width:  # a skyline behind everything
        step = rng.uniform(0.05, 0.2) * width
        rise = rng.uniform(0.01, 0.09) * height
        color, label = (((110, 120, 128), BUILDING), ((84, 108, 72), VEGETATION))[
            int(rng.random() < 0.5)
        ]
        low, high = canvas.horizon + 1, canvas.horizon - rise
        box = [(edge, low), (edge, high), (edge + step, high), (edge + step, low)]
        canvas.fill(box, canvas.color(color, 0.8 * FAR), label)
        edge += step
    paving, asphalt = rng.uniform(120, 185), rng.uniform(62, 112)
    warm = rng.uniform(-8, 14)
    _stripes(canvas, (-80, 80), (paving + warm, paving, paving - warm), SIDEWALK)
    _stripes(canvas, (-half, half), (asphalt, asphalt, asphalt + 5), ROAD)
    for side in (-1, 1):  # curbs
        edges = side * half, side * (half + 0.18)
        canvas.ground(edges, (1.2, FAR), canvas.color((196, 194, 188), 8), SIDEWALK)
    for z in np.arange(rng.uniform(2, 4), 40, 5.0):  # lane markings
        canvas.ground((-0.08, 0.08), (z, z + 2.4), canvas.color((226, 226, 218), z))
    if rng.random() < 0.25:
        z = rng.uniform(7, 14)
        for x in np.arange(-half + 0.3, half - 0.5, 0.9):
            canvas.ground((x, x + 0.5), (z, z + 2.5), canvas.color((224, 224, 220), z))
    grain = 1 + 0.10 * _field(rng, height, width, 24) + 0.07 * _field(rng, height, width, 4)
    rows = slice(int(canvas.horizon), height)
    canvas.image[rows] = np.clip(canvas.image[rows] * grain[rows, :, None], 0, 255).astype(np.uint8)


def _stripes(canvas: Canvas, x: tuple[float, float], color: tuple[float, ...], label: int) -> None:
    """A strip of ground that reaches to the horizon, in slices that fade with distance."""
    near = canvas.eye * canvas.focal / max(1.0, canvas.height - canvas.horizon) * 0.8
    steps = np.geomspace(near, 4 * FAR, 14)
    for z, beyond in itertools.pairwise(steps):
        canvas.ground(x, (z, beyond), canvas.color(color, min(z, FAR)), label)


def _field(rng: np.random.Generator, height: int, width: int, cells: int) -> np.ndarray:
    """Smooth noise, float32 (H, W), about -1 to 1, with about ``cells`` bumps from top to
    bottom.
    """
    across = max(2, round(cells * width / height))
    coarse = rng.uniform(-1, 1, (max(2, cells), across)).astype(np.float32)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def _develop(canvas: Canvas) -> None:
    """Add the effects of lens and sensor: texture, exposure, slight blur, and noise."""
    rng, image = canvas.rng, canvas.image
    height, width = canvas.mask.shape
    texture = (
        1
        + 0.06 * _field(rng, height, width, min(64, height // 2))
        + 0.09 * _field(rng, height, width, 2)
    )
    picture = image * (texture * np.float32(rng.uniform(0.82, 1.14)))[..., None]
    if rng.random() < 0.7:
        picture = cv2.GaussianBlur(picture, (0, 0), rng.uniform(0.3, 0.8) * max(1.0, height / 288))
    picture += rng.standard_normal((height, width, 1), np.float32) * np.float32(rng.uniform(1.5, 6))
    picture += rng.standard_normal((height, width, 3), np.float32) * np.float32(
        rng.uniform(0.5, 2.5)
    )
    canvas.image = np.clip(picture, 0, 255).astype(np.uint8)


def _void(canvas: Canvas) -> None:
    """Mark as void the pixels that annotators leave unlabeled: bands along some borders, and the
    camera car's hood.
    """
    rng, mask = canvas.rng, canvas.mask
    height, width = mask.shape
    edge = cv2.morphologyEx(mask, cv2.MORPH_GRADIENT, np.ones((2, 2), np.uint8)) > 0
    unsure = _field(rng, height, width, 4) > rng.uniform(0.0, 0.8)
    mask[edge & unsure] = VOID
    if rng.random() < 0.35:
        low = height * rng.uniform(0.93, 0.98)
        arch = (
            (0, height),
            (0.1 * width, low),
            (0.5 * width, low - 0.02 * height),
            (0.9 * width, low),
            (width, height),
        )
        points, color = (
            [np.array(arch).astype(np.int32)],
            rng.uniform(15, 70, 3).astype(int).tolist(),
        )
        cv2.fillPoly(canvas.image, points, color, cv2.LINE_AA)
        cv2.fillPoly(mask, points, VOID)
