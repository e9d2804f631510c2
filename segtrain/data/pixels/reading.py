"""Conversion of images with more than 8 bits per band or more than 3 bands, as data.bits and
data.extra_bands say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from segtrain import config
from segtrain.data.index.names import siblings
from segtrain.data.pixels.floats import RGB, Pixels
from segtrain.data.pixels.header import Header
from segtrain.errors import file_error

# a 16-bit image whose values all fit into this many bits is assumed to use fewer than 16 bits
DARK = 14
MOST_BANDS = 16  # of data.channels


@dataclass(frozen=True)
class Reading:
    """How stored values become 8-bit RGB, for every image of a run: in training, evaluation, and
    prediction.

    bits: bits in use (8 to 16) in images that store more than 8; 0: not set, treated as 16.
    drop: leave out the bands beyond RGB or gray even if they are in use. pixels: the form of the
    images; stored values are kept instead. files: name patterns of the files of an image, see
    ``names.siblings``; () if it is one file.
    """

    bits: int = 0
    drop: bool = False
    pixels: Pixels = RGB
    files: tuple[str, ...] = ()

    @classmethod
    def from_data(cls, data: config.Data) -> Reading:
        nodata = None if data.nodata is None else float(data.nodata)
        pixels = Pixels(data.channels, True, nodata, data.mean or ()) if data.stored else RGB
        bits = 0 if data.bits == "auto" else int(data.bits)
        return cls(bits, data.extra_bands == "drop", pixels, data.files)

    def files_of(self, path: str) -> list[str]:
        """The files of the image whose first one is ``path``; [] if it is none by ``files``."""
        return siblings(self.files, path) if self.files else [path]

    def narrows(self, header: Header) -> bool:
        """Whether the conversion of an image to 8 bits takes other bits than the upper 8 of 16."""
        return self.bits not in (0, 16) and header.bits > 8 and header.format != "jpeg"


PLAIN = Reading()


def refuse_kind(header: Header, name: str) -> None:
    """Raise DataError for an image that has no single conversion to 8 bits."""
    if header.channels > MOST_BANDS:
        raise file_error(
            name,
            f"{header.channels} bands, but at most {MOST_BANDS} are read: save fewer as one image",
            code="too-many-bands",
            found=header.channels,
        )
    if header.floating:
        raise file_error(
            name,
            "floating-point values define no black and white: keep them with data.values=stored, "
            f"data.channels={header.channels}",
            code="image-floating-point",
        )
    refuse_pages(header, name)
    if header.format == "tiff" and header.channels > 4:
        raise file_error(
            name,
            f"{header.channels} bands, but data.channels=3: set data.channels={header.channels} "
            "to train on all, or save three as an RGB image",
            code="too-many-bands",
            found=header.channels,
        )


def refuse_pages(header: Header, name: str) -> None:
    """Raise DataError for a TIFF of several images."""
    if header.pages > 1:
        raise file_error(
            name,
            f"holds {header.pages} images, of which only the first would be read: save each to its "
            "own file, as `segtrain data convert` does for a folder with a stack of images and one "
            "of masks",
            code="several-images",
            found=header.pages,
        )


def without_extra(values: np.ndarray, reading: Reading, name: str) -> np.ndarray:
    """The first bands of (H, W) or (H, W, bands) as RGB (H, W, 3); gray is repeated.

    Raises DataError if a further band is not constant, unless ``reading.drop`` is set. The alpha
    band of an opaque image is constant.
    """
    bands = 1 if values.ndim == 2 else values.shape[2]
    colors = 3 if bands >= 3 else 1
    if bands > colors and not reading.drop:
        extra = values[..., colors:]
        if (extra != extra[:1, :1]).any():
            raise file_error(
                name,
                f"{bands} bands, but data.channels=3, and band {bands} is not empty: set "
                f"data.channels={bands} to train on all, or data.extra_bands=drop for the first "
                f"{'three' if colors == 3 else 'one'}",
                code="extra-band-in-use",
                found=bands,
            )
    rgb_or_gray = values[..., None] if values.ndim == 2 else values[..., :colors]
    # writable: torch shares the memory
    return np.ascontiguousarray(rgb_or_gray) if colors == 3 else np.repeat(rgb_or_gray, 3, 2)


def narrowed(values: np.ndarray, reading: Reading, name: str, alpha: bool = False) -> np.ndarray:
    """Convert uint16 values to RGB uint8 (H, W, 3) with the upper 8 of ``reading.bits`` bits (0: of
    16 bits).

    alpha: leave out further bands even without ``reading.drop``. Raises DataError for values of
    more bits.
    """
    rgb = without_extra(values, Reading(drop=True) if alpha else reading, name)
    bits = reading.bits or 16
    most = int(rgb.max())
    if most >> bits:
        raise file_error(
            name,
            f"the value {most:,} does not fit data.bits={bits}: set data.bits={most.bit_length()}",
            code="value-beyond-bits",
            found=most,
            expected=bits,
        )
    return (rgb >> (bits - 8)).astype(np.uint8)


def depth_of(brightest: int) -> int:
    """The number of bits that values up to ``brightest`` need, at least 8."""
    return max(8, brightest.bit_length())


def too_dark(brightest: int, reading: Reading) -> bool:
    """Whether 16-bit images whose largest value is ``brightest`` would become nearly black."""
    return reading.bits == 0 and depth_of(brightest) <= DARK
