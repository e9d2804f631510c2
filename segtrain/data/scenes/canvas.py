"""How does a thing in the street get onto the picture? A pinhole camera, a painter for flat shapes, and a mask that follows."""

from __future__ import annotations

import math

import cv2
import numpy as np

from segtrain.data.labels.presets import SCENES

SKY, BUILDING, ROAD, SIDEWALK, VEGETATION, POLE, SIGN, CAR, PERSON, BICYCLE = range(SCENES.num_classes)
_SHIFT = 4  # polygons are drawn with 1/16 pixel
_EDGE = 4e4  # far outside of any picture, and still an int32 in 1/16 pixel
_TURN = np.linspace(0, 2 * np.pi, 18, endpoint=False)
_CIRCLE = np.stack([np.cos(_TURN), np.sin(_TURN)], axis=1)
FAR = 70.0  # meters at which haze hides most
_LOOKS = (  # day, overcast, evening, dusk: sky at the top, sky at the horizon, light
    ((88, 140, 208), (196, 214, 232), (1.0, 1.0, 0.97)),
    ((150, 158, 168), (205, 208, 212), (0.86, 0.88, 0.92)),
    ((96, 116, 176), (240, 190, 140), (1.06, 0.92, 0.78)),
    ((44, 54, 96), (150, 120, 130), (0.66, 0.66, 0.80)),
)


class Canvas:
    """Picture and mask under one pinhole camera. World: X to the right, Y up from the ground, Z ahead, in meters."""

    def __init__(self, rng: np.random.Generator, height: int, width: int) -> None:
        self.rng, self.height, self.width = rng, height, width
        self.focal = rng.uniform(0.62, 0.85) * (height * width * 4 / 3) ** 0.5
        self.horizon = height * rng.uniform(0.40, 0.52)
        self.center = width * rng.uniform(0.40, 0.60)
        self.eye = rng.uniform(1.3, 1.9)
        self.lateral = rng.uniform(-1.6, 1.6)
        self.image = np.empty((height, width, 3), np.uint8)
        self.mask = np.empty((height, width), np.uint8)
        top, low, light = _LOOKS[rng.choice(len(_LOOKS), p=(0.4, 0.3, 0.2, 0.1))]
        bright = rng.uniform(0.9, 1.1)
        self.light = tuple(bright * channel for channel in light)
        self.sun = rng.choice((-1.0, 1.0))  # the side that the light comes from
        self.haze = low
        self.sky = np.array(top, float), np.array(low, float)

    def at(self, x: float, y: float, z: float) -> tuple[float, float]:
        """Pixel (column, row) of a world point."""
        return self.center + self.focal * (x - self.lateral) / z, self.horizon + self.focal * (self.eye - y) / z

    def color(self, color: tuple[float, ...], z: float, shade: float = 1.0) -> tuple[int, int, int]:
        """The color under this light, paled by ``z`` meters of air."""
        air = min(0.75, (z / FAR) ** 1.3 * 0.6)
        clear, (red, green, blue), (r, g, b), (x, y, z) = (1 - air) * shade, color, self.light, self.haze
        red, green, blue = red * r * clear + x * air, green * g * clear + y * air, blue * b * clear + z * air
        if red > 255 or green > 255 or blue > 255:
            red, green, blue = min(255, red), min(255, green), min(255, blue)
        return int(red), int(green), int(blue)

    def fill(self, points: list[tuple[float, float]], color: tuple[int, int, int], label: int | None) -> None:
        """A convex polygon in pixels; without a label it only paints."""
        columns, rows = zip(*points)
        if max(columns) < 0 or min(columns) > self.width or max(rows) < 0 or min(rows) > self.height:
            return
        if max(columns) > _EDGE or min(columns) < -_EDGE or max(rows) > _EDGE or min(rows) < -_EDGE:
            points = [(min(_EDGE, max(-_EDGE, x)), min(_EDGE, max(-_EDGE, y))) for x, y in points]
        self._paint((np.array(points) * (1 << _SHIFT)).astype(np.int32), color, label)

    def _paint(self, fixed: np.ndarray, color: tuple[int, int, int], label: int | None) -> None:
        """``fixed``: int32 (N, 2) in 1/16 pixel."""
        cv2.fillConvexPoly(self.image, fixed, color, cv2.LINE_AA, _SHIFT)
        if label is not None:
            cv2.fillConvexPoly(self.mask, fixed, label, cv2.LINE_8, _SHIFT)

    def disc(
        self, center: tuple[float, float], axes: tuple[float, float], color: tuple[int, int, int], label: int | None
    ) -> None:
        """A filled ellipse, axes in pixels."""
        (x, y), (wide, tall) = center, axes
        if x + wide < 0 or x - wide > self.width or y + tall < 0 or y - tall > self.height:
            return
        self._paint(((_CIRCLE * axes + center) * (1 << _SHIFT)).astype(np.int32), color, label)

    def line(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        width: float,
        color: tuple[int, int, int],
        label: int,
    ) -> None:
        """A bar between two pixels, at least 1.2 pixels wide."""
        (x, y), (u, v) = start, end
        half = max(1.2, width) / 2 / max(1e-6, math.hypot(u - x, v - y))
        a, b = (y - v) * half, (u - x) * half
        self.fill([(x - a, y - b), (x + a, y + b), (u + a, v + b), (u - a, v - b)], color, label)

    def upright(
        self, x: tuple[float, float], y: tuple[float, float], z: float, color: tuple[int, int, int], label: int | None
    ) -> None:
        """A rectangle that faces the camera."""
        self.fill([self.at(a, b, z) for a, b in ((x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1]))], color, label)

    def wall(
        self, x: float, y: tuple[float, float], z: tuple[float, float], color: tuple[int, int, int], label: int | None
    ) -> None:
        """A rectangle along the street."""
        self.fill([self.at(x, a, b) for a, b in ((y[0], z[0]), (y[1], z[0]), (y[1], z[1]), (y[0], z[1]))], color, label)

    def ground(
        self, x: tuple[float, float], z: tuple[float, float], color: tuple[int, int, int], label: int | None
    ) -> None:
        """A rectangle on the ground."""
        self.fill([self.at(a, 0, b) for a, b in ((x[0], z[0]), (x[1], z[0]), (x[1], z[1]), (x[0], z[1]))], color, label)

    def shadow(self, x: tuple[float, float], z: tuple[float, float]) -> None:
        """Darkens the ground under a thing; labels stay."""
        left, right = self.at(x[0], 0, z[0])[0], self.at(x[1], 0, z[0])[0]
        low, high = self.at(0, 0, z[0])[1], self.at(0, 0, z[1])[1]
        rows = slice(max(0, int(high - 1)), max(0, int(low + 2)))
        columns = slice(max(0, int(left)), max(0, int(right)))
        ground = (self.mask[rows, columns] == ROAD) | (self.mask[rows, columns] == SIDEWALK)
        part = self.image[rows, columns]
        if part.size:
            np.copyto(part, (part * 0.55).astype(np.uint8), where=ground[..., None])
