"""Decoders of image files: to RGB pixels, or to a map of raw label ids.

Pixels are returned as they are stored, because masks are drawn on stored pixels. An EXIF
orientation is applied only in TIFF files.
The heavy decoders (libjpeg-turbo, libpng through OpenCV) release the GIL, so threads decode in
parallel.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from segtrain.data.pixels import native
from segtrain.data.pixels.bands import BandImage, in_rgb_order
from segtrain.data.pixels.header import MAX_PIXELS as MAX_PIXELS
from segtrain.data.pixels.header import (
    Header,
    Source,
    Stored,
    damaged,
    header_of,
    load,
    refuse_cut,
    stream_of,
)
from segtrain.data.pixels.header import check_whole as check_whole
from segtrain.data.pixels.header import read_header as read_header
from segtrain.data.pixels.reading import (
    PLAIN,
    Reading,
    narrowed,
    refuse_kind,
    refuse_pages,
    without_extra,
)
from segtrain.errors import file_error

# OpenCV's own lines about files that it cannot read would hide the one error that names the file.
# up to OpenCV 4.12, and since 4.13
_set_log_level = getattr(cv2, "setLogLevel", None) or cv2.utils.logging.setLogLevel
_set_log_level(0)  # silent
_GRAY, _PALETTE, _GRAY_ALPHA = 0, 3, 4  # PNG color types (PNG specification, section 11.2.2)


def decode_image(source: Any, name: str = "", reading: Reading = PLAIN) -> np.ndarray:
    """uint8 (H, W, 3) RGB of a JPEG, a PNG, or any format of Pillow. Gray is repeated, alpha
    dropped. An array of pixels is returned as it is, and the stored values of a BandImage.

    16-bit values keep their upper 8 bits. If only ``reading.bits`` bits are in use, they keep the
    upper 8 of these. Raises DataError for a file that is missing, empty, cut off, damaged, or not
    an image, for values of more than ``reading.bits`` bits, and for extra bands that are in use,
    unless ``reading.drop`` is set.
    """
    if isinstance(source, np.ndarray):
        return source
    if isinstance(source, BandImage):
        return source.read()[0]
    content, name = load(source, name)
    header = header_of(io.BytesIO(content), name)
    refuse_kind(header, name)
    if (
        header.bits > 8
        and header.format != "jpeg"
        and (header.format != "png" or reading.narrows(header))
    ):
        return narrowed(
            deep_values(content, header, name), reading, name, alpha=header.format == "png"
        )
    if header.format in ("jpeg", "png"):
        made = native.whole(content, 3, (header.height, header.width), name)
        if made is not None:
            return made
    if header.format == "jpeg" and header.channels in (1, 3):
        return _decode_jpeg(content, header, name)
    if header.format == "png":
        refuse_cut(io.BytesIO(content), header, name, crc=True)
        return _opencv_rgb(content, name)
    if header.banded and header.channels in (2, 4):
        array, mode = _pillow(content, name, bands=True)
        if mode == "RGB" and not reading.drop:  # Pillow leaves out the band without a known meaning
            array = in_rgb_order(_imdecode(content, cv2.IMREAD_UNCHANGED, name))
        return without_extra(array, reading, name)
    return _pillow(content, name, rgb=True)[0]


def all_bands(content: bytes, name: str) -> np.ndarray:
    """An 8-bit image: uint8 (H, W, 2 or 4) with its alpha channel, (H, W, 3) if it has none. Raises
    DataError.
    """
    return _pillow(content, name, bands=True)[0]


def ready(content: Any, name: str, reading: Reading) -> Any:
    """The image of a StoredSample: its bytes, or its decoded pixels if ``write_crop`` cannot apply
    ``reading``.
    """
    if reading == PLAIN or isinstance(content, (np.ndarray, BandImage)):
        return content
    header = header_of(io.BytesIO(content), name)
    plain = header.format == "jpeg" or not (reading.narrows(header) or header.banded)
    return content if plain else decode_image(content, name, reading)


def deep_values(content: bytes, header: Header, name: str) -> np.ndarray:
    """The values of an image with more than 8 bits per band: uint16 (H, W), or (H, W, bands) that
    begin with RGB.

    Raises DataError as ``decode_image`` does, and for values that do not fit into 16 bits.
    """
    refuse_kind(header, name)
    if header.format == "png":
        refuse_cut(io.BytesIO(content), header, name, crc=True)
    elif header.channels == 1 or header.format not in ("tiff", "ppm"):
        values, _ = _pillow(content, name)
        if values.min() < 0 or values.max() > 0xFFFF:
            reason = f"the values from {values.min():,} to {values.max():,} do not fit into 16 bits"
            fix = "save the image with 8 or 16 bits per band, 0 as black"
            span = int(values.min()), int(values.max())
            raise file_error(name, f"{reason}: {fix}", code="values-beyond-16-bits", found=span)
        return values.astype(np.uint16)
    raw = _imdecode(content, cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION, name)
    if raw.dtype != np.uint16 or raw.shape[:2] != (header.height, header.width):
        reason = f"{header.form} of this kind is not supported: save the image with 8 bits per band"
        raise file_error(name, reason, code="image-unsupported", found=header.form)
    if header.channels == 2 and raw.ndim == 3:  # gray with alpha comes as four bands
        return raw[..., [0, -1]]
    return in_rgb_order(raw)


def decode_mask(source: Stored, name: str = "") -> np.ndarray:
    """Raw label values: (H, W) of the file's own integer type, or uint8 (H, W, 3) RGB for a mask of
    colors.

    For a palette mask, these are the indices, not the colors; for a mask of 1, 2, or 4 bits, the
    stored values. Alpha is dropped. Raises DataError as ``decode_image`` does, and for JPEG,
    lossy JPEG 2000, and lossy WebP, which change ids at borders.
    """
    content, name = load(source, name)
    header = header_of(io.BytesIO(content), name)
    if header.format == "jpeg":
        reason = (
            "JPEG changes the labels of a mask at class borders: `segtrain data convert` "
            "makes it a PNG"
        )
        raise file_error(name, reason, code="mask-lossy", found="jpeg")
    # In JPEG 2000, byte 13 of the segment COD names the wavelets (ITU-T T.800, A.6.1).
    wavelets = content.find(b"\xffR\0") + 13
    if (header.format == "jpeg2000" and content[wavelets : wavelets + 1] == b"\0") or (
        header.format == "webp" and b"VP8L" not in content[:64] and b"VP8 " in content[:4096]
    ):
        reason = (
            f"lossy {header.format} changes the labels of a mask at class borders: save it as PNG"
        )
        raise file_error(name, reason, code="mask-lossy", found=header.format)
    refuse_pages(header, name)
    if header.channels > 4:
        reason = f"a mask of {header.channels} bands: save class ids in one band"
        raise file_error(name, reason, code="mask-bands", found=header.channels)
    if header.format != "png":
        return _pillow(content, name, ids=True)[0]
    # such a file skips the native decoder, which ignores alpha
    gray_alpha = header.color_type == _GRAY_ALPHA
    made = None if gray_alpha else native.whole(content, 1, (header.height, header.width), name)
    if made is not None:
        return made
    refuse_cut(io.BytesIO(content), header, name, crc=True)
    if header.color_type == _PALETTE:
        return _pillow(content, name)[0]
    # With IMREAD_UNCHANGED, a gray mask with a transparent value would get an alpha channel.
    flags = cv2.IMREAD_ANYDEPTH if header.color_type == _GRAY else cv2.IMREAD_UNCHANGED
    raw = _imdecode(content, flags, name)
    if header.bits < 8:  # libpng spreads 1, 2 and 4 bits over 0..255
        raw = raw // np.uint8(255 // ((1 << header.bits) - 1))
    if raw.ndim == 2:
        return raw
    colors, alpha = raw[..., :-1], raw[..., -1]
    if raw.shape[2] in (2, 4) and (colors == colors[0, 0]).all() and (alpha != alpha[0, 0]).any():
        reason = (
            "all pixels have one color and only their alpha differs: save class ids in one channel"
        )
        raise file_error(name, reason, code="mask-in-alpha")
    if gray_alpha:
        return np.ascontiguousarray(raw[..., 0])
    if raw.dtype != np.uint8:
        reason = (
            "a color mask of 16 bits per channel: save class ids in one channel, or colors "
            "in 8 bits"
        )
        raise file_error(name, reason, code="mask-16-bit-colors")
    return cv2.cvtColor(raw, cv2.COLOR_BGRA2RGB if raw.shape[2] == 4 else cv2.COLOR_BGR2RGB)


def palette_of(source: Source, name: str = "") -> dict[int, int]:
    """Index -> 0xRRGGBB of an image with a palette; empty for others. Raises DataError for a file
    that is not an image.

    For a PNG, only the header is read. For other formats with a palette, the pixels are decoded,
    too.
    """
    from PIL import Image

    header = read_header(source, name)
    flat: Sequence[int] = header.palette
    if header.color_type == -1:  # not a PNG
        try:
            with stream_of(source, name) as (stream, name), Image.open(stream) as picture:
                flat = (picture.getpalette("RGB") or []) if picture.mode == "P" else []
        except (OSError, SyntaxError, ValueError) as error:
            raise damaged(name, f"cannot be decoded ({error})", found=str(error)) from None
    return {
        index: int.from_bytes(bytes(flat[3 * index : 3 * index + 3]), "big")
        for index in range(len(flat) // 3)
    }


def _imdecode(content: bytes, flags: int, name: str) -> np.ndarray:
    reason = "its pixels are damaged"
    try:
        picture = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    except cv2.error as error:
        picture, reason = None, " ".join(str(error).split())
    if picture is None:
        raise damaged(name, f"cannot be decoded ({reason})", found=reason)
    return picture


def _opencv_rgb(content: bytes, name: str) -> np.ndarray:
    bgr = _imdecode(content, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION, name)
    return cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)


def _decode_jpeg(content: bytes, header: Header, name: str) -> np.ndarray:
    """Decode with simplejpeg if it is installed (twice as fast, the same pixels), otherwise with
    OpenCV.
    """
    refuse_cut(io.BytesIO(content), header, name)
    try:
        import simplejpeg
    except ImportError:
        return _opencv_rgb(content, name)
    try:
        return simplejpeg.decode_jpeg(content, "RGB")
    except ValueError as error:
        if "extraneous" in str(error).lower():  # harmless padding that some cameras write
            return simplejpeg.decode_jpeg(content, "RGB", strict=False)
        raise damaged(name, f"the JPEG is damaged ({error})", found=str(error)) from None


def _pillow(
    content: bytes, name: str, rgb: bool = False, bands: bool = False, ids: bool = False
) -> tuple[np.ndarray, Any]:
    """The pixels of an image in any format that Pillow reads, and its mode.

    rgb: convert to uint8 (H, W, 3). bands: the same, but an image with alpha keeps all of its
    bands. With neither, gray and palette images give their raw values (H, W), and others give RGB.
    ids: floating-point values that are whole numbers become integers.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()
            mode = picture.mode
            if bands and mode in ("LA", "RGBA", "RGBX"):
                return np.array(picture), mode
            if (
                rgb
                or bands
                or (mode not in ("1", "L", "P", "LA", "PA", "F") and not mode.startswith("I"))
            ):
                return np.array(picture.convert("RGB")), mode
            array = np.array(picture)
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        # Pillow cannot read every TIFF of one band. A file is damaged if OpenCV cannot read it
        # either.
        tiff = content[:2] in (b"II", b"MM") and not (rgb or bands)
        array = _imdecode(content, cv2.IMREAD_UNCHANGED, name) if tiff else np.empty(0)
        if array.ndim != 2:
            raise damaged(name, f"cannot be decoded ({error})", found=str(error)) from None
        mode = "F" if array.dtype.kind == "f" else "I"
    if mode in ("LA", "PA"):
        array = array[..., 0]
    if mode == "F":
        exact = abs(array) < 1 << 24
        if not (ids and exact.all() and (array == np.rint(array)).all()):
            reason = (
                "a mask of floating-point values that are not whole numbers: save class ids "
                "as integers"
            )
            raise file_error(name, reason, code="mask-not-integer")
        array, mode = array.astype(np.int32), "I"
    return np.ascontiguousarray(array.astype(np.uint8) if mode == "1" else array), mode
