"""Tests that any reader can read a PNG in strips, and that the native reader decodes single strips
correctly.
"""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from pngs import (
    GRAY,
    RGB,
    Refused,
    agree,
    built,
    by_opencv,
    chunk,
    filtered,
    label_map,
    picture,
    read,
    refused,
    wrap,
)

from segtrain.data.shards import png_strips

pytestmark = built


@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
@pytest.mark.parametrize("shape", [(1, 1), (1, 1, 3), (200, 311), (131, 57, 3), (128, 64, 3)])
def test_strips(shape, rows):
    pixels = (
        label_map(shape[0], shape[1])
        if len(shape) == 2
        else picture(shape[0], shape[1], RGB, 8).astype(np.uint8)
    )
    content = png_strips.encode(pixels, rows)
    with Image.open(io.BytesIO(content)) as opened:
        np.testing.assert_array_equal(np.asarray(opened), pixels)
    np.testing.assert_array_equal(
        by_opencv(content), pixels if pixels.ndim == 3 else np.stack([pixels] * 3, axis=-1)
    )
    agree(content, pixels, 20)


def test_only_the_strips_needed_are_read():
    pixels = label_map(200, 311)
    content = bytearray(png_strips.encode(pixels, 50))
    place = content.rindex(b"IDAT") + 10  # in the last strip
    content[place] ^= 1
    np.testing.assert_array_equal(
        read(bytes(content), (10, 5, 150, 311), 1, (200, 311)), pixels[10:150, 5:]
    )
    with pytest.raises(Refused, match="checksum"):
        read(bytes(content), (149, 0, 151, 9), 1, (200, 311))
    assert "checksum" in refused(bytes(content), 1, (200, 311))[1]


def test_a_table_of_strips_that_lies_is_ignored():
    pixels = label_map(200, 311)
    content = png_strips.encode(pixels, 50)
    at = content.index(b"stRP")
    (size,) = struct.unpack_from(">I", content, at - 4)
    table = np.frombuffer(content[at + 4 : at + 4 + size], ">u4").astype(np.int64)
    for row, change in ((0, -1), (0, 1), (0, -50), (0, 1 << 31), (1, 1), (2, -1), (4, 7)):
        lie = table.copy()
        lie[row] += change
        for body in (lie.astype(">u4").tobytes(), table.astype(">u4").tobytes()[:-4], b""):
            agree(content[: at - 4] + chunk(b"stRP", body) + content[at + 8 + size :], pixels)


def test_strips_that_look_above_are_read_plainly(monkeypatch):
    """A table that fits a stream whose strips begin with the filter Up, as another writer might
    leave it.
    """
    pixels = label_map(100, 80)
    raw = [
        filtered(row.tobytes(), above.tobytes(), 2, 1)
        for row, above in zip(pixels, np.roll(pixels, 1, axis=0))
    ]
    raw[0] = b"\0" + pixels[0].tobytes()
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    strips = [packer.compress(b"".join(raw[:50])) + packer.flush(zlib.Z_SYNC_FLUSH)]
    strips += [packer.compress(b"".join(raw[50:])) + packer.flush()]
    table = chunk(b"stRP", struct.pack(">III", 50, 2, 2 + len(strips[0])))
    data = [b"\x78\x01" + strips[0], strips[1] + struct.pack(">I", zlib.adler32(b"".join(raw)))]
    content = wrap(data[0], (80, 100, 8, GRAY), table)
    content = content[:-12] + chunk(b"IDAT", data[1]) + content[-12:]
    agree(content, pixels, 20)
