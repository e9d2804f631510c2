"""Normalized images as the workers of a loader write them: float32 or bfloat16, in planes or
interleaved.

The values are those of ``normalize`` to the bit: the levels of a crop are rounded to integers
first. The native resampler normalizes each row as it makes it, so that no image of levels lies in
memory in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from segtrain.config import IMAGENET_MEAN as IMAGENET_MEAN
from segtrain.config import IMAGENET_STD as IMAGENET_STD
from segtrain.data.augment.geometry import FILL
from segtrain.data.pixels import native
from segtrain.data.pixels.native.structures import FloatForm


@dataclass(frozen=True)
class Pixels:
    """The form of images as they are read: levels uint8 (H, W, 3) RGB, or ``stored`` values of
    any number of bands, float32 (H, W, channels) in stored units.

    nodata: the stored value of pixels without data; None: what each file says. mean: of each band;
    () if it is not measured yet.
    """

    channels: int = 3
    stored: bool = False
    nodata: float | None = None
    mean: tuple[float, ...] = ()

    @property
    def dtype(self) -> str:
        return "float32" if self.stored else "uint8"

    @property
    def wanted(self) -> str:
        """What ``fits``, for messages."""
        return f"numbers (H, W, {self.channels})" if self.stored else "uint8 (H, W, 3) RGB"

    @cached_property
    def fill(self) -> np.ndarray:
        """The color outside of the image, and each band's value there."""
        return np.array((self.mean or (0,) * self.channels) if self.stored else FILL, self.dtype)

    def fits(self, values: np.ndarray) -> bool:
        """Whether an array is such an image, with at least one pixel."""
        typed = values.dtype.kind in "buif" if self.stored else values.dtype == np.uint8
        return bool(typed and values.size and values.ndim == 3) and len(values.T) == self.channels

    def marked(self, values: np.ndarray, nodata: float | None = None) -> np.ndarray:
        """Stored ``values`` as float32, with NaN for missing ones. ``nodata``: what the file
        says.
        """
        numbers = np.array(values, np.float32, order="C")
        if values.dtype.kind == "f":
            numbers[~np.isfinite(numbers)] = np.nan
        nodata = nodata if self.nodata is None else self.nodata
        if nodata is not None:
            numbers[numbers == np.float32(nodata)] = np.nan
        return numbers

    def filled(self, marked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What ``marked`` returned, with the means in place of NaN, and bool (H, W): pixels without
        data.
        """
        missing = np.isnan(marked)
        if not missing.any():
            return marked, np.zeros(marked.shape[:2], bool)
        return np.where(missing, self.fill, marked), missing.all(2)

    def shape(self, height: int, width: int) -> tuple[int, int, int]:
        """The shape of an image."""
        return height, width, self.channels

    def area(self, height: int, width: int) -> tuple[int, ...]:
        """The shape of its memory uint8."""
        shape = self.shape(height, width)
        return (4 * math.prod(shape),) if self.stored else shape

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
        shift, scale = terms(self.mean, self.std, 1.0 if self.stored else 255.0)
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


def terms(
    mean: Sequence[float], std: Sequence[float], unit: float = 255.0
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What is subtracted from a level, or with the ``unit`` 1 from a stored value, and what the
    difference is multiplied by, per channel.
    """
    return tuple(unit * m for m in mean), tuple(1.0 / (unit * s) for s in std)


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The bits of bfloat16, uint16, of finite float32 values: rounded to the nearest, ties to
    even.
    """
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
