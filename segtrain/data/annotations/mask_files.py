"""Shapes whose pixels are in mask files, which are read when a mask is drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from segtrain.data.annotations.shapes import Size
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import size_error
from segtrain.errors import file_error


def files_of(text: str) -> list[str]:
    """The mask files in what ``shapes.to_text`` returned."""
    if '"file"' not in text:
        return []
    pixels = (shape.get("pixels", {}) for shape in json.loads(text)["shapes"])
    return [*dict.fromkeys(shape["file"] for shape in pixels if "file" in shape)]


def load_pixels(
    shapes: list[dict[str, Any]], content: Callable[[str], Any], image: str, size: Size
) -> None:
    """Replace the path of a mask by its pixels, bool (H, W).

    content: returns the bytes of a file. image: for messages. Raises DataError for masks of another
    size, and for values that no shape explains.
    """
    segments: dict[str, np.ndarray] = {}
    for shape in shapes:
        source = shape.get("pixels", {})
        path = source.get("file")
        if path is None:
            continue
        if path not in segments:
            values = _values(content(path), path)
            if values.shape[:2] != size:
                raise size_error(path, values.shape[:2], image, size)
        if "segments" in source:
            rest = segments.setdefault(path, _segment_ids(values))
            shape["pixels"] = np.isin(rest, source["segments"])
            rest[shape["pixels"]] = 0
        else:
            shape["pixels"] = _of_two_values(values, path)
    for path, rest in segments.items():
        if rest.any():
            unknown = np.unique(rest)[1:].tolist()
            raise file_error(
                path,
                f"{np.count_nonzero(rest):,} pixels of segments that the annotations do not list, "
                f"such as {unknown[0]}: the id is red + 256 green + 65536 blue; export it again",
                code="segment-unknown",
                found=unknown[:5],
            )


def _values(content: Any, path: str) -> np.ndarray:
    """Integers (H, W), or colors (H, W, 3). A JPEG is cut at half of white."""
    if decode.read_header(content, path).format == "jpeg":
        return decode.decode_image(content, path)[..., 0] >> 7
    return decode.decode_mask(content, path)


def _segment_ids(values: np.ndarray) -> np.ndarray:
    if values.ndim == 2:
        return values.astype(np.int64)
    return values.astype(np.int64) @ np.array([1, 1 << 8, 1 << 16])


def _of_two_values(values: np.ndarray, path: str) -> np.ndarray:
    if values.ndim == 3 and (values == values[..., :1]).all():
        values = values[..., 0]
    pixels = values > 0
    if values.ndim == 3 or (values[pixels] != values.max()).any():
        raise file_error(
            path,
            "holds more than two values, but masks of single objects or classes have 0 and "
            "another value: choose one mask of class ids per image with data.layout=folders "
            "and data.pair, or save such masks",
            code="mask-not-of-two-values",
        )
    return pixels
