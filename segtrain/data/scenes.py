"""What does a street look like where no data set is at hand? Drawn scenes with exact masks, a pure function of (seed, index).

A pinhole camera stands on a straight street. Facades, trees, poles, signs, parked cars, people and cyclists stand at metric places;
they are painted from far to near with shade, texture, haze and a cast shadow, then the sensor adds blur and noise.
"""

from __future__ import annotations

import itertools
import math

import cv2
import numpy as np

from segtrain.data.presets import SCENES, VOID

VERSION = 1  # goes into the fingerprint: raise it when a pixel changes
SKY, BUILDING, ROAD, SIDEWALK, VEGETATION, POLE, SIGN, CAR, PERSON, BICYCLE = range(SCENES.num_classes)
_SHIFT = 4  # polygons are drawn with 1/16 pixel
_EDGE = 4e4  # far outside of any picture, and still an int32 in 1/16 pixel
_TURN = np.linspace(0, 2 * np.pi, 18, endpoint=False)
_CIRCLE = np.stack([np.cos(_TURN), np.sin(_TURN)], axis=1)
_FAR = 70.0  # metres at which haze hides most
_LOOKS = (  # day, overcast, evening, dusk: sky at the top, sky at the horizon, light
    ((88, 140, 208), (196, 214, 232), (1.0, 1.0, 0.97)),
    ((150, 158, 168), (205, 208, 212), (0.86, 0.88, 0.92)),
    ((96, 116, 176), (240, 190, 140), (1.06, 0.92, 0.78)),
    ((44, 54, 96), (150, 120, 130), (0.66, 0.66, 0.80)),
)
_FACADES = ((168, 120, 98), (186, 170, 146), (150, 146, 142), (132, 92, 80), (200, 186, 160), (120, 126, 138))
_PAINTS = ((170, 30, 34), (34, 62, 140), (210, 210, 214), (30, 32, 36), (120, 126, 132), (36, 110, 76), (206, 160, 40))
_CLOTHES = ((40, 44, 60), (150, 40, 44), (60, 90, 140), (200, 190, 170), (70, 110, 70), (210, 120, 40), (90, 60, 110))


_FRAME = (  # of a bicycle: bars from (x, y) to (x, y) in metres
    ((-0.52, 0.34), (-0.15, 0.85)),
    ((-0.15, 0.85), (0.4, 0.85)),
    ((0.4, 0.95), (0.52, 0.34)),
    ((0.0, 0.34), (0.4, 0.85)),
    ((0.3, 1.02), (0.5, 1.02)),
)


class _Canvas:
    """Picture and mask under one pinhole camera. World: X to the right, Y up from the ground, Z ahead, in metres."""

    def __init__(self, rng: np.random.Generator, height: int, width: int) -> None:
        self.rng, self.height, self.width = rng, height, width
        self.focal = rng.uniform(0.62, 0.85) * (height * width * 4 / 3) ** 0.5
        self.horizon = height * rng.uniform(0.40, 0.52)
        self.centre = width * rng.uniform(0.40, 0.60)
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
        return self.centre + self.focal * (x - self.lateral) / z, self.horizon + self.focal * (self.eye - y) / z

    def colour(self, colour: tuple[float, ...], z: float, shade: float = 1.0) -> tuple[int, int, int]:
        """The colour under this light, paled by ``z`` metres of air."""
        air = min(0.75, (z / _FAR) ** 1.3 * 0.6)
        clear = (1 - air) * shade
        red, green, blue = (
            min(255, max(0, int(c * light * clear + haze * air)))
            for c, light, haze in zip(colour, self.light, self.haze)
        )
        return red, green, blue

    def fill(self, points: list[tuple[float, float]], colour: tuple[int, int, int], label: int | None) -> None:
        """A convex polygon in pixels; without a label it only paints."""
        columns, rows = zip(*points)
        if max(columns) < 0 or min(columns) > self.width or max(rows) < 0 or min(rows) > self.height:
            return
        fixed = np.array(
            [(int(min(_EDGE, max(-_EDGE, x)) * 16), int(min(_EDGE, max(-_EDGE, y)) * 16)) for x, y in points]
        )
        self._paint(fixed.astype(np.int32), colour, label)

    def _paint(self, fixed: np.ndarray, colour: tuple[int, int, int], label: int | None) -> None:
        """``fixed``: int32 (N, 2) in 1/16 pixel."""
        cv2.fillConvexPoly(self.image, fixed, colour, cv2.LINE_AA, _SHIFT)
        if label is not None:
            cv2.fillConvexPoly(self.mask, fixed, label, cv2.LINE_8, _SHIFT)

    def disc(
        self, centre: tuple[float, float], axes: tuple[float, float], colour: tuple[int, int, int], label: int | None
    ) -> None:
        """A filled ellipse, axes in pixels."""
        (x, y), (wide, tall) = centre, axes
        if x + wide < 0 or x - wide > self.width or y + tall < 0 or y - tall > self.height:
            return
        self._paint(((_CIRCLE * axes + centre) * 16).astype(np.int32), colour, label)

    def line(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        width: float,
        colour: tuple[int, int, int],
        label: int,
    ) -> None:
        """A bar between two pixels, at least 1.2 pixels wide."""
        (x, y), (u, v) = start, end
        half = max(1.2, width) / 2 / max(1e-6, math.hypot(u - x, v - y))
        a, b = (y - v) * half, (u - x) * half
        self.fill([(x - a, y - b), (x + a, y + b), (u + a, v + b), (u - a, v - b)], colour, label)

    def upright(
        self, x: tuple[float, float], y: tuple[float, float], z: float, colour: tuple[int, int, int], label: int | None
    ) -> None:
        """A rectangle that faces the camera."""
        self.fill(
            [self.at(a, b, z) for a, b in ((x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1]))], colour, label
        )

    def wall(
        self, x: float, y: tuple[float, float], z: tuple[float, float], colour: tuple[int, int, int], label: int | None
    ) -> None:
        """A rectangle along the street."""
        self.fill(
            [self.at(x, a, b) for a, b in ((y[0], z[0]), (y[1], z[0]), (y[1], z[1]), (y[0], z[1]))], colour, label
        )

    def ground(
        self, x: tuple[float, float], z: tuple[float, float], colour: tuple[int, int, int], label: int | None
    ) -> None:
        """A rectangle on the ground."""
        self.fill(
            [self.at(a, 0, b) for a, b in ((x[0], z[0]), (x[1], z[0]), (x[1], z[1]), (x[0], z[1]))], colour, label
        )

    def shadow(self, x: tuple[float, float], z: tuple[float, float]) -> None:
        """Darkens the ground under a thing; labels stay."""
        left, right = self.at(x[0], 0, z[0])[0], self.at(x[1], 0, z[0])[0]
        low, high = self.at(0, 0, z[0])[1], self.at(0, 0, z[1])[1]
        box = np.clip([high - 1, low + 2], 0, self.height), np.clip([left, right], 0, self.width)
        rows, columns = slice(int(box[0][0]), int(box[0][1])), slice(int(box[1][0]), int(box[1][1]))
        ground = (self.mask[rows, columns] == ROAD) | (self.mask[rows, columns] == SIDEWALK)
        part = self.image[rows, columns]
        if part.size:
            np.copyto(part, (part * 0.55).astype(np.uint8), where=ground[..., None])


def scene(seed: int, index: int, size: tuple[int, int] = (144, 192)) -> tuple[np.ndarray, np.ndarray]:
    """Image uint8 (H, W, 3) RGB and mask uint8 (H, W) of train ids of ``SCENES`` (255: void), the same for the same arguments.

    One size of an index is not the other one scaled: the layout of the street is the same, its noise is not.
    """
    rng = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), index]))
    canvas = _Canvas(rng, *size)
    half = rng.uniform(3.2, 5.5)  # half the width of the road
    walk = rng.uniform(2.2, 5.5)
    _backdrop(canvas, half, walk)
    for z, side, kind in sorted(_things(rng, half, walk), key=lambda thing: -thing[0]):
        kind(canvas, rng, z, side, half, walk)
    _develop(canvas)
    _void(canvas)
    return canvas.image, canvas.mask


def _things(rng: np.random.Generator, half: float, walk: float) -> list:
    """What stands in the street: (distance, side, painter)."""
    things = []
    for side in (-1, 1):
        z = 3.0
        while z < _FAR:  # house by house; a gap shows the sky or a garden
            length = rng.uniform(7, 18)
            things.append((z + length, side, _house if rng.random() < 0.8 else _garden))
            z += length
        things += [(z, side, _tree) for z in np.arange(rng.uniform(5, 14), 60, rng.uniform(9, 22))]
        things += [(z, side, _pole) for z in np.arange(rng.uniform(5, 16), 60, rng.uniform(11, 24))]
        things += [
            (z, side, _car) for z in np.arange(rng.uniform(6, 18), 50, rng.uniform(6.5, 18)) if rng.random() < 0.75
        ]
        things += [(float(rng.uniform(5, 28)), side, _person) for _ in range(rng.poisson(1.8))]
        things += [(float(rng.uniform(5, 24)), side, _cyclist) for _ in range(rng.poisson(0.8))]
    things += [(float(rng.uniform(11, 45)), float(rng.choice((-0.45, 0.45))), _car) for _ in range(rng.integers(0, 3))]
    return things


def _backdrop(canvas: _Canvas, half: float, walk: float) -> None:
    """Sky, far skyline, ground, road and sidewalks with their texture."""
    height, width, rng = canvas.height, canvas.width, canvas.rng
    top, low = canvas.sky
    share = np.clip(np.arange(height) / max(1.0, canvas.horizon), 0, 1)[:, None]
    canvas.image[:] = (top * (1 - share) + low * share)[:, None].astype(np.uint8)
    canvas.mask[:] = SKY
    clouds = np.clip(_field(rng, height, width, 5) - 0.1, 0, 1)[..., None] * rng.uniform(0, 1.2)
    canvas.image[:] = cv2.addWeighted(canvas.image, 1, (clouds * (250 - canvas.image)).astype(np.uint8), 0.9, 0)
    edge = 0.0
    while edge < width:  # a skyline behind everything
        step = rng.uniform(0.04, 0.14) * width
        rise = rng.uniform(0.01, 0.09) * height
        colour, label = (((110, 120, 128), BUILDING), ((84, 108, 72), VEGETATION))[int(rng.random() < 0.5)]
        box = [
            (edge, canvas.horizon + 1),
            (edge, canvas.horizon - rise),
            (edge + step, canvas.horizon - rise),
            (edge + step, canvas.horizon + 1),
        ]
        canvas.fill(box, canvas.colour(colour, 0.8 * _FAR), label)
        edge += step
    paving, asphalt = rng.uniform(120, 185), rng.uniform(62, 112)
    warm = rng.uniform(-8, 14)
    _stripes(canvas, (-80, 80), (paving + warm, paving, paving - warm), SIDEWALK)
    _stripes(canvas, (-half, half), (asphalt, asphalt, asphalt + 5), ROAD)
    for side in (-1, 1):  # kerb stones
        canvas.fill(
            [canvas.at(side * (half + a), 0, z) for a, z in ((0, 1.2), (0.18, 1.2), (0.18, _FAR), (0, _FAR))],
            canvas.colour((196, 194, 188), 8),
            SIDEWALK,
        )
    for z in np.arange(rng.uniform(2, 4), 40, 5.0):  # lane marks
        canvas.ground((-0.08, 0.08), (z, z + 2.4), canvas.colour((226, 226, 218), z), None)
    if rng.random() < 0.25:
        z = rng.uniform(7, 14)
        for x in np.arange(-half + 0.3, half - 0.5, 0.9):
            canvas.ground((x, x + 0.5), (z, z + 2.5), canvas.colour((224, 224, 220), z), None)
    grain = 1 + 0.10 * _field(rng, height, width, 24) + 0.07 * _field(rng, height, width, 4)
    rows = slice(int(canvas.horizon), height)
    canvas.image[rows] = np.clip(canvas.image[rows] * grain[rows, :, None], 0, 255).astype(np.uint8)


def _stripes(canvas: _Canvas, x: tuple[float, float], colour: tuple[float, ...], label: int) -> None:
    """A strip of ground to the horizon, in slices that pale with distance."""
    near = canvas.eye * canvas.focal / max(1.0, canvas.height - canvas.horizon) * 0.8
    steps = np.geomspace(near, 4 * _FAR, 14)
    for z, beyond in itertools.pairwise(steps):
        canvas.ground(x, (z, beyond), canvas.colour(colour, min(z, _FAR)), label)


def _house(canvas: _Canvas, rng: np.random.Generator, far: float, side: float, half: float, walk: float) -> None:
    """A facade along the street from ``far`` 8 to 18 m towards the camera, with rows of windows, and its far end wall."""
    near, x = max(2.5, far - rng.uniform(8, 18)), side * (half + walk + rng.uniform(0, 0.8))
    floors, floor = int(rng.integers(2, 6)), rng.uniform(2.8, 3.4)
    paint = np.array(_FACADES[rng.integers(len(_FACADES))]) + rng.uniform(-18, 18, 3)
    shade = 1.0 if side != canvas.sun else 0.72
    top, middle = floors * floor, (near + far) / 2
    canvas.upright((x, x + side * 14), (0, top), near, canvas.colour(tuple(paint), near, 0.86), BUILDING)
    canvas.wall(x, (0, top), (near, far), canvas.colour(tuple(paint), middle, shade), BUILDING)
    canvas.wall(x, (top - 0.35, top), (near, far), canvas.colour(tuple(paint), middle, shade * 0.7), None)
    if middle > 45:
        return
    glass = np.array((70, 84, 104)) * rng.uniform(0.6, 1.5)
    step = rng.uniform(2.2, 3.6)
    for level in range(floors):
        for z in np.arange(near + 0.7, far - 1.4, step):
            high = (level * floor + 0.9, level * floor + floor - 0.5)
            lamp = (236, 206, 140) if rng.random() < 0.08 else tuple(glass)
            canvas.wall(x, high, (z, z + step * 0.5), canvas.colour(lamp, z, shade), None)


def _garden(canvas: _Canvas, rng: np.random.Generator, far: float, side: float, half: float, walk: float) -> None:
    """A hedge along the sidewalk."""
    near, x = max(2.5, far - rng.uniform(6, 14)), side * (half + walk + 0.3)
    tall = rng.uniform(1.0, 2.6)
    green = np.array((66, 104, 46)) * rng.uniform(0.7, 1.25)
    canvas.wall(x, (0, tall), (near, far), canvas.colour(tuple(green), (near + far) / 2), VEGETATION)
    for z in np.linspace(far, near, 7):
        _leaves(canvas, rng, canvas.at(x, tall * 0.8, z), canvas.focal * 0.55 / z, green, z, 1)


def _tree(canvas: _Canvas, rng: np.random.Generator, z: float, side: float, half: float, walk: float) -> None:
    x = side * (half + walk * rng.uniform(0.35, 0.9))
    tall, crown = rng.uniform(3.6, 7.5), rng.uniform(0.9, 1.9)
    canvas.shadow((x - crown, x + crown), (z, z + 1.5))
    trunk = canvas.focal * 0.22 / z
    canvas.line(canvas.at(x, 0, z), canvas.at(x, tall, z), trunk, canvas.colour((84, 66, 50), z), VEGETATION)
    green = np.array((70, 112, 44)) * rng.uniform(0.65, 1.3) * rng.uniform(0.88, 1.12, 3)
    for _ in range(6):
        spot = canvas.at(x + rng.normal(0, 0.45) * crown, tall + rng.normal(0, 0.45) * crown, z)
        _leaves(canvas, rng, spot, canvas.focal * crown * rng.uniform(0.5, 0.8) / z, green, z, 1)


def _leaves(
    canvas: _Canvas,
    rng: np.random.Generator,
    spot: tuple[float, float],
    radius: float,
    green: np.ndarray,
    z: float,
    tone: float,
) -> None:
    """A clump: one disc that is vegetation, and spots of light and shade on it."""
    canvas.disc(spot, (radius, radius * 0.85), canvas.colour(tuple(green), z, tone), VEGETATION)
    if radius < 3:
        return
    for dx, dy, shade in rng.uniform((-0.6, -0.6, 0.6), (0.6, 0.6, 1.35), (4, 3)):
        size = radius * 0.26
        canvas.disc(
            (spot[0] + dx * radius, spot[1] + dy * radius), (size, size), canvas.colour(tuple(green), z, shade), None
        )


def _pole(canvas: _Canvas, rng: np.random.Generator, z: float, side: float, half: float, walk: float) -> None:
    """A lamp post, or a post with one or two traffic signs."""
    x, grey = side * (half + rng.uniform(0.3, 0.8)), (118, 120, 122)
    sign = rng.random() < 0.62
    tall = rng.uniform(2.5, 3.6) if sign else rng.uniform(4.5, 7)
    canvas.line(canvas.at(x, 0, z), canvas.at(x, tall, z), canvas.focal * 0.13 / z, canvas.colour(grey, z, 0.8), POLE)
    if not sign:
        arm = canvas.at(x - side * 1.2, tall, z)
        canvas.line(canvas.at(x, tall, z), arm, canvas.focal * 0.12 / z, canvas.colour(grey, z, 0.8), POLE)
        return
    for level in range(int(rng.integers(1, 3))):
        centre, radius = canvas.at(x, tall - 0.3 - 0.8 * level, z), canvas.focal * 0.38 / z
        kind = rng.integers(3)
        if kind == 0:  # a ban: red rim, white field
            canvas.disc(centre, (radius, radius), canvas.colour((206, 28, 34), z), SIGN)
            canvas.disc(centre, (radius * 0.65, radius * 0.65), canvas.colour((238, 238, 236), z), None)
        elif kind == 1:  # a warning
            for scale, paint, label in ((1.15, (206, 28, 34), SIGN), (0.65, (240, 236, 220), None)):
                reach = radius * scale
                corners = [(0, -reach), (reach, reach * 0.75), (-reach, reach * 0.75)]
                canvas.fill([(centre[0] + a, centre[1] + b) for a, b in corners], canvas.colour(paint, z), label)
        else:  # a direction
            box = [(centre[0] + a * radius, centre[1] + b * radius) for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
            canvas.fill(box, canvas.colour((28, 82, 180), z), SIGN)
            bar = [
                (centre[0] + a * radius, centre[1] + b * radius)
                for a, b in ((-0.2, -0.7), (0.2, -0.7), (0.2, 0.7), (-0.2, 0.7))
            ]
            canvas.fill(bar, canvas.colour((236, 238, 240), z), None)


def _car(canvas: _Canvas, rng: np.random.Generator, z: float, side: float, half: float, walk: float) -> None:
    """Parked at the kerb (side -1 or 1) or driving (a share of the road's half width); its far end is 3.6 to 4.6 m behind ``z``."""
    wide, tall, long = rng.uniform(1.6, 1.9), rng.uniform(1.35, 1.75), rng.uniform(3.6, 4.6)
    x = side * (half - wide / 2 - 0.1) if abs(side) == 1 else side * half
    paint = np.array(_PAINTS[rng.integers(len(_PAINTS))]) * rng.uniform(0.8, 1.15)
    near, far, left, right = z, z + long, x - wide / 2, x + wide / 2
    canvas.shadow((left - 0.2, right + 0.2), (near, far))
    facing = right if x < canvas.lateral else left  # the flank that the camera sees
    flank = canvas.colour(tuple(paint), z, 0.7)
    cabin = (near + 0.7, far - 0.5)
    canvas.wall(facing, (0.25, tall * 0.62), (near, far), flank, CAR)
    canvas.fill(
        [
            canvas.at(facing, a, b)
            for a, b in ((tall * 0.6, near + 0.2), (tall, cabin[0] + 0.5), (tall, cabin[1] - 0.5), (tall * 0.6, far))
        ],
        canvas.colour((40, 48, 60), z),
        CAR,
    )
    tyre = canvas.colour((22, 22, 24), z)
    for wheel in (near + 0.7, far - 0.8):
        canvas.disc(
            canvas.at(facing, 0.32, wheel), (canvas.focal * 0.13 / wheel, canvas.focal * 0.32 / wheel), tyre, CAR
        )
    body = canvas.colour(tuple(paint), z)
    for edge in (left + 0.12, right - 0.32):
        canvas.upright((edge, edge + 0.2), (0, 0.4), near, tyre, CAR)
    canvas.upright((left, right), (0.25, tall * 0.65), near, body, CAR)
    inner = wide * 0.1
    roof = [(left + 0.02, tall * 0.63), (right - 0.02, tall * 0.63), (right - inner, tall), (left + inner, tall)]
    canvas.fill([canvas.at(a, b, near + 0.15) for a, b in roof], canvas.colour(tuple(paint), z, 0.9), CAR)
    glass = [
        (left + 0.14, tall * 0.66),
        (right - 0.14, tall * 0.66),
        (right - inner - 0.1, tall * 0.95),
        (left + inner + 0.1, tall * 0.95),
    ]
    canvas.fill([canvas.at(a, b, near + 0.15) for a, b in glass], canvas.colour((54, 66, 82), z), None)
    lamp = (196, 28, 26) if x > 0 else (240, 232, 200)
    for edge in (left + 0.08, right - 0.36):
        canvas.upright((edge, edge + 0.28), (tall * 0.42, tall * 0.54), near, canvas.colour(lamp, z), None)
    middle = (left + right) / 2
    canvas.upright(
        (middle - 0.26, middle + 0.26), (tall * 0.30, tall * 0.39), near, canvas.colour((230, 228, 214), z), None
    )


def _person(canvas: _Canvas, rng: np.random.Generator, z: float, side: float, half: float, walk: float) -> None:
    crossing = rng.random() < 0.15
    x = rng.uniform(-half, half) if crossing else side * (half + walk * rng.uniform(0.15, 0.9))
    _figure(canvas, rng, x, 0.0, rng.uniform(1.5, 1.9), z, PERSON, rng.uniform(0.05, 0.24))


def _figure(
    canvas: _Canvas, rng: np.random.Generator, x: float, foot: float, tall: float, z: float, label: int, stride: float
) -> None:
    """Legs, trunk, arms and head."""
    metre = canvas.focal / z
    coat, trousers = (_CLOTHES[i] for i in rng.integers(len(_CLOTHES), size=2))
    skin = np.array((222, 178, 148)) * rng.uniform(0.45, 1.05)
    if not foot:
        canvas.shadow((x - 0.3, x + 0.3), (z, z + 0.6))
    hip, neck = foot + 0.48 * (tall - foot), foot + 0.84 * (tall - foot)
    for sign in (-1, 1):
        canvas.line(
            canvas.at(x + sign * stride, foot, z),
            canvas.at(x, hip, z),
            0.17 * metre,
            canvas.colour(trousers, z, 0.8),
            label,
        )
        canvas.line(
            canvas.at(x + sign * 0.25, neck, z),
            canvas.at(x + sign * 0.3, hip, z),
            0.11 * metre,
            canvas.colour(coat, z, 0.75),
            label,
        )
    trunk = [(x - 0.2, hip - 0.05), (x + 0.2, hip - 0.05), (x + 0.26, neck), (x - 0.26, neck)]
    canvas.fill([canvas.at(a, b, z) for a, b in trunk], canvas.colour(coat, z), label)
    canvas.disc(canvas.at(x, tall - 0.12, z), (0.11 * metre, 0.14 * metre), canvas.colour(tuple(skin), z), label)


def _cyclist(canvas: _Canvas, rng: np.random.Generator, z: float, side: float, half: float, walk: float) -> None:
    """A bicycle seen from the side, leaning at a wall or ridden; the rider is a person."""
    ridden = rng.random() < 0.6
    x = side * half * rng.uniform(0.3, 0.9) if ridden else side * (half + walk * rng.uniform(0.5, 0.95))
    metre, ink = canvas.focal / z, canvas.colour(_PAINTS[rng.integers(len(_PAINTS))], z, 0.8)
    tyre = canvas.colour((26, 26, 28), z)
    canvas.shadow((x - 0.8, x + 0.8), (z, z + 0.5))
    for sign in (-1, 1):
        hub = canvas.at(x + sign * 0.52, 0.34, z)
        outer, rim = 0.34 * metre, max(1.4, 0.07 * metre)
        canvas.disc(hub, (outer, outer), tyre, BICYCLE)
        hole = outer - rim
        if hole > 1.5:  # one sees through the spokes, but a mask calls them bicycle
            canvas.disc(hub, (hole, hole), canvas.colour((112, 112, 114), z), None)
    for start, end in _FRAME:
        low, high = canvas.at(x + start[0], start[1], z), canvas.at(x + end[0], end[1], z)
        canvas.line(low, high, 0.07 * metre, ink, BICYCLE)
    if ridden:
        _figure(canvas, rng, x - 0.05, 0.42, rng.uniform(1.6, 1.9), z - 0.05, PERSON, 0.14)


def _field(rng: np.random.Generator, height: int, width: int, cells: int) -> np.ndarray:
    """Smooth noise, float32 (H, W), about -1 to 1, with ``cells`` bumps down the picture."""
    across = max(2, round(cells * width / height))
    coarse = rng.uniform(-1, 1, (max(2, cells), across)).astype(np.float32)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def _develop(canvas: _Canvas) -> None:
    """Lens and sensor: texture, a touch of blur, exposure, grain."""
    rng, image = canvas.rng, canvas.image
    height, width = canvas.mask.shape
    texture = 1 + 0.06 * _field(rng, height, width, min(64, height // 2)) + 0.09 * _field(rng, height, width, 2)
    picture = image * (texture * np.float32(rng.uniform(0.82, 1.14)))[..., None]
    if rng.random() < 0.7:
        picture = cv2.GaussianBlur(picture, (0, 0), rng.uniform(0.3, 0.8) * max(1.0, height / 288))
    picture += rng.standard_normal((height, width, 1), np.float32) * np.float32(rng.uniform(1.5, 6))
    picture += rng.standard_normal((height, width, 3), np.float32) * np.float32(rng.uniform(0.5, 2.5))
    canvas.image = np.clip(picture, 0, 255).astype(np.uint8)


def _void(canvas: _Canvas) -> None:
    """Annotators leave a band along some borders, and the car's own bonnet, unlabelled."""
    rng, mask = canvas.rng, canvas.mask
    height, width = mask.shape
    edge = cv2.morphologyEx(mask, cv2.MORPH_GRADIENT, np.ones((2, 2), np.uint8)) > 0
    unsure = _field(rng, height, width, 4) > rng.uniform(0.0, 0.8)
    mask[edge & unsure] = VOID
    if rng.random() < 0.35:
        low = height * rng.uniform(0.93, 0.98)
        points = np.array(
            [(0, height), (0.1 * width, low), (0.5 * width, low - 0.02 * height), (0.9 * width, low), (width, height)]
        )
        cv2.fillPoly(
            canvas.image, [points.astype(np.int32)], tuple(int(v) for v in rng.uniform(15, 70, 3)), cv2.LINE_AA
        )
        cv2.fillPoly(canvas.mask, [points.astype(np.int32)], VOID)
