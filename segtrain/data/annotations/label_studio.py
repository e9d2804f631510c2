"""Label Studio's exports "JSON" and "JSON-MIN": one file with a task for each image.

https://labelstud.io/guide/export
"""

from __future__ import annotations

import os
import re
import urllib.parse
from typing import Any

import numpy as np

from segtrain.base.terminal import counted
from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import json_of, png_pixels, text
from segtrain.data.annotations.shapes import (
    Annotated,
    Annotations,
    Shape,
    Size,
    bitmap,
    box,
    ellipse,
    polygon,
    ring,
    rotated,
)
from segtrain.data.index.names import SUFFIXES
from segtrain.data.pixels.header import MAX_PIXELS

_TASKS = re.compile(r'\ufeff?\s*\[\s*\{(?=.*"original_width")', re.DOTALL)
_CHANNELS = 4  # of a brush: red, green, blue, alpha


def _image(task: dict[str, Any]) -> str:
    """The image of a task: the first value that names one. An upload is /data/upload/1/a.png, a
    file of the server /data/local-files/?d=folder/a.png, any other a URL.
    """
    data = task.get("data", task)
    for value in (*data.values(), data.get("image")):
        if isinstance(value, str):
            name = urllib.parse.unquote(value.partition("?d=")[2] or value.partition("?")[0])
            if os.path.splitext(name)[1].lower() in SUFFIXES:
                return name
    raise ValueError(f"a task without an image: {sorted(data)}")


def _read(where: Where) -> Annotations:
    file = where.annotations
    images, several = list[Annotated](), 0
    for task in json_of(file):
        results = _results(task)
        several += len(results) > 1
        if results:
            images.append(_annotated(_image(task), results[-1], file))
    notes = (
        f"{counted(several, 'image')} with several annotations: of each, the ground truth is read, "
        "or else the last",
    ) * bool(several)
    return Annotations(images, notes=notes)


def _results(task: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The regions of each annotation of a task, the one to be read last."""
    annotations = task.get("annotations", task.get("completions"))
    if annotations is None:  # JSON-MIN
        lists = [value for value in task.values() if isinstance(value, list)]
        items = [item for value in lists for item in value if isinstance(item, dict)]
        return [[item | {"value": item} for item in items]]
    done = [annotation for annotation in annotations if not annotation.get("was_cancelled")]
    truths = [annotation for annotation in done if annotation.get("ground_truth")]
    return [annotation["result"] for annotation in (*done, *truths[:1])]


def _annotated(image: str, regions: list[dict[str, Any]], file: str) -> Annotated:
    parts, size = list[Shape | str](), None
    labeled = {region.get("id") for region in regions if _label(region)}
    for region in regions:
        if "original_width" not in region:
            continue  # a choice, a text, or a relation
        size = int(region["original_height"]), int(region["original_width"])
        name = _label(region)
        if name:
            parts.append(_shape(region, name, size))
        elif region.get("id") not in labeled:
            parts.append("region without a label")
    # A browser shows images as their EXIF rotation says.
    return Annotated(image, file, parts, size, upright=True)


def _label(region: dict[str, Any]) -> str:
    """The class of a region, from a key such as polygonlabels; "" without one."""
    value = region.get("value", {})
    names = [name for key in value if key.endswith("labels") for name in value[key]]
    if len(names) > 1:
        raise ValueError(f"a region of several classes: {names}")
    return text(names[0], "a label") if names else ""


def _shape(region: dict[str, Any], name: str, size: Size) -> Shape | str:
    if region.get("image_rotation"):
        raise ValueError("an image that was rotated in Label Studio")
    value = region["value"]
    if "rle" in value:
        return bitmap(name, _brush(bytes(value["rle"]), size))
    if "imageDataURL" in value:
        return bitmap(name, png_pixels(value["imageDataURL"].partition(",")[2], size))
    scale = np.array([size[1], size[0]]) / 100  # from percent
    if "points" in value:
        return polygon(name, [ring(value["points"]) * scale])
    place = scale * [value["x"], value["y"]]
    if "radiusX" in value:
        outline = ellipse(place, scale * [value["radiusX"], value["radiusY"]])
    elif "height" in value:
        outline = box(place, place + scale * [value["width"], value["height"]])
    else:
        return str(region.get("type", "key point"))
    return polygon(name, [rotated(outline, place, value.get("rotation", 0))])


def _brush(stream: bytes, size: Size) -> np.ndarray:
    """The pixels of a brush whose alpha is not 0, bool (h, w).

    The stream of bits: the number of words in 32 bits, the bits of a word in 5, the bits of four
    kinds of counts in 4 each; the last two less one. Then runs: whether one word is repeated, the
    kind of the count in 2 bits, the count less one, and one or ``count`` words.
    """
    bits = "".join(f"{byte:08b}" for byte in stream).encode()
    at = 0

    def number(width: int) -> int:
        nonlocal at
        at += width
        return int(bits[at - width : at], 2)

    total, word = number(32), number(5) + 1
    widths = [number(4) + 1 for _ in range(4)]
    if total != size[0] * size[1] * _CHANNELS or total > MAX_PIXELS * _CHANNELS:
        raise ValueError(f"a brush of {total} words in an image of {size[0]} x {size[1]}")
    drawn, done = np.zeros(total, bool), 0
    while done < total:
        repeated = number(1)
        count = number(widths[number(2)]) + 1
        words = 1 if repeated else count
        digits = np.frombuffer(bits, np.uint8, words * word, at).reshape(words, word)
        drawn[done : done + count] = (digits == ord("1")).any(1)
        at += words * word
        done += count
    return drawn.reshape(*size, _CHANNELS)[..., -1]


LABEL_STUDIO = Format(
    "label-studio",
    "a JSON file of tasks with results (Label Studio's JSON)",
    find.by_content(
        lambda path, head: _TASKS.match(head),
        ".json",
        images=lambda path: map(_image, json_of(path)),
    ),
    _read,
).layout
