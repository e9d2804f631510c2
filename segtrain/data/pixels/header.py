"""Headers of image files, read without decoding pixels, and checks for files that are cut off."""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Union

from segtrain.data.stages import READ, took
from segtrain.data.storage import opened
from segtrain.errors import DataError, file_error

# A path, the content of a file, or an open file.
Stored = Union[str, "os.PathLike[str]", bytes, memoryview]
Source = Union[Stored, BinaryIO]

# 268 million pixels: 16384 x 16384. A header that claims more is taken for a decompression bomb.
MAX_PIXELS = 1 << 28
PNG = b"\x89PNG\r\n\x1a\n"


def damaged(name: str, reason: str, code: str = "image-damaged", **values: object) -> DataError:
    """The error for a file that does not hold one whole, undamaged image."""
    fix = "fetch or write the file again, or take it out of the data set"
    return file_error(name, f"{reason}: {fix}", code=code, **values)


@dataclass(frozen=True)
class Header:
    """The properties of an image in the header of its file."""

    format: str  # "png", "jpeg", or Pillow's name of another format
    height: int
    width: int
    channels: int = 3  # bands in the file, alpha and others included
    bits: int = 8  # per band
    color_type: int = -1  # PNG only
    orientation: int = 1  # EXIF; 1 means upright
    scan: int = 0  # JPEG only: byte offset of the first scan
    floating: bool = False  # samples are floating-point numbers
    pages: int = 1  # TIFF only: images in the file, without reduced copies
    palette: bytes = b""  # PNG with a palette only: red, green, blue of each index

    @property
    def banded(self) -> bool:
        """Whether further bands need not be alpha."""
        return self.format in ("tiff", "jpeg2000", "bands")

    @property
    def form(self) -> str:
        """Depth and bands in words, such as "16-bit RGBA". The depth of a palette image is that of
        its indices.
        """
        named = {
            1: "palette" if self.format == "png" and self.color_type == 3 else "gray",
            3: "RGB",
        }
        if not self.banded:
            named |= {2: "gray + alpha", 4: "CMYK" if self.format == "jpeg" else "RGBA"}
        bands = named.get(self.channels, f"{self.channels} bands")
        return f"{self.bits}-bit {'float ' if self.floating else ''}{bands}"


def load(source: Stored, name: str = "") -> tuple[bytes, str]:
    """Bytes of a file and its name for messages. Raises DataError if it cannot be read or is
    empty.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        content, name = bytes(source), name or "the given bytes"
    else:
        name = name or os.fspath(source)
        with READ, opened(source, name) as stream:
            content = stream.read(os.fstat(stream.fileno()).st_size)
        took(len(content))
    if not content:
        raise damaged(name, "the file has 0 bytes", "file-empty")
    return content, name


def read_header(source: Source, name: str = "") -> Header:
    """Format, size, and depth from the first bytes of a file; nothing is decoded.

    Raises DataError for a file that is missing, empty, not an image, or larger than ``MAX_PIXELS``.
    """
    with stream_of(source, name) as (stream, name):
        return header_of(stream, name)


def check_whole(source: Source, name: str = "") -> Header:
    """Read the header and check the file's end. Raises DataError like ``read_header``, and if the
    file is cut off.
    """
    with stream_of(source, name) as (stream, name):
        header = header_of(stream, name)
        refuse_cut(stream, header, name)
        return header


@contextlib.contextmanager
def stream_of(source: Source, name: str) -> Iterator[tuple[BinaryIO, str]]:
    """A stream at the source's beginning, and the name for messages. Raises DataError."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        yield io.BytesIO(source), name or "the given bytes"
    elif isinstance(source, (str, os.PathLike)):
        name = name or os.fspath(source)
        with opened(source, name) as stream:
            yield stream, name
    else:
        source.seek(0)
        yield source, name


def header_of(stream: BinaryIO, name: str) -> Header:
    start = stream.read(32)
    if not start:
        raise damaged(name, "the file has 0 bytes", "file-empty")
    try:
        if start.startswith(PNG):
            header = _png_header(stream, start)
        elif start.startswith(b"\xff\xd8\xff"):
            header = _jpeg_header(stream)
        else:
            header = _other_header(stream, name)
        if min(header.height, header.width) < 1:
            raise ValueError("no pixels")
    except (struct.error, KeyError, IndexError, ValueError):
        raise damaged(
            name, "the image header is damaged or cut off", "image-header-damaged"
        ) from None
    if header.height * header.width > MAX_PIXELS:
        raise file_error(
            name,
            f"{header.height} x {header.width} pixels exceed the limit of {MAX_PIXELS:,}: "
            "cut the image into tiles",
            code="image-too-large",
            found=(header.height, header.width),
            expected=MAX_PIXELS,
        )
    return header


def _png_header(stream: BinaryIO, start: bytes) -> Header:
    """The header in the chunks before the pixels: IHDR, PLTE (palette), and eXIf (orientation)."""
    width, height, bits, color_type = struct.unpack(">IIBB", start[16:26])
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color_type]
    orientation, palette, offset = 1, b"", len(PNG)
    for _ in range(1024):  # no file needs more chunks before its pixels
        stream.seek(offset)
        head = stream.read(8)
        length, kind = struct.unpack(">I4s", head) if len(head) == 8 else (0, b"IEND")
        if kind in (b"IDAT", b"IEND"):
            break
        if kind == b"eXIf":
            orientation = _orientation(b"Exif\0\0" + stream.read(min(length, 1 << 16))) or 1
        if kind == b"PLTE" and color_type == 3:
            palette = stream.read(min(length, 3 * 256))
        offset += 12 + length
    return Header("png", height, width, channels, bits, color_type, orientation, palette=palette)


def _jpeg_header(stream: BinaryIO) -> Header:
    """Walk the segments of a JPEG (ITU-T T.81, annex B) up to the first scan."""
    stream.seek(2)
    frame, orientation = None, 1
    while True:
        byte = stream.read(1)
        if byte != b"\xff":
            raise ValueError("a marker is missing")
        while byte == b"\xff":  # fill bytes may precede a marker
            byte = stream.read(1)
        marker = byte[0]
        (length,) = struct.unpack(">H", stream.read(2))
        if marker == 0xE1:
            orientation = _orientation(stream.read(length - 2)) or orientation
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            frame = struct.unpack(">BHHB", stream.read(6))
            stream.seek(length - 8, os.SEEK_CUR)
        elif marker == 0xDA:
            bits, height, width, channels = frame or (0, 0, 0, 0)
            return Header(
                "jpeg", height, width, channels, bits, orientation=orientation, scan=stream.tell()
            )
        else:
            stream.seek(length - 2, os.SEEK_CUR)


def _orientation(segment: bytes) -> int:
    """The EXIF orientation in an APP1 segment, 0 if it has none."""
    tiff = segment[6:]
    if not segment.startswith(b"Exif\0\0") or tiff[:2] not in (b"II", b"MM"):
        return 0
    order = "<" if tiff[:2] == b"II" else ">"
    with contextlib.suppress(struct.error):
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        for index in range(count):
            tag, _, _, value = struct.unpack_from(order + "HHIH", tiff, start + 2 + 12 * index)
            if tag == 0x0112:
                return value if 1 <= value <= 8 else 0
    return 0


def _other_header(stream: BinaryIO, name: str) -> Header:
    from PIL import Image

    stream.seek(0)
    tags, pages = _tiff_tags(stream)
    # Pillow has no mode for these
    if tags.get(277, 1) > 4 or (tags.get(277, 1) > 1 and tags.get(258, 8) > 8):
        return _tiff_header(tags, pages)
    stream.seek(0)
    try:
        with Image.open(stream) as picture:
            kind, bands, mode = str(picture.format).lower(), len(picture.getbands()), picture.mode
            orientation = picture.getexif().get(0x0112, 1)
            height, width = picture.height, picture.width
    except Image.DecompressionBombError as error:
        raise file_error(
            name, f"{error}: cut the image into tiles", code="image-too-large"
        ) from None
    except (OSError, SyntaxError, ValueError, TypeError) as error:
        if tags:
            reason = f"a TIFF of a kind that is not supported ({error}): save it as 8-bit RGB"
            raise file_error(name, reason, code="tiff-unsupported", found=str(error)) from None
        stream.seek(0)
        begin = stream.read(16)
        reason = f"not an image (it begins with {begin!r})"
        if begin == b"version https://":
            reason = "a pointer of Git LFS, and not the image: `git lfs pull`"
        raise damaged(name, reason, "not-an-image", found=begin) from None
    if tags:
        return _tiff_header(tags, pages)
    orientation = orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1
    bits = 16 if mode.startswith("I;16") else 32 if mode in ("I", "F") else 8
    if kind == "ppm" and (mode == "I" or (mode == "RGB" and _ppm_maxval(stream) == 0xFFFF)):
        bits = 16
    return Header(kind, height, width, bands, bits, orientation=orientation, floating=mode == "F")


def _ppm_maxval(stream: BinaryIO) -> int:
    """The Maxval (the value of white) of a PPM; 0 if none is found. Pillow scales the values if it
    is below 65535.
    """
    stream.seek(0)
    match = re.match(
        rb"P\d\s+(?:#[^\n]*\s+)*\d+\s+(?:#[^\n]*\s+)*\d+\s+(?:#[^\n]*\s+)*(\d+)\s",
        stream.read(4096),
    )
    return int(match[1]) if match else 0


def _tiff_header(tags: dict[int, int], pages: int) -> Header:
    """The header, with the size after the rotation in the tags, because the TIFF decoders apply
    that rotation.
    """
    size = tags.get(257, 0), tags.get(256, 0)
    upright = size[::-1] if tags.get(0x0112, 1) >= 5 else size
    return Header(
        "tiff",
        *upright,
        tags.get(277, 1),
        tags.get(258, 1),
        floating=tags.get(339, 1) == 3,
        pages=pages,
    )


def _tiff_tags(stream: BinaryIO) -> tuple[dict[int, int], int]:
    """Integer tags of the first image file directory, each with its first value, and the number of
    images in the file.

    Reads TIFF 6.0 and BigTIFF. Reduced copies and transparency masks are not counted. ({}, 1) for
    any other file.
    """
    head = stream.read(16)
    order = {b"II": "<", b"MM": ">"}.get(head[:2], "")
    version = struct.unpack(order + "H", head[2:4])[0] if order and len(head) >= 4 else 0
    if version not in (42, 43):
        return {}, 1
    # The forms of the number of entries and of an offset; the first offset stands at its own size.
    counts, offsets = ("Q", "Q") if version == 43 else ("H", "I")
    wide = struct.calcsize(offsets)
    tags: dict[int, int] = {}
    # offset -> whether it is an image, not a reduced copy or a mask
    directories: dict[int, bool] = {}
    with contextlib.suppress(struct.error, OverflowError, ValueError, OSError):
        (offset,) = struct.unpack_from(order + offsets, head, wide)
        while offset and offset not in directories and len(directories) < 4096:
            stream.seek(offset)
            (count,) = struct.unpack(order + counts, stream.read(struct.calcsize(counts)))
            after = stream.tell() + (4 + 2 * wide) * count
            # Of later directories, only tag 254 is needed (the kind of the image). It is always the
            # first entry.
            entries = _integers(stream, 1 if directories else min(count, 1000), order, offsets)
            tags = tags or entries
            directories[offset] = not entries.get(254, 0) & 5
            stream.seek(after)
            (offset,) = struct.unpack(order + offsets, stream.read(wide))
    return tags, max(1, sum(directories.values()))


def _integers(stream: BinaryIO, count: int, order: str, offsets: str) -> dict[int, int]:
    """Tag -> first value of the SHORT, LONG, and LONG8 entries among the next ``count`` entries of
    a directory.
    """
    wide, tags = struct.calcsize(offsets), dict[int, int]()
    rows = stream.read((4 + 2 * wide) * count)
    for tag, kind, values, value in struct.iter_unpack(f"{order}HH{offsets}{wide}s", rows):
        code = {3: "H", 4: "I", 16: "Q"}.get(kind)
        if code is None:
            continue
        # The entry holds its values, or else their offset.
        if struct.calcsize(code) * values > wide:
            stream.seek(struct.unpack(order + offsets, value)[0])
            value = stream.read(struct.calcsize(code))
        tags[tag] = struct.unpack_from(order + code, value)[0]
    return tags


def refuse_cut(stream: BinaryIO, header: Header, name: str, crc: bool = False) -> None:
    """Raise DataError for a JPEG without an end marker, a PNG without a last chunk, or (crc) with a
    damaged chunk.
    """
    size = stream.seek(0, os.SEEK_END)
    if header.format == "jpeg":
        # After the first scan, FF D9 can only be the end marker. Search the last 64 KiB, then all:
        # phones append video.
        for begin in (max(header.scan, size - (1 << 16)), header.scan):
            stream.seek(begin)
            if b"\xff\xd9" in stream.read():
                break
        else:
            raise damaged(
                name, f"the JPEG ends early, after {size:,} bytes", "image-ends-early", found=size
            )
    if header.format != "png":
        return
    offset, kind = len(PNG), b""
    while kind != b"IEND":
        stream.seek(offset)
        head = stream.read(8)
        length, kind = struct.unpack(">I4s", head) if len(head) == 8 else (size, b"")
        if offset + 12 + length > size:
            raise damaged(
                name, f"the PNG ends early, after {size:,} bytes", "image-ends-early", found=size
            )
        if crc and struct.pack(
            ">I", zlib.crc32(stream.read(length), zlib.crc32(kind))
        ) != stream.read(4):
            raise damaged(
                name, f"the PNG is damaged (checksum of a chunk at byte {offset:,})", byte=offset
            )
        offset += 12 + length
