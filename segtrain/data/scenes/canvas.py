"""A pinhole camera that paints flat shapes of a street into an image and its mask."""

from __future__ import annotations

import math
from typing import Union

import cv2
import numpy as np

from segtrain.data.labels.presets import SCENES

Color = Union[tuple[float, ...], np.ndarray]  # red, green, blue from 0 to 255
Point = tuple[float, float]
Paint = tuple[int, int, int]

SKY, BUILDING, ROAD, SIDEWALK, VEGETATION, POLE, SIGN, CAR, PERSON, BICYCLE = range(
    SCENES.num_classes
)
_SHIFT = 4  # polygons are drawn with a precision of 1/16 pixel
_EDGE = 4e4  # pixels: far outside any image, and still an int32 in units of 1/16 pixel
_TURN = np.linspace(0, 2 * np.pi, 18, endpoint=False)
_CIRCLE = np.stack([np.cos(_TURN), np.sin(_TURN)], axis=1)
FAR = 70.0  # meters: from here on, haze covers most of a color
# day, overcast, evening, and dusk; each has the sky's color at the top and at the horizon, and the
# light's
_LOOKS = (
    ((88, 140, 208), (196, 214, 232), (1.0, 1.0, 0.97)),
    ((150, 158, 168), (205, 208, 212), (0.86, 0.88, 0.92)),
    ((96, 116, 176), (240, 190, 140), (1.06, 0.92, 0.78)),
    ((44, 54, 96), (150, 120, 130), (0.66, 0.66, 0.80)),
)


class Canvas:
    """An image and its mask as one camera sees them, and the dimensions of the street that all
    painters use.

    World coordinates are meters: X to the right, Y up from the ground, Z ahead. Shapes without a
    label leave the mask unchanged.
    """

    def __init__(self, rng: np.random.Generator, height: int, width: int) -> None:
        self.rng, self.height, self.width = rng, height, width
        self.focal = rng.uniform(0.62, 0.85) * (height * width * 4 / 3) ** 0.5
        self.horizon = height * rng.uniform(0.40, 0.52)
        self.center = width * rng.uniform(0.40, 0.60)
        self.eye = rng.uniform(1.3, 1.9)
        self.lateral = rng.uniform(-1.6, 1.6)
        self.image = np.empty((height, width, 3), np.uint8)
        self.mask = np.empty((height, width), np.uint8)
        self.top, self.haze, light = _LOOKS[rng.choice(len(_LOOKS), p=(0.4, 0.3, 0.2, 0.1))]
        bright = rng.uniform(0.9, 1.1)
        self.light = tuple(bright * channel for channel in light)
        self.sun = rng.choice((-1.0, 1.0))  # the side that the light comes from
        self.half = rng.uniform(3.2, 5.5)  # half the width of the road
        self.walk = rng.uniform(2.2, 5.5)  # the width of a sidewalk

    def at(self, x: float, y: float, z: float) -> Point:
        """Pixel (column, row) of a world point."""
        return self.center + self.focal * (x - self.lateral) / z, self.horizon + self.focal * (
            self.eye - y
        ) / z

    def color(self, color: Color, z: float, shade: float = 1.0) -> Paint:
        """The color under the light of the scene, faded by the haze of ``z`` meters."""
        air = min(0.75, (z / FAR) ** 1.3 * 0.6)
        clear = (1 - air) * shade
        red, green, blue = (
            int(min(255, part * light * clear + haze * air))
            for part, light, haze in zip(color, self.light, self.haze)
        )
        return red, green, blue

    def fill(self, points: list[Point], color: Paint, label: int | None = None) -> None:
        """Fill a convex polygon; ``points`` are pixels."""
        columns, rows = zip(*points)
        if (
            max(columns) < 0
            or min(columns) > self.width
            or max(rows) < 0
            or min(rows) > self.height
        ):
            return
        self._paint(np.array(points).clip(-_EDGE, _EDGE), color, label)

    def _paint(self, points: np.ndarray, color: Paint, label: int | None) -> None:
        fixed = (points * (1 << _SHIFT)).astype(np.int32)
        cv2.fillConvexPoly(self.image, fixed, color, cv2.LINE_AA, _SHIFT)
        if label is not None:
            cv2.fillConvexPoly(self.mask, fixed, label, cv2.LINE_8, _SHIFT)

    def disc(self, center: Point, axes: Point, color: Paint, label: int | None = None) -> None:
        """Fill an ellipse; ``axes`` are half its width and height in pixels."""
        (x, y), (wide, tall) = center, axes
        if x + wide < 0 or x - wide > self.width or y + tall < 0 or y - tall > self.height:
            return
        self._paint(_CIRCLE * axes + center, color, label)

    def line(self, start: Point, end: Point, width: float, color: Paint, label: int) -> None:
        """Fill a bar between two pixels, ``width`` pixels wide but at least 1.2."""
        (x, y), (u, v) = start, end
        half = max(1.2, width) / 2 / max(1e-6, math.hypot(u - x, v - y))
        a, b = (y - v) * half, (u - x) * half
        self.fill([(x - a, y - b), (x + a, y + b), (u + a, v + b), (u - a, v - b)], color, label)

    def upright(self, x: Point, y: Point, z: float, color: Paint, label: int | None = None) -> None:
        """A rectangle that faces the camera."""
        self.fill([self.at(a, b, z) for a, b in _corners(x, y)], color, label)

    def wall(self, x: float, y: Point, z: Point, color: Paint, label: int | None = None) -> None:
        """An upright rectangle parallel to the street."""
        self.fill([self.at(x, a, b) for a, b in _corners(y, z)], color, label)

    def ground(self, x: Point, z: Point, color: Paint, label: int | None = None) -> None:
        """A rectangle on the ground."""
        self.fill([self.at(a, 0, b) for a, b in _corners(x, z)], color, label)

    def shadow(self, x: Point, z: Point) -> None:
        """Darken the ground under an object; the mask does not change."""
        left, right = self.at(x[0], 0, z[0])[0], self.at(x[1], 0, z[0])[0]
        low, high = self.at(0, 0, z[0])[1], self.at(0, 0, z[1])[1]
        part = (
            slice(max(0, int(high - 1)), max(0, int(low + 2))),
            slice(max(0, int(left)), max(0, int(right))),
        )
        image, mask = self.image[part], self.mask[part]
        ground = (mask == ROAD) | (mask == SIDEWALK)
        np.copyto(image, (image * 0.55).astype(np.uint8), where=ground[..., None])


def _corners(x: Point, y: Point) -> list[Point]:
    return [(x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1])]
