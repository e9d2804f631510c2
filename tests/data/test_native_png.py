"""Tests that the native PNG reader gives the pixels of OpenCV and Pillow, and names damaged
files.
"""

from __future__ import annotations

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image
from pngs import (
    GRAY,
    KINDS,
    MIXED,
    PALETTE,
    RGB,
    agree,
    built,
    by_opencv,
    chunk,
    label_map,
    palette,
    picture,
    refused,
    wrap,
    write,
)

pytestmark = built


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4, MIXED])
@pytest.mark.parametrize(("color", "bits"), KINDS)
def test_every_kind_of_png(color, bits, kind):
    for height, width in ((1, 1), (2, 3), (19, 33), (8, 67)):
        values = picture(height, width, color, bits, seed=kind)
        extra = palette(1 << bits) if color == PALETTE else b""
        content = write(values, color, bits, kind, extra)
        agree(content, by_opencv(content))
        if color in (GRAY, PALETTE) and bits <= 8:
            agree(content, values[..., 0].astype(np.uint8))
        else:
            assert refused(content, channels=1, size=(height, width))[0] == 2


@pytest.mark.parametrize(
    ("color", "bits"), [kind for kind in KINDS if kind[0] in (GRAY, RGB, PALETTE)]
)
def test_transparency_is_dropped(color, bits):
    values = picture(9, 21, color, bits)
    body = bytes(range(1 << bits)) if color == PALETTE else values[4, 4].astype(">u2").tobytes()
    extra = (palette(1 << bits) if color == PALETTE else b"") + chunk(b"tRNS", body)
    content = write(values, color, bits, MIXED, extra)
    agree(content, by_opencv(content))
    if color != RGB and bits <= 8:
        agree(content, values[..., 0].astype(np.uint8))


def test_mask_values_outside_of_the_palette():
    values = picture(9, 21, PALETTE, 8)
    content = write(values, PALETTE, 8, 0, palette(10))
    agree(content, values[..., 0].astype(np.uint8))
    agree(content, by_opencv(content))
    assert refused(write(values, PALETTE, 8), size=(9, 21)) == (1, "the PNG has no whole palette")


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize("color", [GRAY, RGB])
def test_reading_stops_early(color, level):
    """Far more rows than are needed: unpacking stops, also amid stored blocks (level 0) and across
    chunks.
    """
    values = np.tile(picture(40, 200, color, 8), (25, 1, 1))
    for piece in (1 << 30, 1000):
        content = write(values, color, 8, MIXED, level=level, piece=piece)
        expected = values.astype(np.uint8) if color == RGB else values[..., 0].astype(np.uint8)
        agree(content, expected, 30)


@pytest.mark.parametrize("shape", [(300, 411), (130, 257, 3)])
def test_files_of_other_writers(shape):
    pixels = (
        label_map(shape[0], shape[1])
        if len(shape) == 2
        else picture(shape[0], shape[1], RGB, 8).astype(np.uint8)
    )
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    agree(stream.getvalue(), pixels)
    bgr = pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    agree(cv2.imencode(".png", bgr)[1].tobytes(), pixels)


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_label_maps_under_every_filter(kind):
    """Long runs of zeros take a short cut."""
    pixels = label_map(70, 150)
    pixels[20:25, 3:90] = 200
    agree(write(pixels[..., None].astype(np.int64), GRAY, 8, kind), pixels)


def test_damage_is_named():
    good = write(picture(30, 40, RGB, 8), RGB, 8, MIXED)
    raw = bytes(30 * 121)
    packed = zlib.compress(raw)
    animated = chunk(b"acTL", struct.pack(">II", 1, 0))
    bad_filter = zlib.compress(raw[: 9 * 121] + b"\x05" + raw[9 * 121 + 1 :])
    header = (40, 30, 8, RGB)
    cases = [
        (wrap(packed, (0, 30, 8, RGB)), 1, "the header claims 30 x 0 pixels"),
        (wrap(packed, (1 << 15, 1 << 14, 8, RGB)), 1, "claims 16384 x 32768 pixels"),
        (wrap(packed, (40, 30, 8, 5)), 1, "header is damaged"),
        (wrap(packed, (*header, 0, 0, 1)), 2, ""),
        (wrap(packed, header, animated), 2, ""),
        (wrap(packed, header, chunk(b"NEWS", b"")), 1, "critical chunk"),
        (wrap(b"", header), 1, "no pixel data"),
        (wrap(packed, header, good[8:33]), 1, "header is damaged"),
        (good[:-12] + chunk(b"tEXt", b"x") + chunk(b"IDAT", b"") + good[-12:], 1, "two places"),
        (wrap(packed[:-1] + b"\x00", header), 1, "pixel data are damaged"),
        (wrap(zlib.compress(raw[:-1]), header), 1, "less pixel data"),
        (wrap(zlib.compress(raw + b"x"), header), 1, "more pixel data"),
        (wrap(zlib.compress(bytes(10_000_000)), header), 1, "more pixel data"),
        (wrap(bad_filter, header), 1, "filter 5 in row 9"),
    ]
    for content, code, reason in cases:
        got = refused(content, size=(30, 40))
        assert (got[0], reason in got[1]) == (code, True), (reason, got)


def test_any_cut_and_any_wrong_byte_is_a_fault():
    content = write(
        picture(9, 21, RGB, 8), RGB, 8, MIXED, chunk(b"tEXt", b"Title\0street"), piece=200
    )
    for place in range(8, len(content)):
        assert refused(content[:place], size=(9, 21))[0] == 1
        wrong = content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]
        assert refused(wrong, size=(9, 21))[0] == 1
