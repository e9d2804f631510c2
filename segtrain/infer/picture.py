"""Reader of images to predict: upright as viewers show them, deep images as in the training of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from segtrain.config.paste import command
from segtrain.data.audit.image_depth import look_at
from segtrain.data.pixels import decode
from segtrain.data.pixels.reading import PLAIN, depth_of, too_dark
from segtrain.errors import DataError


@dataclass(frozen=True)
class Picture:
    """Pixels uint8 (H, W, 3) RGB, upright, and what was done or left out on the way ("": nothing)."""

    pixels: np.ndarray
    note: str = ""


def read_picture(path: str | Path, reading: decode.Reading = PLAIN) -> Picture:
    """Raises DataError as ``decode.decode_image`` does, and for an image of 16 bits that would turn nearly black."""
    content, name = decode.load(path)
    header = decode.read_header(content, name)
    look = look_at(content, name, header)
    if look.brightest >= 0 and too_dark(look.brightest, reading):
        bits = depth_of(look.brightest)
        raise DataError(
            f"{name}: 16 bits per band, but no value above {look.brightest:,}, which needs {bits} bits. Read as 16 "
            f"bits it would be nearly black: {command({'data.bits': bits})}, or data.bits=16 if it is meant to be so "
            "dark",
            code="image-nearly-black",
            file=name,
            bits=bits,
        )
    notes = ["its transparent alpha channel left out"] if look.transparent else []
    pixels = decode.decode_image(content, name, reading)
    if header.orientation != 1:
        pixels = upright(pixels, header.orientation)
        notes.append(f"turned upright, EXIF orientation {header.orientation}")
    return Picture(pixels, ", ".join(notes))


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Stored pixels (H, W, ...) as viewers show them.

    ``orientation``: 1 to 8 of EXIF 2.32, which side the first row and column are.
    """
    if orientation in (5, 6, 7, 8):  # the first row is a side
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):  # the first row is at the bottom
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):  # the first column is at the right
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
