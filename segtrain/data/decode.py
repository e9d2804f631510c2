"""How do the bytes of a file become an RGB picture or a map of raw label ids?

Pixels come as they are stored: an EXIF orientation is never applied in silence (masks are drawn on stored pixels).
The heavy decoders (libjpeg-turbo, libpng through OpenCV) release the GIL, so threads decode in parallel.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Union

import cv2
import numpy as np

from segtrain.data import native
from segtrain.data.stages import READ, took
from segtrain.errors import DataError

Source = Union[str, "os.PathLike[str]", bytes, memoryview]

MAX_PIXELS = 1 << 28  # 268 million pixels: 16384 x 16384. A header that claims more is taken for a decompression bomb.
_AGAIN = "fetch or write the file again, or take it out of the data set"
_PNG = b"\x89PNG\r\n\x1a\n"
_GREY, _PALETTE, _GREY_ALPHA = 0, 3, 4  # PNG colour types (PNG specification, section 11.2.2)


@dataclass(frozen=True)
class Header:
    """What a file says about its picture before any pixel is decoded."""

    format: str  # "png", "jpeg", or Pillow's name of another format
    height: int
    width: int
    channels: int = 3
    bits: int = 8  # bits a sample
    colour_type: int = -1  # PNG only
    orientation: int = 1  # EXIF; 1 means upright (JPEG only)
    scan: int = 0  # JPEG only: byte offset of the first scan


def load(source: Source, name: str = "") -> tuple[bytes, str]:
    """Bytes of a file and its name for messages. Raises DataError when it cannot be read or holds nothing."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        content, name = bytes(source), name or "the given bytes"
    else:
        name = name or os.fspath(source)
        try:
            with READ:
                content = Path(source).read_bytes()
            took(len(content))
        except OSError as error:
            raise DataError(
                f"{name}: cannot be read ({error.strerror or error}): check the path and its rights"
            ) from None
    if not content:
        raise DataError(f"{name}: the file has 0 bytes: {_AGAIN}")
    return content, name


def read_header(source: Source, name: str = "") -> Header:
    """Format, size and depth from the first bytes of a file; nothing is decoded.

    Raises DataError for a file that is missing, empty, no image, or larger than ``MAX_PIXELS``.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        content, name = load(source, name)
        return _header(io.BytesIO(content), name)
    name = name or os.fspath(source)
    try:
        with open(source, "rb") as stream:
            return _header(stream, name)
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error}): check the path and its rights") from None


def check_whole(source: Source, name: str = "") -> Header:
    """The header, after a look at the file's end: a cut-off PNG or JPEG is found without decoding it.

    Raises DataError as ``read_header`` does, and for a file that ends early.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        content, name = load(source, name)
        header = _header(io.BytesIO(content), name)
        _refuse_cut(io.BytesIO(content), header, name)
        return header
    name = name or os.fspath(source)
    try:
        with open(source, "rb") as stream:
            header = _header(stream, name)
            _refuse_cut(stream, header, name)
            return header
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error}): check the path and its rights") from None


def decode_image(source: Source, name: str = "") -> np.ndarray:
    """uint8 (H, W, 3) RGB of a JPEG, PNG or any format of Pillow. Grey is repeated, alpha dropped, 16 bits cut to 8.

    Raises DataError naming the file for what is missing, empty, cut off, damaged or no image at all.
    """
    content, name = load(source, name)
    header = _header(io.BytesIO(content), name)
    if header.format in ("jpeg", "png"):
        made = native.whole(content, 3, (header.height, header.width), name)
        if made is not None:
            return made
    if header.format == "jpeg" and header.channels in (1, 3):
        return _decode_jpeg(content, header, name)
    if header.format == "png":
        _refuse_cut(io.BytesIO(content), header, name, crc=True)
        picture = _imdecode(content, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION, name)
        return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
    array, _ = _pillow(content, name, rgb=True)
    return array


def decode_mask(source: Source, name: str = "") -> np.ndarray:
    """Raw label values: (H, W) of the file's own integer type, or uint8 (H, W, 3) RGB where the mask is a picture.

    A palette mask gives its indices, not its colours; a 1, 2 or 4 bit mask its stored values. Alpha is dropped.
    Raises DataError as ``decode_image`` does, and for JPEG, whose compression smears labels.
    """
    content, name = load(source, name)
    header = _header(io.BytesIO(content), name)
    if header.format == "jpeg":
        raise DataError(f"{name}: a JPEG mask has smeared labels at every border: save masks as PNG")
    if header.format != "png":
        array, _ = _pillow(content, name, rgb=False)
        return array
    made = native.whole(content, 1, (header.height, header.width), name)
    if made is not None:
        return made
    _refuse_cut(io.BytesIO(content), header, name, crc=True)
    if header.colour_type == _PALETTE or (header.colour_type == _GREY and b"tRNS" in content):
        content = _palette_as_grey(content)
    raw = _imdecode(content, cv2.IMREAD_UNCHANGED, name)
    if header.bits < 8:  # libpng spreads 1, 2 and 4 bits over 0..255
        raw = raw // np.uint8(255 // ((1 << header.bits) - 1))
    if raw.ndim == 2:
        return raw
    if header.colour_type == _GREY_ALPHA:
        return np.ascontiguousarray(raw[..., 0])
    if raw.dtype != np.uint8:
        raise DataError(
            f"{name}: a colour mask of 16 bits a channel: save class ids in one channel, or colours in 8 bits"
        )
    return cv2.cvtColor(raw, cv2.COLOR_BGRA2RGB if raw.shape[2] == 4 else cv2.COLOR_BGR2RGB)


def _header(stream: BinaryIO, name: str) -> Header:
    start = stream.read(32)
    if not start:
        raise DataError(f"{name}: the file has 0 bytes: {_AGAIN}")
    try:
        if start.startswith(_PNG):
            width, height, bits, colour_type = struct.unpack(">IIBB", start[16:26])
            channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour_type]
            header = Header("png", height, width, channels, bits, colour_type)
        elif start.startswith(b"\xff\xd8\xff"):
            header = _jpeg_header(stream)
        else:
            header = _other_header(stream, name)
    except (struct.error, KeyError, IndexError, ValueError):
        raise DataError(f"{name}: the image header is damaged or cut off: {_AGAIN}") from None
    if header.height < 1 or header.width < 1 or header.height * header.width > MAX_PIXELS:
        raise DataError(
            f"{name}: the header claims {header.height} x {header.width} pixels, "
            f"at most {MAX_PIXELS:,} are read: cut the picture into tiles"
        )
    return header


def _jpeg_header(stream: BinaryIO) -> Header:
    """Walk the segments of a JPEG (ITU-T T.81, annex B) up to the first scan."""
    stream.seek(2)
    frame, orientation = None, 1
    while True:
        byte = stream.read(1)
        if byte != b"\xff":
            raise ValueError("no marker where one must be")
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
            return Header("jpeg", height, width, channels, bits, orientation=orientation, scan=stream.tell())
        else:
            stream.seek(length - 2, os.SEEK_CUR)


def _orientation(segment: bytes) -> int:
    """The EXIF orientation in an APP1 segment, 0 if it has none."""
    tiff = segment[6:]
    if not segment.startswith(b"Exif\0\0") or tiff[:2] not in (b"II", b"MM"):
        return 0
    order = "<" if tiff[:2] == b"II" else ">"
    try:
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        for index in range(count):
            tag, _, _, value = struct.unpack_from(order + "HHIH", tiff, start + 2 + 12 * index)
            if tag == 0x0112:
                return value if 1 <= value <= 8 else 0
    except struct.error:
        pass
    return 0


def _other_header(stream: BinaryIO, name: str) -> Header:
    from PIL import Image

    stream.seek(0)
    try:
        with Image.open(stream) as picture:
            return Header(str(picture.format).lower(), picture.height, picture.width, len(picture.getbands()))
    except Image.DecompressionBombError as error:
        raise DataError(f"{name}: {error}: cut the picture into tiles") from None
    except (OSError, SyntaxError, ValueError):
        stream.seek(0)
        begin = stream.read(16)
        raise DataError(f"{name}: not an image (it begins with {begin!r}): {_AGAIN}") from None


def _refuse_cut(stream: BinaryIO, header: Header, name: str, crc: bool = False) -> None:
    """Raise DataError if a PNG lacks its last chunk (or, with crc, has a damaged one) or a JPEG its end marker."""
    size = stream.seek(0, os.SEEK_END)
    if header.format == "jpeg":
        # After the first scan the two bytes FF D9 can only be the end marker; some cameras append to it.
        stream.seek(max(header.scan, size - (1 << 16)))
        if b"\xff\xd9" not in stream.read():
            raise DataError(f"{name}: the JPEG ends early, after {size:,} bytes: {_AGAIN}")
    if header.format != "png":
        return
    place, kind = len(_PNG), b""
    while kind != b"IEND":
        stream.seek(place)
        head = stream.read(8)
        length, kind = struct.unpack(">I4s", head) if len(head) == 8 else (size, b"")
        if place + 12 + length > size:
            raise DataError(f"{name}: the PNG ends early, after {size:,} bytes: {_AGAIN}")
        if crc and struct.pack(">I", zlib.crc32(stream.read(length), zlib.crc32(kind))) != stream.read(4):
            raise DataError(f"{name}: the PNG is damaged (checksum of a chunk at byte {place:,}): {_AGAIN}")
        place += 12 + length


def _palette_as_grey(content: bytes) -> bytes:
    """The same PNG declared grey, without its palette: the decoder then gives indices instead of colours."""
    parts, place, kind = [_PNG], len(_PNG), b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", content, place)
        body = content[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            body = body[:9] + bytes([_GREY]) + body[10:]
        if kind in (b"IHDR", b"IDAT", b"IEND"):
            parts.append(struct.pack(">I", length) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
        place += 12 + length
    return b"".join(parts)


def _imdecode(content: bytes, flags: int, name: str) -> np.ndarray:
    try:
        picture = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    except cv2.error as error:
        raise DataError(f"{name}: cannot be decoded ({' '.join(str(error).split())}): {_AGAIN}") from None
    if picture is None:
        raise DataError(f"{name}: cannot be decoded, its pixels are damaged: {_AGAIN}")
    return picture


def _decode_jpeg(content: bytes, header: Header, name: str) -> np.ndarray:
    """By simplejpeg where it is installed (twice as fast, the same pixels), else by OpenCV."""
    _refuse_cut(io.BytesIO(content), header, name)
    try:
        import simplejpeg
    except ImportError:
        picture = _imdecode(content, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION, name)
        return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
    try:
        return simplejpeg.decode_jpeg(content, "RGB")
    except ValueError as error:
        if "extraneous" in str(error).lower():  # harmless padding that some cameras write
            return simplejpeg.decode_jpeg(content, "RGB", strict=False)
        raise DataError(f"{name}: the JPEG is damaged ({error}): {_AGAIN}") from None


def _pillow(content: bytes, name: str, rgb: bool) -> tuple[np.ndarray, Any]:
    """Any format of Pillow: uint8 (H, W, 3) with rgb, else raw values (H, W) or RGB."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()
            mode = picture.mode
            if mode.startswith(("I", "F")) and rgb:
                grey = (np.clip(np.asarray(picture), 0, 65535).astype(np.uint16) >> 8).astype(np.uint8)
                return np.repeat(grey[..., None], 3, axis=2), mode
            if rgb or (mode not in ("1", "L", "P", "LA", "PA", "F") and not mode.startswith("I")):
                return np.array(picture.convert("RGB")), mode
            array = np.array(picture)
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise DataError(f"{name}: cannot be decoded ({error}): {_AGAIN}") from None
    if mode in ("LA", "PA"):
        array = array[..., 0]
    if mode == "F":
        raise DataError(f"{name}: a mask of floating-point values: save class ids as integers")
    return np.ascontiguousarray(array.astype(np.uint8) if mode == "1" else array), mode
