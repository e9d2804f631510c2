"""What do the tests of the native PNG reader share: a PNG writer by the letter of the specification, and calls of the library.

SEGTRAIN_NATIVE_LIBRARY names another build to test, say one with sanitizers or with zlib in place of libdeflate.
"""

from __future__ import annotations

import ctypes
import struct
import zlib

import cv2
import numpy as np
import pytest

from segtrain.data.pixels import native

LIBRARY = native.LIBRARY
GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
SAMPLES = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGB_ALPHA: 4}
KINDS = [(GRAY, bits) for bits in (1, 2, 4, 8, 16)] + [(PALETTE, bits) for bits in (1, 2, 4, 8)]
KINDS += [(color, bits) for color in (RGB, GRAY_ALPHA, RGB_ALPHA) for bits in (8, 16)]
MIXED = 5  # every filter, by chance


def open_library() -> ctypes.CDLL:
    """Skips the test where the library was not built."""
    if not LIBRARY.exists():
        pytest.skip(f"the native decoder is not built: no {LIBRARY.name}")
    opened = ctypes.CDLL(str(LIBRARY))
    numbers = [ctypes.c_int] * 5
    opened.st_png_region.argtypes = [ctypes.c_char_p, ctypes.c_size_t, *numbers, ctypes.c_void_p, ctypes.c_size_t]
    opened.st_png_region.argtypes += [ctypes.c_char_p]
    number = ctypes.POINTER(ctypes.c_int)
    opened.st_png_size.argtypes = [ctypes.c_char_p, ctypes.c_size_t, number, number, ctypes.c_char_p]
    return opened


class Refused(Exception):
    """A code that is not 0: 1 a damaged file, 2 one that the reader leaves to others."""


def read(library: ctypes.CDLL, content: bytes, rect: tuple[int, int, int, int], channels: int) -> np.ndarray:
    top, left, bottom, right = rect
    shape = (max(bottom - top, 0), max(right - left, 0)) + ((3,) if channels == 3 else ())
    # Two bytes at the end of each row must stay as they are.
    wide = np.full((shape[0], shape[1] * channels + 2), 0xEE, np.uint8)
    message = ctypes.create_string_buffer(256)
    code = library.st_png_region(
        content, len(content), *rect, channels, wide.ctypes.data, wide.strides[0] if wide.size else 0, message
    )
    if code:
        raise Refused(code, message.value.decode())
    assert (wide[:, -2:] == 0xEE).all()
    return np.ascontiguousarray(wide[:, :-2]).reshape(shape)


def refused(
    library: ctypes.CDLL, content: bytes, channels: int = 3, rect: tuple[int, int, int, int] = (0, 0, 1, 1)
) -> tuple:
    with pytest.raises(Refused) as caught:
        read(library, content, rect, channels)
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


def write(values: np.ndarray, color: int, bits: int, kind: int = 0, extra: bytes = b"", **how: int) -> bytes:
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
        raw += filtered(row.tobytes(), above, int(rng.integers(5)) if kind == MIXED else kind, pixel)
        above = row.tobytes()
    return wrap(zlib.compress(raw, how.get("level", 6)), (width, height, bits, color), extra, how.get("piece", 1 << 30))


def wrap(data: bytes, header: tuple[int, ...], extra: bytes = b"", piece: int = 1 << 30) -> bytes:
    head = struct.pack(">IIBBBBB", *header, *(0, 0, 0)[: 7 - len(header)])
    pieces = [chunk(b"IDAT", data[at : at + piece]) for at in range(0, len(data), piece)]
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + b"".join(pieces) + chunk(b"IEND", b"")


def picture(height: int, width: int, color: int, bits: int, seed: int = 0) -> np.ndarray:
    """Values (H, W, samples): smooth with noise, so that filters meet all cases."""
    rng = np.random.default_rng(seed)
    most = (1 << bits) - 1
    y, x, s = np.mgrid[0:height, 0:width, 0 : SAMPLES[color]]
    smooth = (np.sin(x / 5 + s) + np.cos(y / 3) + 2) / 4 * most
    noise = rng.integers(-most // 8 - 1, most // 8 + 2, smooth.shape)
    wild = rng.integers(0, most + 1, smooth.shape)
    return np.where(rng.random(smooth.shape) < 0.1, wild, np.clip(smooth + noise, 0, most)).astype(np.int64)


def palette(size: int) -> bytes:
    return chunk(b"PLTE", np.random.default_rng(7).integers(0, 256, size * 3).astype(np.uint8).tobytes())


def by_opencv(content: bytes) -> np.ndarray:
    picture = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    assert picture is not None
    return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)


def regions(height: int, width: int, count: int) -> list[tuple[int, int, int, int]]:
    rng = np.random.default_rng(height * 1000 + width)
    found = [(0, 0, height, width)]
    for _ in range(count):
        top, left = int(rng.integers(height)), int(rng.integers(width))
        found.append((top, left, int(rng.integers(top, height)) + 1, int(rng.integers(left, width)) + 1))
    return found


def agree(library: ctypes.CDLL, content: bytes, expected: np.ndarray, count: int = 4) -> None:
    channels = 3 if expected.ndim == 3 else 1
    for top, left, bottom, right in regions(expected.shape[0], expected.shape[1], count):
        got = read(library, content, (top, left, bottom, right), channels)
        np.testing.assert_array_equal(got, expected[top:bottom, left:right])


def label_map(height: int, width: int) -> np.ndarray:
    coarse = np.random.default_rng(3).integers(0, 30, ((height + 15) // 16, (width + 15) // 16)).astype(np.uint8)
    return np.kron(coarse, np.ones((16, 16), np.uint8))[:height, :width]
