"""Writer of PNGs in strips, so that a crop is read without decompressing the whole image.

Any program reads such a file as a plain PNG. A strip has ``rows_per_strip`` rows, the last one
perhaps fewer. Each strip is one IDAT chunk. At its start, the deflate stream restarts, and the PNG
filter of its first row does not use the row above. A chunk before the IDAT chunks lists the strips,
with unsigned big-endian numbers of 32 bits:

    stRP   rows per strip; then for each strip the offset of its data, in bytes from the start of
           all IDAT data

The chunk is ancillary, private, and not safe to copy: a program that changes pixels and does not
know the chunk must drop it. The bytes of a strip, followed by an empty final block (03 00), are a
complete raw deflate stream; the last strip has its own final block.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

# a crop decompresses at most 126 rows too many; files of photographs grow by less than 1%, of
# labels
# by 10%
ROWS = 64
_UP = 2  # the number of the PNG filter Up
_HEADER = b"\x78\x01"  # of a zlib stream: deflate, window of 32 kB


def encode(pixels: np.ndarray, rows_per_strip: int = ROWS) -> bytes:
    """A PNG in strips, from label ids (H, W) uint8 or uint16, or uint8 (H, W, 3) RGB."""
    height, width = pixels.shape[:2]
    wide = pixels.dtype == np.uint16
    rows = (pixels.astype(">u2").view(np.uint8) if wide else pixels).reshape(height, -1)
    strips, adler = [], 1
    for top in range(0, height, rows_per_strip):
        strip = rows[top : top + rows_per_strip]
        last = top + rows_per_strip >= height
        choices = (
            [_label_rows(strip, up) for up in (False, True)]
            if pixels.ndim == 2
            else [_color_rows(strip)]
        )
        packed, raw = min(
            ((_deflate(raw, last), raw) for raw in choices), key=lambda pair: len(pair[0])
        )
        adler = zlib.adler32(raw, adler)
        strips.append(packed)
    starts = np.cumsum([len(_HEADER), *map(len, strips[:-1])])
    strips[0] = _HEADER + strips[0]
    strips[-1] += struct.pack(">I", adler)
    parts = [
        b"\x89PNG\r\n\x1a\n",
        _chunk(
            b"IHDR",
            struct.pack(
                ">IIBBBBB", width, height, 16 if wide else 8, 0 if pixels.ndim == 2 else 2, 0, 0, 0
            ),
        ),
        _chunk(b"stRP", struct.pack(">I", rows_per_strip) + starts.astype(">u4").tobytes()),
        *(_chunk(b"IDAT", strip) for strip in strips),
        _chunk(b"IEND", b""),
    ]
    return b"".join(parts)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return (
        struct.pack(">I", len(body))
        + kind
        + body
        + struct.pack(">I", zlib.crc32(body, zlib.crc32(kind)))
    )


def _deflate(raw: bytes, last: bool) -> bytes:
    """Raw deflate data that refer to no earlier data and end at a byte boundary."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -15, 9)
    return packer.compress(raw) + packer.flush(zlib.Z_FINISH if last else zlib.Z_FULL_FLUSH)


def _with_filters(filters: np.ndarray, data: np.ndarray) -> bytes:
    return np.concatenate([filters.astype(np.uint8)[:, None], data], axis=1).tobytes()


def _label_rows(strip: np.ndarray, up: bool) -> bytes:
    """Rows with the PNG filter None or, if ``up``, with Up after the first row. Both are undone at
    memory speed.
    """
    data, filters = strip.copy(), np.zeros(len(strip))
    if up:
        data[1:] -= strip[:-1]
        filters[1:] = _UP
    return _with_filters(filters, data)


def _color_rows(strip: np.ndarray) -> bytes:
    """Rows with the filter that leaves the smallest sum of absolute differences (PNG specification,
    section 12.7).
    """
    above = np.zeros_like(strip)
    above[1:] = strip[:-1]
    left, corner = np.zeros_like(strip), np.zeros_like(strip)
    left[:, 3:], corner[:, 3:] = strip[:, :-3], above[:, :-3]
    average = ((left.astype(np.uint16) + above) >> 1).astype(np.uint8)
    # In the order of the filters' numbers: None, Sub, Up, Average, Paeth.
    data = np.stack(
        [strip - guess for guess in (0, left, above, average, _paeth(left, above, corner))]
    )
    cost = np.minimum(data, 0 - data).sum(axis=2, dtype=np.int64)
    cost[_UP:, 0] = np.iinfo(np.int64).max  # the first row of a strip must not use the row above it
    best = cost.argmin(axis=0)
    return _with_filters(best, data[best, np.arange(len(strip))])


def _paeth(left: np.ndarray, above: np.ndarray, corner: np.ndarray) -> np.ndarray:
    a, b, c = (part.astype(np.int16) for part in (left, above, corner))
    to_a, to_b, to_c = np.abs(b - c), np.abs(a - c), np.abs(a + b - 2 * c)
    nearest = np.where((to_a <= to_b) & (to_a <= to_c), a, np.where(to_b <= to_c, b, c))
    return nearest.astype(np.uint8)
