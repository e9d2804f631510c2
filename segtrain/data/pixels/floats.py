"""Normalized images as the workers of a loader write them: float32 or bfloat16, in planes or
interleaved.

The values are those of ``normalize`` to the bit: the levels of a crop are rounded to integers
first. The native resampler normalizes each row as it makes it, so that no image of levels lies in
memory in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from segtrain.config import IMAGENET_MEAN as IMAGENET_MEAN
from segtrain.config import IMAGENET_STD as IMAGENET_STD
from segtrain.data.pixels import native
from segtrain.data.pixels.native.structures import FloatForm


@dataclass(frozen=True)
class Pixels:
    """The form of images as they are read: levels uint8 (H, W, 3), or float32 (H, W, channels) in
    stored units.
    """

    channels: int = 3
    dtype: str = "uint8"

    def shape(self, height: int, width: int) -> tuple[int, int, int]:
        """The shape of an image."""
        return height, width, self.channels

    def area(self, height: int, width: int) -> tuple[int, ...]:
        """The shape of its memory uint8."""
        shape = self.shape(height, width)
        return shape if self.dtype == "uint8" else (4 * math.prod(shape),)

    def view(self, memory: np.ndarray, height: int, width: int) -> np.ndarray:
        """The image in ``memory``."""
        return memory.view(self.dtype).reshape(self.shape(height, width))


RGB = Pixels()


@dataclass(frozen=True)
class Floats:
    """The form of normalized images: ``(level / 255 - mean) / std``, or ``(value - mean) / std`` of
    bands that are ``stored``.

    dtype: ``float32`` or ``bfloat16``. channels_last: whether the memory of an image is (H, W, 3)
    instead of (3, H, W).
    """

    dtype: str = "float32"
    channels_last: bool = False
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    stored: bool = False

    def area(self, height: int, width: int) -> tuple[int, ...]:
        """The shape of an image in memory uint8."""
        item_bytes = 2 if self.dtype == "bfloat16" else 4
        return (item_bytes * math.prod(self.shape(height, width)),)

    def shape(self, height: int, width: int) -> tuple[int, int, int]:
        """The shape of an image in memory."""
        channels = len(self.mean)
        return (height, width, channels) if self.channels_last else (channels, height, width)

    def view(self, memory: np.ndarray, height: int, width: int) -> np.ndarray:
        """The image in ``memory`` uint8 [bytes]: float32, or uint16 with the bits of bfloat16."""
        kind = np.uint16 if self.dtype == "bfloat16" else np.float32
        return memory.view(kind).reshape(self.shape(height, width))

    @cached_property
    def form(self) -> FloatForm:
        """The same for the native resampler."""
        shift, scale = ((v.item() for v in part) for part in self._terms)
        numbers = type(FloatForm().shift)
        return FloatForm(
            self.dtype == "bfloat16", not self.channels_last, numbers(*shift), numbers(*scale)
        )

    @property
    def _terms(self) -> tuple[np.ndarray, np.ndarray]:
        """What is subtracted from a level, and what the difference is multiplied by: float32 (3,)
        each.
        """
        unit = 1.0 if self.stored else 255.0
        shift, scale = [unit * m for m in self.mean], [1.0 / (unit * s) for s in self.std]
        return np.array(shift, np.float32), np.array(scale, np.float32)

    def write(self, levels: np.ndarray, out: np.ndarray) -> None:
        """Normalize ``levels`` uint8 (H, W, 3), or stored float32, contiguous, into ``out``, a
        ``view``.
        """
        if not self.stored and native.to_floats(levels, self.form, out):
            return
        shift, scale = self._terms
        values = (levels.astype(np.float32) - shift) * scale
        values = values if self.channels_last else values.transpose(2, 0, 1)
        out[...] = _to_bfloat16(values) if self.dtype == "bfloat16" else values


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The bits of bfloat16, uint16, of finite float32 values: rounded to the nearest, ties to
    even.
    """
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
