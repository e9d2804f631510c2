"""Images whose values are kept as they are stored: TIFF, .npy, and what OpenCV reads, of any number
of bands.

They become float32 (H, W, bands) in stored units, with the mean of its band where a value is
missing (NaN, infinite, or the nodata value). A pixel without any value has no data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import cv2
import numpy as np

from segtrain.data.pixels.header import (
    Header,
    Stored,
    damaged,
    header_of,
    load,
    refuse_cut,
    stream_of,
)
from segtrain.data.storage import opened
from segtrain.errors import MissingExtra, SegtrainError, file_error

# TIFF tags: those that place an image on the earth, and the text of GDAL's nodata value.
GEO_TAGS, NODATA_TAG = (33550, 33922, 34264, 34735, 34736, 34737), 42113
_ALL = slice(None)
_VISIBLE = 2, 98  # percentiles that become black and white in pictures
Part = Callable[[slice, slice], np.ndarray]  # rows, columns -> (h, w, bands)


@dataclass(frozen=True)
class Bands:
    """How the images of a run are read. ``nodata``: the value of pixels without data; None: what
    each file says. ``mean``: of each band; empty if it is not measured yet.
    """

    channels: int
    nodata: float | None = None
    mean: tuple[float, ...] = ()

    @property
    def fill(self) -> np.ndarray:
        """The value of each band where there is none, float32 (channels,)."""
        return np.array(self.mean or (0.0,) * self.channels, np.float32)

    def fits(self, values: np.ndarray) -> bool:
        """Whether an array is an image of these bands, with at least one pixel."""
        numbers = values.dtype.kind in "buif" and values.size > 0
        return numbers and values.ndim == 3 and values.shape[2] == self.channels

    def marked(self, values: np.ndarray, nodata: float | None = None) -> np.ndarray:
        """``values`` (H, W, channels) as float32, with NaN for missing ones. ``nodata``: what the
        file says.
        """
        numbers = np.array(values, np.float32, order="C")
        numbers[~np.isfinite(numbers)] = np.nan
        nodata = nodata if self.nodata is None else self.nodata
        if nodata is not None:
            numbers[numbers == np.float32(nodata)] = np.nan
        return numbers

    def filled(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What ``marked`` returned, with the means in place of NaN, and bool (H, W): pixels without
        data.
        """
        missing = np.isnan(values)
        return np.where(missing, self.fill, values), missing.all(2)


class _File(NamedTuple):
    """An open image: its shape (H, W, bands), the type of its values, and how a part is read."""

    shape: tuple[int, int, int]
    dtype: Any
    read: Part
    nodata: float | None = None


@dataclass(frozen=True)
class BandImage:
    """An image file that is decoded when its pixels are needed. Raises DataError.

    source: the path of a local file, or the content of one.
    """

    source: Stored
    name: str
    bands: Bands

    @cached_property
    def header(self) -> Header:
        with self._opened() as file:
            dtype = np.dtype(file.dtype)
            return Header("bands", *file.shape, 8 * dtype.itemsize, floating=dtype.kind == "f")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.header.height, self.header.width, self.header.channels

    def values(self, rows: slice = _ALL, columns: slice = _ALL) -> np.ndarray:
        """The values of a part, float32 (h, w, bands), with NaN for missing ones."""
        with self._opened() as file:
            return self.bands.marked(file.read(rows, columns), file.nodata)

    def read(self, rows: slice = _ALL, columns: slice = _ALL) -> tuple[np.ndarray, np.ndarray]:
        """The values of a part without missing ones, and bool (h, w): pixels without data."""
        return self.bands.filled(self.values(rows, columns))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[_File]:
        try:
            with stream_of(self.source, self.name) as (stream, _):
                start = stream.read(6)
                stream.seek(0)
                if start == b"\x93NUMPY":
                    file = _array(stream, self.source, self.bands.channels)
                elif start[:2] in (b"II", b"MM"):
                    file = _tiff(stream, self.name)
                else:
                    file = _other(stream, self.name)
                self._check(file)
                yield file
        except SegtrainError:
            raise
        except Exception as error:  # tifffile, zlib, NumPy, and OpenCV raise errors of many types
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> SegtrainError:
        if "imagecodecs" in str(error):  # tifffile names it for the compression of this file
            return MissingExtra("imagecodecs", "bands", f"the compression of {self.name}")
        text = " ".join(str(error).split()) or type(error).__name__
        size = len(load(self.source, self.name)[0])
        return damaged(self.name, f"its {size:,} bytes cannot be decoded ({text})", found=text)

    def _check(self, file: _File) -> None:
        if file.shape[2] != self.bands.channels:
            reason = f"has {file.shape[2]} bands, but data.channels={self.bands.channels}"
            raise file_error(
                self.name,
                f"{reason}: set data.channels, or take the file out",
                code="band-count-differs",
                found=file.shape[2],
                expected=self.bands.channels,
            )
        if np.dtype(file.dtype).kind not in "buif":
            reason = f"its values are {file.dtype}: save integers or floating-point numbers"
            raise file_error(self.name, reason, code="image-unsupported", found=str(file.dtype))


def _part_of(values: np.ndarray) -> Part:
    return lambda rows, columns: values[rows, columns]


def _array(stream: Any, source: Stored, channels: int) -> _File:
    """A NumPy file (H, W), (H, W, bands), or (bands, H, W); memory-mapped on a disk."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        values = np.load(stream, allow_pickle=False)
    else:
        values = np.load(source, mmap_mode="r", allow_pickle=False)
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3:
        raise ValueError(f"the array has the shape {values.shape}, not (H, W, bands)")
    if values.shape[2] != channels and values.shape[0] == channels:
        values = values.transpose(1, 2, 0)
    return _File(values.shape, values.dtype, _part_of(values))


def _other(stream: Any, name: str) -> _File:
    """A file that OpenCV reads, such as a PNG: its colors in the order red, green, blue."""
    refuse_cut(stream, header_of(stream, name), name, crc=True)
    stream.seek(0)
    content = np.frombuffer(stream.read(), np.uint8)
    flags = cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION
    values = cv2.imdecode(content, flags)
    if values is None:
        raise ValueError("not an image that OpenCV reads")
    if values.ndim == 2:
        values = values[..., None]
    elif values.shape[2] >= 3:
        values = values[..., [2, 1, 0, *range(3, values.shape[2])]]
    return _File(values.shape, values.dtype, _part_of(values))


def tifffile_for(purpose: str) -> Any:
    """The module tifffile. Raises MissingExtra."""
    try:
        import tifffile
    except ImportError:
        raise MissingExtra("tifffile", "bands", purpose) from None
    return tifffile


def _tiff(stream: Any, name: str) -> _File:
    """The first image of a TIFF; its strips or tiles are decoded where a part needs them."""
    pages = tifffile_for(f"reading {name}").TiffFile(stream).pages
    page, images = pages[0], [part for part in pages if not (part.is_reduced or part.is_mask)]
    if len(images) > 1:
        reason = f"holds {len(images)} images: save their bands as one image"
        raise file_error(name, reason, code="several-images", found=len(images))
    shape = page.imagelength, page.imagewidth, page.samplesperpixel
    tag = page.tags.get(NODATA_TAG)
    nodata = None if tag is None else float(str(tag.value).strip("\0 "))
    return _File(shape, page.dtype, lambda *part: _decoded(page, stream, shape, *part), nodata)


def _decoded(
    page: Any, stream: Any, shape: tuple[int, ...], rows: slice, columns: slice
) -> np.ndarray:
    height, width, bands = shape
    tall, wide = (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, width)
    top, bottom, _ = rows.indices(height)
    left, right, _ = columns.indices(width)
    planes = bands if page.planarconfig == 2 else 1
    down, across = -(-height // tall), -(-width // wide)
    out = np.zeros((bottom - top, right - left, bands), page.dtype)
    for plane in range(planes):
        band = slice(plane, plane + 1) if planes > 1 else slice(None)
        for y in range(top // tall, -(-bottom // tall)):
            for x in range(left // wide, -(-right // wide)):
                index = (plane * down + y) * across + x
                stream.seek(page.dataoffsets[index])
                content = stream.read(page.databytecounts[index])
                if len(content) != page.databytecounts[index]:
                    raise ValueError("the file ends early")
                tables = page.jpegtables
                segment = page.decode(content or None, index, jpegtables=tables)[0]
                y0, x0 = max(top, y * tall), max(left, x * wide)
                y1, x1 = min(bottom, (y + 1) * tall), min(right, (x + 1) * wide)
                part = out[y0 - top : y1 - top, x0 - left : x1 - left, band]
                if segment is None:  # a part that was never written
                    part[...] = page.nodata
                    continue
                part[...] = segment[0, y0 - y * tall : y1 - y * tall, x0 - x * wide : x1 - x * wide]
    return out


def georeference(source: str) -> dict[int, tuple[Any, ...]] | None:
    """The tags that place a TIFF file on the earth, as ``tifffile.imwrite`` takes them; None for
    other files.
    """
    with opened(source) as stream:
        if stream.read(2) not in (b"II", b"MM"):
            return None
        stream.seek(0)
        with tifffile_for(f"reading {source}").TiffFile(stream) as tiff:
            tags = tiff.pages[0].tags
            return {
                code: (code, int(tag.dtype), tag.count, tag.value, True)
                for code in GEO_TAGS
                if (tag := tags.get(code)) is not None
            }


def visible(values: np.ndarray) -> np.ndarray:
    """A picture uint8 (H, W, 3) of an image (H, W, bands): its first three bands, or its first one,
    each scaled between its 2nd and its 98th percentile. Levels uint8 (H, W, 3) stay as they are.
    """
    if values.dtype == np.uint8:
        return values
    shown = values[..., :3] if values.shape[2] >= 3 else values[..., :1]
    low, high = np.percentile(shown, _VISIBLE, axis=(0, 1))
    scaled = (shown - low) * (255 / np.maximum(high - low, 1e-12))
    levels = scaled.clip(0, 255).round().astype(np.uint8)
    return np.array(np.broadcast_to(levels, (*values.shape[:2], 3)))
