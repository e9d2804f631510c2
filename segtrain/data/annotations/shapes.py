"""Shapes that people draw on images, and what an annotation file says about one image."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

# The class of shapes in a file that names no class.
UNNAMED = ""
# How the pixels of an image are counted.
Order = Literal["columns", "rows"]
Points = Sequence[Sequence[float]]
_FAR = 1_000_000


@dataclass(frozen=True)
class Shape:
    """An area of one class.

    name: the class, as written in the file. polygons: rings of (x, y) in pixels, whose areas are
    united; (0, 0) is the upper left corner of the image, and pixel (c, r) covers [c, c + 1) x
    [r, r + 1). holes: rings that are cut out of the polygons. pixels: in place of polygons, what
    ``encoded`` returns, or {"file": path} of a mask of two values, or with "segments" also the
    ids of its segments. at: x and y of the upper left pixel of ``pixels``. rank: shapes of a higher
    rank are drawn later; those of equal rank in the order of the file. relative: the points are
    fractions of the width and height of the image. runs: in place of polygons, int64 (n, 2), the
    first pixel of each run, and the one after the last; pixels count down the columns or along the
    rows of the image, by ``order``.
    """

    name: str
    polygons: tuple[np.ndarray, ...] = ()
    holes: tuple[np.ndarray, ...] = ()
    pixels: dict[str, Any] | None = None
    at: tuple[int, int] = (0, 0)
    rank: int = 0
    relative: bool = False
    runs: np.ndarray | None = None
    order: Order = "columns"


@dataclass(frozen=True)
class Annotated:
    """The annotation of one image.

    image: its path or name, as written in the file. file: the annotation file. size: (height,
    width) that the file gives. upright: whether the points belong to the image as its EXIF rotation
    shows it; None: ``size`` decides. left_out: what was not drawn -> how often, such as "line".
    """

    image: str
    file: str
    shapes: tuple[Shape, ...] = ()
    size: tuple[int, int] | None = None
    upright: bool | None = None
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Annotations:
    """The annotations of a split.

    images: one for each annotated image. An image that is missing here has no annotation, which
    differs from an image without shapes. classes: class name -> its number in the file, or another
    key by which the classes are sorted. background: the name of the class of the pixels in no
    shape, if the file has one.
    """

    images: tuple[Annotated, ...]
    classes: dict[str, Any]
    background: str | None = None
    notes: tuple[str, ...] = ()


def ring(points: Points) -> np.ndarray:
    """float64 (n, 2) of x and y. Raises ValueError for anything else, and for points that no image
    has: the time and memory to draw a line grow with its length.
    """
    array = np.array(points, np.float64)
    if array.size and (array.ndim != 2 or array.shape[1] != 2):
        raise ValueError("points are not pairs of x and y")
    if not (np.abs(array) <= _FAR).all():
        raise ValueError(f"points are not finite, or more than {_FAR:,} pixels away")
    return array.reshape(-1, 2)


def encoded(pixels: np.ndarray) -> dict[str, Any]:
    """Pixels, bool (h, w), as run lengths of pycocotools: masks of all images fit in memory."""
    from pycocotools import mask as rle

    runs = rle.encode(np.asfortranarray(pixels, np.uint8))
    return {"size": runs["size"], "counts": runs["counts"].decode()}


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    degrees: float = 0.0,
    about: tuple[float, float] | None = None,
) -> np.ndarray:
    """The ring of a rectangle, rotated clockwise on the screen about a point, or its center."""
    corners = np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]])
    return _rotated(corners, about or (x + width / 2, y + height / 2), degrees)


def ellipse(
    center: tuple[float, float], radii: tuple[float, float], degrees: float = 0.0
) -> np.ndarray:
    """The ring of an ellipse: 360 points, rotated clockwise on the screen."""
    turns = np.linspace(0, 2 * np.pi, 360, endpoint=False)
    points = np.array(center) + np.stack([np.cos(turns), np.sin(turns)], 1) * np.array(radii)
    return _rotated(points, center, degrees)


def _rotated(points: np.ndarray, center: tuple[float, float], degrees: float) -> np.ndarray:
    if not degrees:
        return points.astype(np.float64)
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return (points - center) @ np.array([[cos, sin], [-sin, cos]]) + center


def to_text(image: Annotated) -> str:
    """What ``draw`` needs of an image, as JSON: the shapes in the order of drawing."""
    rows = []
    for shape in sorted(image.shapes, key=lambda shape: shape.rank):
        row: dict[str, Any] = {"name": shape.name}
        if shape.runs is not None:
            row |= {"runs": shape.runs.tolist(), "order": shape.order}
        elif shape.pixels is None:
            row["polygons"] = [points.ravel().tolist() for points in shape.polygons]
            row["holes"] = [points.ravel().tolist() for points in shape.holes]
            row["relative"] = shape.relative
        else:
            row |= {"pixels": shape.pixels, "at": shape.at}
        rows.append(row)
    return json.dumps({"size": image.size, "upright": image.upright, "shapes": rows})
