"""Bit depth and bands of the images of a split, and whether the settings read them correctly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from segtrain import config
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.pixels import decode
from segtrain.data.pixels.reading import depth_of, too_dark


@dataclass(frozen=True)
class ImageProperties:
    """Properties of one image besides its size.

    form: such as "8-bit RGB". brightest: the largest value of an image with more than 8 bits; -1
    for other images.
    """

    form: str
    brightest: int = -1
    transparent: bool = False


def image_properties(stored: Any, name: str, header: decode.Header) -> ImageProperties:
    """The properties of an image file. It is decoded only if it has more than 8 bits or alpha.
    Raises DataError.
    """
    if header.format not in ("jpeg", "bands") and header.bits > 8:
        values = decode.deep_values(bytes(stored), header, name)
        colors = values if values.ndim == 2 else values[..., : 3 if values.shape[2] >= 3 else 1]
        return ImageProperties(
            header.form, int(colors.max()), header.format == "png" and _transparent(values)
        )
    if not header.banded and header.format != "jpeg" and header.channels in (2, 4):
        return ImageProperties(
            header.form, transparent=_transparent(decode.all_bands(bytes(stored), name))
        )
    return ImageProperties(header.form)


def _transparent(values: np.ndarray) -> bool:
    """Whether there is an alpha channel that is not opaque everywhere."""
    alpha = values.ndim == 3 and values.shape[2] in (2, 4)
    return alpha and bool((values[..., -1] != np.iinfo(values.dtype).max).any())


def depth_finding(data: config.Data, seen: Iterable[tuple[int, str]]) -> SplitFinding | None:
    """A finding if images of more than 8 bits would be nearly black after their conversion to 8
    bits.

    seen: (brightest value, its file) of each split.
    """
    brightest, name = max(seen, default=(-1, ""))
    reading = decode.Reading.from_data(data)
    if brightest < 0 or not too_dark(brightest, reading):
        return None
    bits = depth_of(brightest)
    return SplitFinding(
        f"images with 16 bits per band have no value above {brightest:,} ({name}), which "
        f"is {bits} bits: "
        "the upper 8 of 16 bits would be nearly black",
        True,
        {"data.bits": bits},
        (("if they are meant to be so dark", {"data.bits": 16}),),
    )
