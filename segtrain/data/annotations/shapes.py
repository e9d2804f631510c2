"""Shapes that people draw on images, and what an annotation file says about one image."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Union

import numpy as np

from segtrain.data.pixels.header import MAX_PIXELS

# The class of shapes in a file that names no class.
UNNAMED = ""
# How the pixels of an image are counted.
Order = Literal["columns", "rows"]
# x and y.
Pair = Union[Sequence[float], np.ndarray]
Size = tuple[int, int]  # height and width of an image in pixels
_FAR = 1_000_000
# Kinds of lines, which are areas if their ends meet: if they are at most so far apart, in pixels or
# as a share of the line's extent.
LINES = ("line", "polyline", "linestrip")
_MEET, _NEAR = 2, 0.1


class Shape(NamedTuple):
    """An area of one class.

    name: the class, as written in the file. area: one of
    - "polygons": rings of (x, y) in pixels, x0, y0, x1, y1, ..., whose areas are united; (0, 0) is
      the upper left corner of the image, and pixel (c, r) covers [c, c + 1) x [r, r + 1). "holes":
      rings that are cut out. "relative": the points are fractions of the width and height;
      "line": it is the outline that a line draws;
    - "pixels": run lengths of pycocotools (masks of all images fit in memory), or {"file": path} of
      a mask of two values, or with "segments" also the ids of its segments. "at": x and y of their
      upper left pixel;
    - "runs": as in ``unpacked``. "order": how the pixels count, down the columns or along the rows
      of the image.
    """

    name: str
    area: dict[str, Any]


@dataclass(frozen=True)
class Annotated:
    """The annotation of one image.

    image: its path or name, as written in the file. file: the annotation file. parts: its shapes,
    in the order of drawing, and what is not drawn, such as "line". size: (height, width) that the
    file gives. upright: whether the points belong to the image as its EXIF rotation shows it; None:
    ``size`` decides.
    """

    image: str
    file: str
    parts: Sequence[Shape | str] = ()
    size: Size | None = None
    upright: bool | None = None

    @cached_property
    def shapes(self) -> list[Shape]:
        return [part for part in self.parts if isinstance(part, Shape)]


@dataclass(frozen=True)
class Annotations:
    """The annotations of a split.

    images: one for each annotated image. An image that is missing here has no annotation, which
    differs from an image without shapes. classes: class name -> its number in the file, or another
    key by which the classes are sorted; others, with shapes only, come last.
    """

    images: Sequence[Annotated]
    classes: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> Counter[str]:
        """How many shapes each class has."""
        return Counter(shape.name for image in self.images for shape in image.shapes)


def ring(points: Any) -> np.ndarray:
    """float64 (n, 2) of x and y. Raises ValueError for anything else, and for points that no image
    has: the time and memory to draw a line grow with its length.
    """
    array = np.array(points, np.float64)
    if array.size and (array.ndim != 2 or array.shape[1] != 2):
        raise ValueError("points are not pairs of x and y")
    if not (np.abs(array) <= _FAR).all():
        raise ValueError(f"points are not finite, or more than {_FAR:,} pixels away")
    return array.reshape(-1, 2)


def unpacked(runs: Sequence[int], size: Size) -> np.ndarray:
    """The pixels of run lengths along the rows, bool (h, w). The first run is of pixels that are
    not set, and the last one of such pixels may be missing. Raises ValueError.
    """
    area, length = size[0] * size[1], sum(runs)
    if min(runs) < 0 or length > area or area > MAX_PIXELS or (length < area and len(runs) % 2):
        raise ValueError(f"run lengths of {length:,} pixels in a mask of {size[0]} x {size[1]}")
    lengths = [*runs, area - length]
    return np.repeat(np.arange(len(lengths)) % 2 == 1, lengths).reshape(size)


def box(begin: Pair, end: Pair) -> np.ndarray:
    """The ring of a rectangle from its upper left to its lower right corner."""
    (left, top), (right, bottom) = begin, end
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])


def ellipse(center: Pair, radii: Pair, degrees: float = 0) -> np.ndarray:
    """The ring of an ellipse, which may be rotated as in ``rotated``: 360 points."""
    turns = np.linspace(0, 2 * np.pi, 360, endpoint=False)
    ring = np.array(center) + np.stack([np.cos(turns), np.sin(turns)], 1) * np.array(radii)
    return rotated(ring, center, degrees)


def rotated(points: np.ndarray, center: Pair, degrees: float) -> np.ndarray:
    """Points that are rotated clockwise on the screen."""
    if not degrees:
        return points
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return (points - center) @ np.array([[cos, sin], [-sin, cos]]) + center


def polygon(
    name: str,
    rings: Iterable[Any],
    holes: Iterable[Any] = (),
    kind: str = "polygon",
    relative: bool = False,
) -> Shape | str:
    """A shape of polygons; what it is instead, if no ring has three points, or if it is a line, by
    its ``kind``, whose ends do not meet.
    """
    area, cut = (
        [points.ravel() for points in map(ring, some) if len(points) >= 3]
        for some in (rings, holes)
    )
    if kind in LINES and not any(map(_is_outline, area)):
        return kind
    if not area:
        return "polygon of fewer than 3 points"
    line = {"line": True} if kind in LINES else {}
    return Shape(name, {"polygons": area, "holes": cut, "relative": relative, **line})


def _is_outline(line: np.ndarray) -> bool:
    """Whether the ends of a line, x0, y0, x1, y1, ..., meet. In public sets, the ends of outlines
    are apart by less than a tenth of their extent, and those of other lines by most of it.
    """
    near = max(_MEET, _NEAR * math.hypot(np.ptp(line[::2]), np.ptp(line[1::2])))
    return len(line) > 6 and math.dist(line[:2], line[-2:]) <= near


def bitmap(name: str, pixels: np.ndarray, at: tuple[int, int] = (0, 0)) -> Shape:
    """A shape of pixels, bool (h, w); at: x and y of the upper left one."""
    from pycocotools import mask as rle

    runs = rle.encode(np.asfortranarray(pixels, np.uint8))
    counts = runs["counts"].decode()
    return Shape(name, {"pixels": {"size": runs["size"], "counts": counts}, "at": at})


def to_text(image: Annotated) -> str:
    """What ``draw`` needs of an image, as JSON."""
    rows = [{"name": shape.name, **shape.area} for shape in image.shapes]
    content = {"size": image.size, "upright": image.upright, "shapes": rows}
    return json.dumps(content, default=np.ndarray.tolist)
