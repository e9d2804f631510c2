"""Places the objects of a generated street and paints them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from segtrain.data.scenes.canvas import (
    BICYCLE,
    BUILDING,
    CAR,
    FAR,
    PERSON,
    POLE,
    SIGN,
    VEGETATION,
    Canvas,
    Point,
)

_FACADES = (
    (168, 120, 98),
    (186, 170, 146),
    (150, 146, 142),
    (132, 92, 80),
    (200, 186, 160),
    (120, 126, 138),
)
_PAINTS = (
    (170, 30, 34),
    (34, 62, 140),
    (210, 210, 214),
    (30, 32, 36),
    (120, 126, 132),
    (36, 110, 76),
    (206, 160, 40),
)
_CLOTHES = (
    (40, 44, 60),
    (150, 40, 44),
    (60, 90, 140),
    (200, 190, 170),
    (70, 110, 70),
    (210, 120, 40),
    (90, 60, 110),
)
_FRAME = (  # of a bicycle: bars from (x, y) to (x, y) in meters
    ((-0.52, 0.34), (-0.15, 0.85)),
    ((-0.15, 0.85), (0.4, 0.85)),
    ((0.4, 0.95), (0.52, 0.34)),
    ((0.0, 0.34), (0.4, 0.85)),
    ((0.3, 1.02), (0.5, 1.02)),
)
Painter = Callable[[Canvas, float, float], None]  # canvas, distance, side (-1 left, 1 right)


def things(rng: np.random.Generator) -> list[tuple[float, float, Painter]]:
    """The objects in the street, in no particular order: (distance in meters, side, painter)."""
    found: list[tuple[float, float, Painter]] = []
    for side in (-1, 1):
        z = 3.0
        while z < FAR:  # house by house; a gap shows the sky or a garden
            z += rng.uniform(7, 18)
            found.append((z, side, _house if rng.random() < 0.8 else _garden))
        found += [(z, side, _tree) for z in np.arange(rng.uniform(5, 14), 60, rng.uniform(9, 22))]
        found += [(z, side, _pole) for z in np.arange(rng.uniform(5, 16), 60, rng.uniform(11, 24))]
        parked = np.arange(rng.uniform(6, 18), 50, rng.uniform(6.5, 18))
        found += [(z, side, _car) for z in parked if rng.random() < 0.75]
        found += [(float(rng.uniform(5, 28)), side, _person) for _ in range(rng.poisson(1.8))]
        found += [(float(rng.uniform(5, 24)), side, _cyclist) for _ in range(rng.poisson(0.8))]
    found += [
        (float(rng.uniform(11, 45)), float(rng.choice((-0.45, 0.45))), _car)
        for _ in range(rng.integers(0, 3))
    ]
    return found


def _around(center: Point, size: float, corners: tuple[Point, ...]) -> list[Point]:
    return [(center[0] + a * size, center[1] + b * size) for a, b in corners]


def _house(canvas: Canvas, far: float, side: float) -> None:
    """A house with an end wall and a windowed facade. The facade reaches from ``far`` 8 to 18 m
    toward the camera.
    """
    rng = canvas.rng
    near, x = (
        max(2.5, far - rng.uniform(8, 18)),
        side * (canvas.half + canvas.walk + rng.uniform(0, 0.8)),
    )
    floors, floor = int(rng.integers(2, 6)), rng.uniform(2.8, 3.4)
    paint = np.array(_FACADES[rng.integers(len(_FACADES))]) + rng.uniform(-18, 18, 3)
    shade = 1.0 if side != canvas.sun else 0.72
    top, middle = floors * floor, (near + far) / 2
    canvas.upright((x, x + side * 14), (0, top), near, canvas.color(paint, near, 0.86), BUILDING)
    canvas.wall(x, (0, top), (near, far), canvas.color(paint, middle, shade), BUILDING)
    canvas.wall(x, (top - 0.35, top), (near, far), canvas.color(paint, middle, shade * 0.7))
    glass = np.array((70, 84, 104)) * rng.uniform(0.6, 1.5)
    step = rng.uniform(2.2, 3.6)
    starts = np.arange(near + 0.7, far - 1.4, step)
    lit = rng.random((floors, len(starts))) < 0.08
    if canvas.focal / middle < 3.5:  # pixels per meter: windows would be too small to see
        return
    for level, row in enumerate(lit):
        for z, lamp in zip(starts, row):
            heights = (level * floor + 0.9, level * floor + floor - 0.5)
            canvas.wall(
                x,
                heights,
                (z, z + step * 0.5),
                canvas.color((236, 206, 140) if lamp else glass, z, shade),
            )


def _garden(canvas: Canvas, far: float, side: float) -> None:
    """A hedge along the sidewalk."""
    rng = canvas.rng
    near, x = max(2.5, far - rng.uniform(6, 14)), side * (canvas.half + canvas.walk + 0.3)
    tall = rng.uniform(1.0, 2.6)
    green = np.array((66, 104, 46)) * rng.uniform(0.7, 1.25)
    canvas.wall(x, (0, tall), (near, far), canvas.color(green, (near + far) / 2), VEGETATION)
    for z in np.linspace(far, near, 7):
        _leaves(canvas, canvas.at(x, tall * 0.8, z), canvas.focal * 0.55 / z, green, z)


def _tree(canvas: Canvas, z: float, side: float) -> None:
    rng = canvas.rng
    x = side * (canvas.half + canvas.walk * rng.uniform(0.35, 0.9))
    tall, crown = rng.uniform(3.6, 7.5), rng.uniform(0.9, 1.9)
    canvas.shadow((x - crown, x + crown), (z, z + 1.5))
    trunk = canvas.focal * 0.22 / z
    canvas.line(
        canvas.at(x, 0, z), canvas.at(x, tall, z), trunk, canvas.color((84, 66, 50), z), VEGETATION
    )
    green = np.array((70, 112, 44)) * rng.uniform(0.65, 1.3) * rng.uniform(0.88, 1.12, 3)
    for _ in range(6):
        spot = canvas.at(x + rng.normal(0, 0.45) * crown, tall + rng.normal(0, 0.45) * crown, z)
        _leaves(canvas, spot, canvas.focal * crown * rng.uniform(0.5, 0.8) / z, green, z)


def _leaves(canvas: Canvas, spot: Point, radius: float, green: np.ndarray, z: float) -> None:
    """A clump of leaves: one disc labeled as vegetation, with lighter and darker spots."""
    canvas.disc(spot, (radius, radius * 0.85), canvas.color(green, z), VEGETATION)
    spots = canvas.rng.uniform((-0.6, -0.6, 0.6), (0.6, 0.6, 1.35), (4, 3)).tolist()
    if radius < 5:  # only after the random draw, so that the street is the same at any image size
        return
    for dx, dy, shade in spots:
        center = spot[0] + dx * radius, spot[1] + dy * radius
        canvas.disc(center, (radius * 0.26, radius * 0.26), canvas.color(green, z, shade))


def _pole(canvas: Canvas, z: float, side: float) -> None:
    """A lamp post, or a post with one or two traffic signs."""
    rng = canvas.rng
    x, gray = side * (canvas.half + rng.uniform(0.3, 0.8)), canvas.color((118, 120, 122), z, 0.8)
    sign = rng.random() < 0.62
    tall = rng.uniform(2.5, 3.6) if sign else rng.uniform(4.5, 7)
    canvas.line(canvas.at(x, 0, z), canvas.at(x, tall, z), canvas.focal * 0.13 / z, gray, POLE)
    if not sign:
        arm = canvas.at(x - side * 1.2, tall, z)
        canvas.line(canvas.at(x, tall, z), arm, canvas.focal * 0.12 / z, gray, POLE)
        return
    for level in range(int(rng.integers(1, 3))):
        center, radius = canvas.at(x, tall - 0.3 - 0.8 * level, z), canvas.focal * 0.38 / z
        kind = rng.integers(3)
        if kind == 0:  # a prohibition: red rim, white center
            canvas.disc(center, (radius, radius), canvas.color((206, 28, 34), z), SIGN)
            canvas.disc(center, (radius * 0.65, radius * 0.65), canvas.color((238, 238, 236), z))
        elif kind == 1:  # a warning sign: red triangle, white center
            for scale, paint, label in ((1.15, (206, 28, 34), SIGN), (0.65, (240, 236, 220), None)):
                corners = _around(center, radius * scale, ((0, -1), (1, 0.75), (-1, 0.75)))
                canvas.fill(corners, canvas.color(paint, z), label)
        else:  # a direction sign: blue square, white bar
            box = _around(center, radius, ((-1, -1), (1, -1), (1, 1), (-1, 1)))
            canvas.fill(box, canvas.color((28, 82, 180), z), SIGN)
            bar = _around(center, radius, ((-0.2, -0.7), (0.2, -0.7), (0.2, 0.7), (-0.2, 0.7)))
            canvas.fill(bar, canvas.color((236, 238, 240), z))


def _car(canvas: Canvas, z: float, side: float) -> None:
    """A car that is parked at the curb (``side`` -1 or 1) or drives at ``side`` times half the
    road's width.
    """
    rng = canvas.rng
    wide, tall, long = rng.uniform(1.6, 1.9), rng.uniform(1.35, 1.75), rng.uniform(3.6, 4.6)
    x = side * (canvas.half - wide / 2 - 0.1) if abs(side) == 1 else side * canvas.half
    paint = np.array(_PAINTS[rng.integers(len(_PAINTS))]) * rng.uniform(0.8, 1.15)
    near, far, left, right = z, z + long, x - wide / 2, x + wide / 2
    canvas.shadow((left - 0.2, right + 0.2), (near, far))
    facing = right if x < canvas.lateral else left  # the flank that the camera sees
    canvas.wall(facing, (0.25, tall * 0.62), (near, far), canvas.color(paint, z, 0.7), CAR)
    low, high = tall * 0.6, tall
    windows = ((low, near + 0.2), (high, near + 0.7 + 0.5), (high, far - 0.5 - 0.5), (low, far))
    canvas.fill([canvas.at(facing, a, b) for a, b in windows], canvas.color((40, 48, 60), z), CAR)
    tire = canvas.color((22, 22, 24), z)
    for wheel in (near + 0.7, far - 0.8):
        axes = canvas.focal * 0.13 / wheel, canvas.focal * 0.32 / wheel
        canvas.disc(canvas.at(facing, 0.32, wheel), axes, tire, CAR)
    for edge in (left + 0.12, right - 0.32):
        canvas.upright((edge, edge + 0.2), (0, 0.4), near, tire, CAR)
    canvas.upright((left, right), (0.25, tall * 0.65), near, canvas.color(paint, z), CAR)
    inner = wide * 0.1
    for inset, top, bottom, color, label in (
        (0.02, tall, tall * 0.63, canvas.color(paint, z, 0.9), CAR),
        (0.14, tall * 0.95, tall * 0.66, canvas.color((54, 66, 82), z), None),
    ):
        slope = inner if label else inner + 0.1
        corners = (
            (left + inset, bottom),
            (right - inset, bottom),
            (right - slope, top),
            (left + slope, top),
        )
        canvas.fill([canvas.at(a, b, near + 0.15) for a, b in corners], color, label)
    lamp = canvas.color((196, 28, 26) if x > 0 else (240, 232, 200), z)
    for edge in (left + 0.08, right - 0.36):
        canvas.upright((edge, edge + 0.28), (tall * 0.42, tall * 0.54), near, lamp)
    middle, plate = (left + right) / 2, canvas.color((230, 228, 214), z)
    canvas.upright((middle - 0.26, middle + 0.26), (tall * 0.30, tall * 0.39), near, plate)


def _person(canvas: Canvas, z: float, side: float) -> None:
    rng = canvas.rng
    crossing = rng.random() < 0.15
    x = (
        rng.uniform(-canvas.half, canvas.half)
        if crossing
        else _on_sidewalk(canvas, side, 0.15, 0.9)
    )
    _figure(canvas, x, 0.0, rng.uniform(1.5, 1.9), z, rng.uniform(0.05, 0.24))


def _on_sidewalk(canvas: Canvas, side: float, least: float, most: float) -> float:
    return side * (canvas.half + canvas.walk * canvas.rng.uniform(least, most))


def _figure(canvas: Canvas, x: float, foot: float, tall: float, z: float, stride: float) -> None:
    """Legs, trunk, arms, and head of a person."""
    rng, meter = canvas.rng, canvas.focal / z
    coat, trousers = (_CLOTHES[i] for i in rng.integers(len(_CLOTHES), size=2))
    skin = np.array((222, 178, 148)) * rng.uniform(0.45, 1.05)
    if not foot:
        canvas.shadow((x - 0.3, x + 0.3), (z, z + 0.6))
    hip, neck = foot + 0.48 * (tall - foot), foot + 0.84 * (tall - foot)
    leg, arm = canvas.color(trousers, z, 0.8), canvas.color(coat, z, 0.75)
    for sign in (-1, 1):
        canvas.line(
            canvas.at(x + sign * stride, foot, z), canvas.at(x, hip, z), 0.17 * meter, leg, PERSON
        )
        hand = canvas.at(x + sign * 0.3, hip, z)
        canvas.line(canvas.at(x + sign * 0.25, neck, z), hand, 0.11 * meter, arm, PERSON)
    trunk = ((x - 0.2, hip - 0.05), (x + 0.2, hip - 0.05), (x + 0.26, neck), (x - 0.26, neck))
    canvas.fill([canvas.at(a, b, z) for a, b in trunk], canvas.color(coat, z), PERSON)
    canvas.disc(
        canvas.at(x, tall - 0.12, z), (0.11 * meter, 0.14 * meter), canvas.color(skin, z), PERSON
    )


def _cyclist(canvas: Canvas, z: float, side: float) -> None:
    """A bicycle seen from the side, parked on the sidewalk or ridden; the rider is labeled as a
    person.
    """
    rng = canvas.rng
    ridden = rng.random() < 0.6
    x = (
        side * canvas.half * rng.uniform(0.3, 0.9)
        if ridden
        else _on_sidewalk(canvas, side, 0.5, 0.95)
    )
    meter, ink = canvas.focal / z, canvas.color(_PAINTS[rng.integers(len(_PAINTS))], z, 0.8)
    canvas.shadow((x - 0.8, x + 0.8), (z, z + 0.5))
    for sign in (-1, 1):
        hub, outer = canvas.at(x + sign * 0.52, 0.34, z), 0.34 * meter
        canvas.disc(hub, (outer, outer), canvas.color((26, 26, 28), z), BICYCLE)
        hole = outer - max(1.4, 0.07 * meter)
        if hole > 1.5:  # the wheel is see-through, but the mask labels all of it as bicycle
            canvas.disc(hub, (hole, hole), canvas.color((112, 112, 114), z))
    for start, end in _FRAME:
        low, high = canvas.at(x + start[0], start[1], z), canvas.at(x + end[0], end[1], z)
        canvas.line(low, high, 0.07 * meter, ink, BICYCLE)
    if ridden:
        _figure(canvas, x - 0.05, 0.42, rng.uniform(1.6, 1.9), z - 0.05, 0.14)
