"""What the tests of the native PNG reader share: a PNG writer by the letter of the specification,
and a reader of regions.

SEGTRAIN_NATIVE_LIBRARY names another build to test, say one with sanitizers or with zlib in place
of libdeflate.
"""

from __future__ import annotations

import struct
import zlib

import cv2
import numpy as np
import pytest

from segtrain.data.augment.geometry import Geometry
from segtrain.data.pixels import native
from segtrain.errors import DataError

built = pytest.mark.skipif(
    not native.available(), reason=f"no native decoder here: {native.describe()}"
)
GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
SAMPLES = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGB_ALPHA: 4}
KINDS = [(GRAY, bits) for bits in (1, 2, 4, 8, 16)] + [(PALETTE, bits) for bits in (1, 2, 4, 8)]
KINDS += [(color, bits) for color in (RGB, GRAY_ALPHA, RGB_ALPHA) for bits in (8, 16)]
MIXED = 5  # every filter, by chance


class Refused(Exception):
    """A code that is not 0: 1 a damaged file, 2 one that the reader leaves to others."""


def read(
    content: bytes, rect: tuple[int, int, int, int], channels: int, size: tuple[int, int]
) -> np.ndarray:
    """The pixels (channels 3) or ids (1) of a rectangle, through the call that makes samples."""
    top, left, bottom, right = rect
    crop, levels = (bottom - top, right - left), np.arange(256, dtype=np.uint8)
    image, mask = np.empty((*crop, 3), np.uint8), np.empty(crop, np.uint8)
    plain = np.zeros((*size, 3), np.uint8) if channels == 1 else np.zeros(size, np.uint8)
    try:
        done = native.crop(
            *((plain, content) if channels == 1 else (content, plain)),
            Geometry(size, size, top, left),
            crop,
            levels,
            np.ones(256, np.uint8),
            (0, 0, 0),
            255,
            image,
            mask,
            ("x.png", "x.png"),
        )
    except DataError as error:
        raise Refused(1, error.values["found"]) from None
    if done is None:
        raise Refused(2, "")
    return image if channels == 3 else mask


def refused(content: bytes, channels: int = 3, size: tuple[int, int] = (1, 1)) -> tuple:
    """The code, and the reason of a damaged file."""
    with pytest.raises(Refused) as caught:
        read(content, (0, 0, *size), channels, size)
    return caught.value.args


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def filtered(data: bytes, above: bytes, kind: int, pixel: int) -> bytes:
    """One row by the letter of the specification."""
    out = bytearray([kind])
    for i, x in enumerate(data):
        a = data[i - pixel] if i >= pixel else 0
        c = above[i - pixel] if i >= pixel else 0
        b = above[i]
        paeth = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
        out.append((x - (0, a, b, (a + b) // 2, paeth)[kind]) & 255)
    return bytes(out)


def write(
    values: np.ndarray, color: int, bits: int, kind: int = 0, extra: bytes = b"", **how: int
) -> bytes:
    """A PNG of values (H, W, samples); how: level of zlib, bytes a chunk has at most (piece)."""
    height, width = values.shape[:2]
    if bits == 16:
        rows = values.astype(">u2").reshape(height, -1).view(np.uint8)
    elif bits == 8:
        rows = values.astype(np.uint8).reshape(height, -1)
    else:
        single = (values.reshape(height, width, 1) >> np.arange(bits)[::-1]) & 1
        rows = np.packbits(single.reshape(height, -1).astype(np.uint8), axis=1)
    pixel = max(1, SAMPLES[color] * bits // 8)
    rng = np.random.default_rng(width)
    raw, above = b"", bytes(rows.shape[1])
    for row in rows:
        raw += filtered(
            row.tobytes(), above, int(rng.integers(5)) if kind == MIXED else kind, pixel
        )
        above = row.tobytes()
    return wrap(
        zlib.compress(raw, how.get("level", 6)),
        (width, height, bits, color),
        extra,
        how.get("piece", 1 << 30),
    )


def wrap(data: bytes, header: tuple[int, ...], extra: bytes = b"", piece: int = 1 << 30) -> bytes:
    head = struct.pack(">IIBBBBB", *header, *(0, 0, 0)[: 7 - len(header)])
    pieces = [chunk(b"IDAT", data[at : at + piece]) for at in range(0, len(data), piece)]
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + b"".join(pieces) + chunk(b"IEND", b"")
    )


def picture(height: int, width: int, color: int, bits: int, seed: int = 0) -> np.ndarray:
    """Values (H, W, samples): smooth with noise, so that filters meet all cases."""
    rng = np.random.default_rng(seed)
    most = (1 << bits) - 1
    y, x, s = np.mgrid[0:height, 0:width, 0 : SAMPLES[color]]
    smooth = (np.sin(x / 5 + s) + np.cos(y / 3) + 2) / 4 * most
    noise = rng.integers(-most // 8 - 1, most // 8 + 2, smooth.shape)
    wild = rng.integers(0, most + 1, smooth.shape)
    return np.where(rng.random(smooth.shape) < 0.1, wild, np.clip(smooth + noise, 0, most)).astype(
        np.int64
    )


def palette(size: int) -> bytes:
    return chunk(
        b"PLTE", np.random.default_rng(7).integers(0, 256, size * 3).astype(np.uint8).tobytes()
    )


def by_opencv(content: bytes) -> np.ndarray:
    picture = cv2.imdecode(
        np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    )
    assert picture is not None
    return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)


def regions(height: int, width: int, count: int) -> list[tuple[int, int, int, int]]:
    rng = np.random.default_rng(height * 1000 + width)
    found = [(0, 0, height, width)]
    for _ in range(count):
        top, left = int(rng.integers(height)), int(rng.integers(width))
        found.append(
            (top, left, int(rng.integers(top, height)) + 1, int(rng.integers(left, width)) + 1)
        )
    return found


def agree(content: bytes, expected: np.ndarray, count: int = 4) -> None:
    channels = 3 if expected.ndim == 3 else 1
    for top, left, bottom, right in regions(expected.shape[0], expected.shape[1], count):
        got = read(content, (top, left, bottom, right), channels, expected.shape[:2])
        np.testing.assert_array_equal(got, expected[top:bottom, left:right])


def label_map(height: int, width: int) -> np.ndarray:
    coarse = (
        np.random.default_rng(3)
        .integers(0, 30, ((height + 15) // 16, (width + 15) // 16))
        .astype(np.uint8)
    )
    return np.kron(coarse, np.ones((16, 16), np.uint8))[:height, :width]
