"""Findings about the images of a split: bit depth, bands, and flips of classes that have sides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from segtrain.bucket.faults import ignoring_file_faults
from segtrain.config import Data
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.dataset import Dataset
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels import decode
from segtrain.data.pixels.bands import BandImage
from segtrain.data.pixels.reading import depth_of, too_dark

# The word, or its first letter alone, as in l_eye.
_LEFT = re.compile(r"left|(?<![a-z])l(?![a-z])")
# At most this many images are read, evenly drawn.
_IMAGES = 100
Numbers = tuple[float, ...]


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


def depth_finding(data: Data, seen: Iterable[tuple[int, str]]) -> SplitFinding | None:
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


def flip_finding(flips: str, labels: LabelSpace) -> list[SplitFinding]:
    """The finding about classes of two sides, which ``flips`` (a setting; "": none) mirrors without
    exchanging them.
    """
    named = [
        [labels.names[index], labels.names[mirrored]]
        for index, mirrored in enumerate(labels.mirror)
        if index < mirrored
    ]
    taken = {name for pair in named for name in pair}
    pairs = [pair for pair in sides(labels.names) if flips and not taken & {*pair}]
    if not pairs:
        return []
    message = (
        f"{flips} mirrors images, and the mask of a mirrored {pairs[0][0]!r} still says "
        f"{pairs[0][0]!r}, though it "
    )
    return [
        SplitFinding(
            f"{message}looks like {pairs[0][1]!r}. Name the pairs, or set {flips}=0",
            False,
            {"data.flip_pairs": named + pairs},
        )
    ]


def sides(names: Sequence[str]) -> list[list[str]]:
    """Pairs of names that differ only by left and right, or by l and r as a word of their own."""
    original = {name.lower(): name for name in names}
    swapped = {
        low: _LEFT.sub(lambda match: "right" if len(match[0]) > 1 else "r", low) for low in original
    }
    return [
        [original[low], original[other]]
        for low, other in swapped.items()
        if low != other and other in original
    ]


def bands_finding(data: Data, dataset: Dataset) -> SplitFinding | None:
    """A finding with ``data.mean`` and ``data.std`` of ``dataset``, if stored values need them."""
    if not data.stored or (data.mean and data.std):
        return None
    step = max(1, len(dataset) // _IMAGES)
    indices = range(step // 2, len(dataset), step)
    mean, std, images = _measured(dataset, indices)
    if not images:
        return None
    return SplitFinding(
        f"data.mean and data.std are not set: measured on {images} of {len(dataset):,} images of "
        f"{dataset.split}",
        settings={"data.mean": mean, "data.std": std},
    )


def _measured(dataset: Dataset, indices: range) -> tuple[Numbers, Numbers, int]:
    """Mean and standard deviation of each band over the values that are not missing, to six
    figures, and the number of images read. Faulty files are left out.
    """
    sums, images = np.zeros((3, dataset.reading.pixels.channels)), 0
    for index in indices:
        with ignoring_file_faults():
            image = dataset.stored_image(index)
            assert isinstance(image, BandImage)
            values = image.values().astype(np.float64)
            sums += np.nansum([values, values**2, np.isfinite(values)], axis=(1, 2))
            images += 1
    total, squares, count = sums
    count = np.maximum(count, 1)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std[std == 0] = 1.0  # a constant band
    short_mean, short_std = (tuple(float(f"{value:.6g}") for value in part) for part in (mean, std))
    return short_mean, short_std, images
