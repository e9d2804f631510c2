"""How do the bytes of a file become an RGB picture or a map of raw label ids?

Pixels come as they are stored: an EXIF orientation is never applied in silence (masks are drawn on stored pixels).
The heavy decoders (libjpeg-turbo, libpng through OpenCV) release the GIL, so threads decode in parallel.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from segtrain.data.pixels import native
from segtrain.data.pixels.header import (
    AGAIN,
    MAX_PIXELS,
    PNG,
    Header,
    Source,
    Stored,
    check_whole,
    header_of,
    load,
    read_header,
    refuse_cut,
    stream_of,
)
from segtrain.data.pixels.reading import PLAIN, Reading, narrowed, refuse_kind, refuse_pages, without_extra
from segtrain.errors import DataError

__all__ = [
    "MAX_PIXELS",
    "Header",
    "Reading",
    "Source",
    "all_bands",
    "check_whole",
    "decode_image",
    "decode_mask",
    "deep_values",
    "load",
    "palette_of",
    "read_header",
    "ready",
]

_GRAY, _PALETTE, _GRAY_ALPHA = 0, 3, 4  # PNG color types (PNG specification, section 11.2.2)


def decode_image(source: Stored, name: str = "", reading: Reading = PLAIN) -> np.ndarray:
    """uint8 (H, W, 3) RGB of a JPEG, PNG or any format of Pillow. Gray is repeated, alpha dropped.

    Of 16 bits the upper 8 stay, or those that ``reading.bits`` names. Raises DataError naming the file for what is missing, empty,
    cut off, damaged or no image at all, and for what cannot become RGB of 8 bits without a loss that nobody asked for.
    """
    content, name = load(source, name)
    header = header_of(io.BytesIO(content), name)
    refuse_kind(header, name)
    if reading.narrows(header):
        return narrowed(deep_values(content, header, name), reading, name, alpha=header.format == "png")
    if header.format in ("jpeg", "png"):
        made = native.whole(content, 3, (header.height, header.width), name)
        if made is not None:
            return made
    if header.format == "jpeg" and header.channels in (1, 3):
        return _decode_jpeg(content, header, name)
    if header.format == "png":
        refuse_cut(io.BytesIO(content), header, name, crc=True)
        picture = _imdecode(content, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION, name)
        return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
    if header.bits > 8 and header.format != "jpeg":
        return narrowed(deep_values(content, header, name), reading, name)
    if header.format == "tiff" and header.channels in (2, 4):
        array, mode = _pillow(content, name, bands=True)
        if mode == "RGB" and not reading.drop:  # the band without a known meaning is left out there
            array = _bands(_imdecode(content, cv2.IMREAD_UNCHANGED, name))
        return without_extra(array, reading, name)
    array, _ = _pillow(content, name, rgb=True)
    return array


def all_bands(content: bytes, name: str) -> np.ndarray:
    """An image of 8 bits with its alpha channel: uint8 (H, W, 2 or 4); without one (H, W, 3). Raises DataError."""
    return _pillow(content, name, bands=True)[0]


def ready(content: Any, name: str, reading: Reading) -> Any:
    """A file's content as the decoder of crops may take it: itself, or the pixels, where only ``decode_image`` reads it right."""
    if reading == PLAIN or isinstance(content, np.ndarray):
        return content
    header = header_of(io.BytesIO(content), name)
    plain = header.format == "jpeg" or not (reading.narrows(header) or header.format == "tiff")
    return content if plain else decode_image(content, name, reading)


def deep_values(content: bytes, header: Header, name: str) -> np.ndarray:
    """What an image of more than 8 bits a band stores, alpha and other bands included: uint16 (H, W) or (H, W, bands), RGB first.

    Raises DataError as ``decode_image`` does, and for values that do not fit into 16 bits.
    """
    refuse_kind(header, name)
    if header.format == "png":
        refuse_cut(io.BytesIO(content), header, name, crc=True)
    elif header.channels == 1 or header.format not in ("tiff", "ppm"):
        values, _ = _pillow(content, name)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise DataError(
                f"{name}: values from {values.min():,} to {values.max():,}, of which 8 bits cannot be chosen: "
                "save the image with 8 or 16 bits a band, 0 as black",
                code="values-beyond-16-bits",
                file=name,
                found=(int(values.min()), int(values.max())),
            )
        return values.astype(np.uint16)
    raw = _imdecode(content, cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION, name)
    if raw.dtype != np.uint16 or raw.shape[:2] != (header.height, header.width):
        raise DataError(
            f"{name}: {header.form} of a kind that is not read: save the image with 8 bits a band",
            code="image-unsupported",
            file=name,
            found=header.form,
        )
    if header.channels == 2 and raw.ndim == 3:  # gray with alpha comes as four bands
        return raw[..., [0, -1]]
    return _bands(raw)


def _bands(picture: np.ndarray) -> np.ndarray:
    """OpenCV's order of bands, BGR first, as RGB first."""
    return picture if picture.ndim == 2 else picture[..., [2, 1, 0, *range(3, picture.shape[2])]]


def decode_mask(source: Stored, name: str = "") -> np.ndarray:
    """Raw label values: (H, W) of the file's own integer type, or uint8 (H, W, 3) RGB where the mask is a picture.

    A palette mask gives its indices, not its colors; a 1, 2 or 4 bit mask its stored values. Alpha is dropped.
    Raises DataError as ``decode_image`` does, and for JPEG, whose compression smears labels.
    """
    content, name = load(source, name)
    header = header_of(io.BytesIO(content), name)
    if header.format == "jpeg":
        raise DataError(
            f"{name}: a JPEG mask has smeared labels at every border: `segtrain data convert` makes PNG of it",
            code="mask-lossy",
            file=name,
            found="jpeg",
        )
    if header.format == "webp" and b"VP8L" not in content[:64] and b"VP8 " in content[:4096]:
        raise DataError(
            f"{name}: a lossy WebP mask has smeared labels at every border: save masks as PNG, or as lossless WebP",
            code="mask-lossy",
            file=name,
            found="webp",
        )
    refuse_pages(header, name)
    if header.format != "png":
        array, _ = _pillow(content, name, ids=True)
        return array
    gray_alpha = header.color_type == _GRAY_ALPHA  # read here, where the alpha channel is looked at
    made = None if gray_alpha else native.whole(content, 1, (header.height, header.width), name)
    if made is not None:
        return made
    refuse_cut(io.BytesIO(content), header, name, crc=True)
    if header.color_type == _PALETTE or (header.color_type == _GRAY and b"tRNS" in content):
        content = _palette_as_gray(content)
    raw = _imdecode(content, cv2.IMREAD_UNCHANGED, name)
    if header.bits < 8:  # libpng spreads 1, 2 and 4 bits over 0..255
        raw = raw // np.uint8(255 // ((1 << header.bits) - 1))
    if raw.ndim == 2:
        return raw
    colors, alpha = raw[..., :-1], raw[..., -1]
    if raw.shape[2] in (2, 4) and (colors == colors[0, 0]).all() and (alpha != alpha[0, 0]).any():
        raise DataError(
            f"{name}: all pixels have one color and only their alpha differs, which is not read: save class ids in one channel",
            code="mask-in-alpha",
            file=name,
        )
    if header.color_type == _GRAY_ALPHA:
        return np.ascontiguousarray(raw[..., 0])
    if raw.dtype != np.uint8:
        raise DataError(
            f"{name}: a color mask of 16 bits a channel: save class ids in one channel, or colors in 8 bits",
            code="mask-16-bit-colors",
            file=name,
        )
    return cv2.cvtColor(raw, cv2.COLOR_BGRA2RGB if raw.shape[2] == 4 else cv2.COLOR_BGR2RGB)


def palette_of(source: Source, name: str = "") -> dict[int, int]:
    """Index -> 0xRRGGBB of a picture with a palette; empty for others. Raises DataError for what is no picture.

    Of a PNG nothing behind its header is read, of other formats the pixels only where there is a palette.
    """
    from PIL import Image

    header = read_header(source, name)
    flat: Sequence[int] = header.palette
    if header.color_type == -1:  # no PNG
        try:
            with stream_of(source, name) as (stream, name), Image.open(stream) as picture:
                flat = (picture.getpalette("RGB") or []) if picture.mode == "P" else []
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(
                f"{name}: cannot be decoded ({error}): {AGAIN}", code="image-damaged", file=name, found=str(error)
            ) from None
    return {place: int.from_bytes(bytes(flat[3 * place : 3 * place + 3]), "big") for place in range(len(flat) // 3)}


def _palette_as_gray(content: bytes) -> bytes:
    """The same PNG declared gray, without its palette: the decoder then gives indices instead of colors."""
    parts, place, kind = [PNG], len(PNG), b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", content, place)
        body = content[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            body = body[:9] + bytes([_GRAY]) + body[10:]
        if kind in (b"IHDR", b"IDAT", b"IEND"):
            parts.append(struct.pack(">I", length) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
        place += 12 + length
    return b"".join(parts)


def _imdecode(content: bytes, flags: int, name: str) -> np.ndarray:
    try:
        picture = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    except cv2.error as error:
        raise DataError(
            f"{name}: cannot be decoded ({' '.join(str(error).split())}): {AGAIN}",
            code="image-damaged",
            file=name,
            found=str(error),
        ) from None
    if picture is None:
        raise DataError(f"{name}: cannot be decoded, its pixels are damaged: {AGAIN}", code="image-damaged", file=name)
    return picture


def _decode_jpeg(content: bytes, header: Header, name: str) -> np.ndarray:
    """By simplejpeg where it is installed (twice as fast, the same pixels), else by OpenCV."""
    refuse_cut(io.BytesIO(content), header, name)
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
        raise DataError(
            f"{name}: the JPEG is damaged ({error}): {AGAIN}", code="image-damaged", file=name, found=str(error)
        ) from None


def _pillow(
    content: bytes, name: str, rgb: bool = False, bands: bool = False, ids: bool = False
) -> tuple[np.ndarray, Any]:
    """Any format of Pillow, and its mode: uint8 (H, W, 3) with rgb, with bands also a band beyond it, else raw values (H, W) or RGB.

    With ids floating-point values that are whole numbers become integers.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as picture:
            _refuse_raw_ycbcr(picture, name)
            picture.load()
            mode = picture.mode
            if bands and mode in ("LA", "RGBA", "RGBX"):
                return np.array(picture), mode
            if rgb or bands or (mode not in ("1", "L", "P", "LA", "PA", "F") and not mode.startswith("I")):
                return np.array(picture.convert("RGB")), mode
            array = np.array(picture)
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise DataError(
            f"{name}: cannot be decoded ({error}): {AGAIN}", code="image-damaged", file=name, found=str(error)
        ) from None
    if mode in ("LA", "PA"):
        array = array[..., 0]
    if (
        mode == "F"
        and ids
        and np.isfinite(array).all()
        and (array == np.rint(array)).all()
        and abs(array).max() < 1 << 24
    ):
        array, mode = array.astype(np.int32), "I"
    if mode == "F":
        raise DataError(
            f"{name}: a mask of floating-point values that are no whole numbers: save class ids as integers",
            code="mask-not-integer",
            file=name,
        )
    return np.ascontiguousarray(array.astype(np.uint8) if mode == "1" else array), mode


def _refuse_raw_ycbcr(picture: Any, name: str) -> None:
    """Older Pillow (12.1, not 13.0) takes three bands of uncompressed YCbCr for four, and then calls the file truncated."""
    tags = getattr(picture, "tag_v2", {})
    if (
        tags.get(262) == 6
        and tags.get(277) == 3
        and any(tile[0] == "raw" and tile[3][0] == "RGBX" for tile in picture.tile)
    ):
        raise DataError(
            f"{name}: an uncompressed TIFF in YCbCr, which the installed Pillow cannot read: pip install -U pillow, "
            "or save it as RGB",
            code="pillow-too-old",
            file=name,
        )
