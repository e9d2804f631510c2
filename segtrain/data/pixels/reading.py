"""What becomes of images that hold more than three bands of 8 bits: which settings say it, and what is refused without them?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from segtrain import config
from segtrain.data.pixels.header import Header
from segtrain.errors import DataError

DARK = 14  # bits: images of 16 bits in which no value needs more are taken for images of fewer bits


@dataclass(frozen=True)
class Reading:
    """How stored values become RGB of 8 bits: the same for every image of a run, in training, evaluation and prediction.

    bits: of the values in images that store more than 8 (8 to 16); 0: 16. drop: bands beyond RGB may be left out.
    """

    bits: int = 0
    drop: bool = False

    @classmethod
    def of(cls, data: config.Data) -> Reading:
        return cls(0 if data.bits == "auto" else int(data.bits), data.extra_bands == "drop")

    def narrows(self, header: Header) -> bool:
        """Whether an image needs another choice of 8 bits than the upper ones."""
        return self.bits not in (0, 16) and header.bits > 8 and header.format != "jpeg"


PLAIN = Reading()


def refuse_kind(header: Header, name: str) -> None:
    """Raise DataError for what has no one way to become a picture of 8 bits."""
    if header.floating:
        raise DataError(
            f"{name}: an image of floating-point values, which say nothing of black and white: save it with 8 or 16 bits a band",
            code="image-floating-point",
            file=name,
        )
    refuse_pages(header, name)
    if header.format == "tiff" and header.channels > 4:
        raise DataError(
            f"{name}: {header.channels} bands, but networks here take 3: save the three that count as RGB",
            code="too-many-bands",
            file=name,
            found=header.channels,
        )


def refuse_pages(header: Header, name: str) -> None:
    """Raise DataError for a TIFF of several pictures."""
    if header.pages > 1:
        raise DataError(
            f"{name}: holds {header.pages} pictures, of which only the first would be read: save each as a file of its own",
            code="several-images",
            file=name,
            found=header.pages,
        )


def without_extra(values: np.ndarray, reading: Reading, name: str) -> np.ndarray:
    """The first bands of (H, W) or (H, W, bands) as RGB (H, W, 3); gray is repeated.

    A band beyond them must be constant, as an alpha channel of an opaque image is, or be given up by ``reading.drop``.
    """
    bands = 1 if values.ndim == 2 else values.shape[2]
    colors = 3 if bands >= 3 else 1
    if bands > colors and not reading.drop:
        extra = values[..., colors:]
        if (extra != extra[:1, :1]).any():
            raise DataError(
                f"{name}: {bands} bands, but networks here take RGB or gray, and band {bands} is not empty: data.extra_bands=drop "
                f"reads the first {'three' if colors == 3 else 'one'}; or save those that count",
                code="extra-band-in-use",
                file=name,
                found=bands,
            )
    kept = values[..., None] if values.ndim == 2 else values[..., :colors]
    return np.ascontiguousarray(kept) if colors == 3 else np.repeat(kept, 3, 2)  # writable: torch wants to share it


def narrowed(values: np.ndarray, reading: Reading, name: str, alpha: bool = False) -> np.ndarray:
    """Values uint16 as RGB uint8 (H, W, 3): the upper 8 of ``reading.bits``. Raises DataError for values that do not fit."""
    rgb = without_extra(values, Reading(drop=True) if alpha else reading, name)
    bits = reading.bits or 16
    most = int(rgb.max())
    if most >> bits:
        raise DataError(
            f"{name}: the value {most:,} does not fit data.bits={bits}: set data.bits={most.bit_length()}",
            code="value-beyond-bits",
            file=name,
            found=most,
            expected=bits,
        )
    return (rgb >> (bits - 8)).astype(np.uint8)


def depth_of(brightest: int) -> int:
    """How many bits images of this brightest value hold, at least 8."""
    return max(8, brightest.bit_length())


def too_dark(brightest: int, reading: Reading) -> bool:
    """Whether images of 16 bits with this brightest value would turn nearly black without a word."""
    return reading.bits == 0 and depth_of(brightest) <= DARK
