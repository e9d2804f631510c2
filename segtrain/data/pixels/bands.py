"""Images whose values are kept as they are stored: TIFF, .npy, and what OpenCV reads, of any number
of bands, in one file or in several.

They become float32 (H, W, bands) in stored units, with the mean of its band where a value is
missing (NaN, infinite, or the nodata value). A pixel without any value has no data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import cv2
import numpy as np

from segtrain.data.pixels.floats import Pixels
from segtrain.data.pixels.header import (
    Header,
    Source,
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
ALL = slice(None)
_VISIBLE = 2, 98  # percentiles that become black and white in pictures
Part = Callable[[slice, slice], np.ndarray]  # rows, columns -> (h, w, bands)


class _File(NamedTuple):
    """An image file: its shape (H, W, bands), the type of its values, and how a part is read."""

    shape: tuple[int, ...]
    dtype: Any
    read: Part
    nodata: float | None = None


@dataclass(frozen=True)
class BandImage:
    """An image that is decoded when its pixels are needed. Raises DataError.

    sources: of its files, in the order of their bands: the path of a local file, the content of
    one, or an open file. names: of the files, for messages.
    """

    sources: Sequence[Source]
    names: Sequence[str]
    pixels: Pixels

    @cached_property
    def header(self) -> Header:
        dtype = np.result_type(*(file.dtype for file in self._files))
        return Header("bands", *self.shape, 8 * dtype.itemsize, floating=dtype.kind == "f")

    @property
    def shape(self) -> tuple[int, int, int]:
        height, width, _ = self._files[0].shape
        return height, width, self.pixels.channels

    def values(self, rows: slice = ALL, columns: slice = ALL) -> np.ndarray:
        """The values of a part, float32 (h, w, bands), with NaN for missing ones."""
        parts = []
        for source, name, file in zip(self.sources, self.names, self._files):
            with _readable(source, name):
                parts.append(self.pixels.marked(file.read(rows, columns), file.nodata))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 2)

    def read(self, rows: slice = ALL, columns: slice = ALL) -> tuple[np.ndarray, np.ndarray]:
        """The values of a part without missing ones, and bool (h, w): pixels without data."""
        return self.pixels.filled(self.values(rows, columns))

    @cached_property
    def _files(self) -> list[_File]:
        channels = self.pixels.channels
        several = len(self.names) > 1
        files = [
            _opened(source, name, 0 if several else channels)
            for source, name in zip(self.sources, self.names)
        ]
        size, count = files[0].shape[:2], sum(file.shape[2] for file in files)
        for name, file in zip(self.names, files):
            if file.shape[:2] != size:
                raise file_error(
                    name,
                    f"has {file.shape[0]} x {file.shape[1]} pixels, but {self.names[0]} has "
                    f"{size[0]} x {size[1]}: resample the files of an image to one size",
                    code="band-size-differs",
                    found=file.shape[:2],
                    expected=size,
                )
        if count != channels:
            raise file_error(
                self.names[0],
                f"has {count} bands{f' in {len(files)} files' * several}, but data.channels="
                f"{channels}: set data.channels, or take the file out",
                code="band-count-differs",
                found=count,
                expected=channels,
            )
        return files


@contextlib.contextmanager
def _readable(source: Source, name: str) -> Iterator[None]:
    """Turns errors of decoders into DataError."""
    try:
        yield
    except SegtrainError:
        raise
    except Exception as error:  # tifffile, zlib, NumPy, and OpenCV raise errors of many types
        if "imagecodecs" in str(error):  # tifffile names it for the compression of this file
            raise MissingExtra("imagecodecs", "bands", f"the compression of {name}") from error
        text = " ".join(str(error).split()) or type(error).__name__
        what = "the file"
        if isinstance(source, (str, bytes, memoryview)):
            what = f"its {len(load(source, name)[0]):,} bytes"  # none has an error of its own
        raise damaged(name, f"{what} cannot be decoded ({text})", found=text) from error


def _opened(source: Source, name: str, channels: int) -> _File:
    with _readable(source, name), stream_of(source, name) as (stream, _):
        start = stream.read(6)
        stream.seek(0)
        if start == b"\x93NUMPY":
            file = _array(stream, source, channels)
        elif start[:2] in (b"II", b"MM"):
            file = _tiff(stream, source, name)
        else:
            file = _other(stream, name)
        if np.dtype(file.dtype).kind not in "buif":
            reason = f"its values are {file.dtype}: save integers or floating-point numbers"
            raise file_error(name, reason, code="image-unsupported", found=str(file.dtype))
        return file


def _in_memory(values: np.ndarray) -> _File:
    values = values[..., None] if values.ndim == 2 else values
    if values.ndim != 3:
        raise ValueError(f"the array has the shape {values.shape}, not (H, W, bands)")
    return _File(values.shape, values.dtype, lambda rows, columns: values[rows, columns])


def _array(stream: Any, source: Source, channels: int) -> _File:
    """A NumPy file (H, W), (H, W, bands), or (bands, H, W); memory-mapped on a disk."""
    where, how = (source, "r") if isinstance(source, str) else (stream, None)
    values = np.load(where, mmap_mode=how, allow_pickle=False)  # type: ignore[arg-type]
    if values.ndim == 3 and values.shape[2] != channels == values.shape[0]:
        values = values.transpose(1, 2, 0)
    return _in_memory(values)


def _other(stream: Any, name: str) -> _File:
    """A file that OpenCV reads, such as a PNG: its colors in the order red, green, blue."""
    refuse_cut(stream, header_of(stream, name), name, crc=True)
    stream.seek(0)
    content = np.frombuffer(stream.read(), np.uint8)
    flags = cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION
    values = cv2.imdecode(content, flags)
    if values is None:
        raise ValueError("not an image that OpenCV reads")
    return _in_memory(in_rgb_order(values))


def in_rgb_order(picture: np.ndarray) -> np.ndarray:
    """The bands of an OpenCV picture, with the colors in RGB order instead of BGR."""
    if picture.ndim == 2 or picture.shape[2] < 3:
        return picture
    return picture[..., [2, 1, 0, *range(3, picture.shape[2])]]


def tifffile_for(purpose: str) -> Any:
    """The module tifffile. Raises MissingExtra."""
    try:
        import tifffile
    except ImportError:
        raise MissingExtra("tifffile", "bands", purpose) from None
    return tifffile


def _tiff(stream: Any, source: Source, name: str) -> _File:
    """The first image of a TIFF; its strips or tiles are read and decoded where a part needs
    them.
    """
    pages = tifffile_for(f"reading {name}").TiffFile(stream).pages
    page, images = pages[0], [part for part in pages if not (part.is_reduced or part.is_mask)]
    if len(images) > 1:
        size = f"{page.imagelength} x {page.imagewidth}"
        reason = (
            f"holds {len(images)} images of {size}: save their bands as one image, such as an "
            "array (H, W, bands) by tifffile.imwrite(FILE, ARRAY, photometric='minisblack', "
            "planarconfig='contig'); without these, each row becomes an image"
        )
        raise file_error(name, reason, code="several-images", found=len(images))
    shape = page.imagelength, page.imagewidth, page.samplesperpixel
    tag = page.tags.get(NODATA_TAG)
    nodata = None if tag is None else float(str(tag.value).strip("\0 "))

    def read(rows: slice, columns: slice) -> np.ndarray:
        with stream_of(source, name) as (stream, _):
            return _decoded(page, stream, shape, rows, columns)

    return _File(shape, page.dtype, read, nodata)


def _decoded(
    page: Any, stream: Any, shape: tuple[int, ...], rows: slice, columns: slice
) -> np.ndarray:
    height, width, bands = shape
    tall, wide = (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, width)
    top, bottom, _ = rows.indices(height)
    left, right, _ = columns.indices(width)
    numbers = np.arange(len(page.dataoffsets)).reshape(-1, -(-height // tall), -(-width // wide))
    out = np.zeros((bottom - top, right - left, bands), page.dtype)
    needed = numbers[:, top // tall : -(-bottom // tall), left // wide : -(-right // wide)]
    for number in needed.ravel().tolist():
        stream.seek(page.dataoffsets[number])
        content = stream.read(page.databytecounts[number])
        if len(content) != page.databytecounts[number]:
            raise ValueError("the file ends early")
        segment, (plane, _, y, x, _), _ = page.decode(
            content or None, number, jpegtables=page.jpegtables
        )
        band = slice(plane, plane + 1) if len(numbers) > 1 else ALL
        y0, x0, y1, x1 = max(top, y), max(left, x), min(bottom, y + tall), min(right, x + wide)
        part = out[y0 - top : y1 - top, x0 - left : x1 - left, band]
        # None: a part that was never written
        part[...] = page.nodata if segment is None else segment[0, y0 - y : y1 - y, x0 - x : x1 - x]
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
