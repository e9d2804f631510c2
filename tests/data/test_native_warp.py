"""Tests that the native resampler equals the plain computation, with any vector instructions of the
processor.
"""

from __future__ import annotations

import ctypes
import io

import cv2
import numpy as np
import pytest
import torch
from conftest import refused
from PIL import Image
from plain_crop import VOID, plain
from pngs import built

from segtrain.config import Data
from segtrain.data.augment.geometry import FILL, Geometry, draw
from segtrain.data.order import rng_for
from segtrain.data.pixels import native
from segtrain.data.pixels.floats import Floats
from segtrain.data.pixels.normalize import normalize

pytestmark = built
CALM = Data(jitter=(0, 0, 0))
LUT, KNOWN = np.arange(256, dtype=np.uint8), np.ones(256, np.uint8)
GUARD = 64  # bytes after an array that nothing may write


def crop(
    image: np.ndarray | bytes,
    mask: np.ndarray,
    geometry: Geometry,
    size: tuple[int, int],
    lut: np.ndarray = LUT,
    known: np.ndarray = KNOWN,
    floats: Floats | None = None,
) -> tuple[np.ndarray, np.ndarray, int | None]:
    """The crop's image and mask, and its first unknown id."""
    room = floats.area(*size)[0] if floats else size[0] * size[1] * 3
    memory, ids = (
        np.full(room + GUARD, 0xEE, np.uint8),
        np.full(size[0] * size[1] + GUARD, 0xEE, np.uint8),
    )
    pixels = floats.view(memory[:room], *size) if floats else memory[:room].reshape(*size, 3)
    labels = ids[:-GUARD].reshape(size)
    unknown = native.crop(
        image,
        mask,
        geometry,
        size,
        lut,
        known,
        FILL,
        VOID,
        pixels,
        labels,
        ("x.jpg", "x.png"),
        b"",
        floats.form if floats else None,
    )
    assert (memory[room:] == 0xEE).all()
    assert (ids[-GUARD:] == 0xEE).all()
    return pixels, labels, unknown


def warp(
    image: np.ndarray, geometry: Geometry, size: tuple[int, int], floats: Floats | None = None
) -> np.ndarray:
    return crop(image, np.zeros(image.shape[:2], np.uint8), geometry, size, floats=floats)[0]


def noise(height: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (height, width, 3), np.uint8), rng.integers(
        0, 12, (height, width), np.uint8
    )


@pytest.mark.parametrize("denom", [2, 4, 8])
@pytest.mark.parametrize("size", [(96, 160), (101, 199), (33, 75)])
def test_a_jpeg_that_the_decoder_reduces(size, denom):
    """Its pixels stand for blocks of the whole picture, which may be cut off at the right and lower
    border.
    """
    content = cv2.imencode(".jpg", cv2.GaussianBlur(noise(*size)[0], (0, 0), 1))[1].tobytes()
    with Image.open(io.BytesIO(content)) as opened:
        opened.draft("RGB", (size[1] // denom, size[0] // denom))
        reduced = np.asarray(opened)
    shape, scale = (24, 40), 1 / denom / 1.2
    assert reduced.shape[:2] == (-(-size[0] // denom), -(-size[1] // denom))
    for seed in range(6):
        geometry = draw(rng_for(seed, 0, 0), size, shape, CALM, scale=(scale, scale))
        out = crop(content, np.zeros(size, np.uint8), geometry, shape)[0]
        expected = np.broadcast_to(np.array(FILL, float), (*shape, 3)).copy()
        rows, columns = (covered(geometry, shape, axis, denom) for axis in (0, 1))
        expected[rows[0], columns[0]] = sample(reduced.astype(float), rows[1], columns[1])
        if geometry.flip:
            expected = expected[:, ::-1]
        assert np.abs(out - expected).max() <= 0.55


def covered(g: Geometry, shape: tuple[int, int], axis: int, denom: int) -> tuple[slice, np.ndarray]:
    """Along an axis: the crop's covered pixels, and where their centers lie in the reduced
    picture.
    """
    origin = (g.top, g.left)[axis]
    first, last = max(0, -origin), min(shape[axis], g.scaled[axis] - origin)
    return slice(first, last), (np.arange(first, last) + origin + 0.5) * (
        g.size[axis] / g.scaled[axis] / denom
    )


def sample(image: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    out = image
    for axis, places in ((0, rows - 0.5), (1, columns - 0.5)):
        first = np.floor(places).astype(int)
        share = (places - first).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        low, high = (np.take(out, np.clip(first + k, 0, out.shape[axis] - 1), axis) for k in (0, 1))
        out = low * (1 - share) + high * share
    return out


def test_unequal_steps():
    """A scaled side of few pixels is rounded: then one axis shrinks by more than the other."""
    image, mask = noise(200, 230)
    for scaled in ((200, 7), (7, 230), (50, 230), (3, 3), (1, 1), (23, 900)):
        for flip in (False, True):
            geometry = Geometry((200, 230), scaled, -1, -2, flip)
            expected, expected_ids = plain(image, mask, geometry, (64, 96))
            pixels, ids, _ = crop(image, mask, geometry, (64, 96))
            assert np.abs(pixels - expected).max() <= 1.05
            assert (ids == expected_ids).all()


SIZES = [
    ((211, 317), (90, 147)),
    ((40, 57), (61, 16)),
    ((700, 9), (680, 9)),
    ((1, 50), (32, 48)),
    ((50, 1), (71, 133)),
    ((7, 5), (32, 48)),
    ((131, 303), (280, 53)),
]


def test_all_vector_instructions_give_the_same_bytes():
    """Odd sizes, flips, padding, reductions, and ids of which one may be unknown."""
    rng = np.random.default_rng(0)
    known = np.ones(256, np.uint8)
    known[200] = 0
    for seed in range(42):
        size, shape = SIZES[seed % len(SIZES)]
        image, mask = (
            noise(*size, seed)[0],
            rng.integers(0, 201 if seed % 2 else 200, size).astype(np.uint8),
        )
        geometry = draw(rng_for(seed, 0, 0), size, shape, Data(scale=(0.2, 3), hue=0.2))
        made = []
        for most in (0, 1):
            ctypes.CDLL(str(native.LIBRARY)).st_simd(most)
            pixels, ids, unknown = crop(image, mask, geometry, shape, LUT, known)
            made.append((pixels.tobytes(), ids.tobytes(), unknown))
        assert made[0] == made[1]


def test_ids_are_mapped_and_unknown_ones_told():
    rng = np.random.default_rng(0)
    lut = rng.permutation(256).astype(np.uint8)
    known = np.ones(256, np.uint8)
    mask = rng.integers(0, 256, (200, 300)).astype(np.uint8)
    known[[7, 200]] = 0
    blank = np.zeros((200, 300, 3), np.uint8)
    fine = np.where((mask == 7) | (mask == 200), 9, mask).astype(np.uint8)
    for seed in range(10):
        geometry = draw(rng_for(seed, 0, 0), (200, 300), (100, 150), Data(scale=(0.3, 3)))
        nearest = plain(blank, mask, geometry, (100, 150))[1]
        inside = plain(blank, np.zeros_like(mask), geometry, (100, 150))[1] == 0
        _, ids, unknown = crop(blank, mask, geometry, (100, 150), lut, known)
        seen = nearest[inside]
        first = seen[(seen == 7) | (seen == 200)][:1]
        assert unknown == (int(first[0]) if first.size else -1)
        assert (ids[inside] == lut[seen]).all()
        _, ids, unknown = crop(blank, fine, geometry, (100, 150), lut, known)
        assert unknown == -1
        assert (ids[~inside] == VOID).all()


@pytest.mark.parametrize(
    "change",
    [
        {"scaled": (0, 10)},
        {"top": 200},
        {"left": -90},
        {"left": 1 << 30},
        {"scaled": (1 << 21, 5)},
        {"hue": float("nan")},
    ],
)
def test_impossible_geometry_is_a_fault(change):
    fields = {"size": (100, 100), "scaled": (100, 100), "top": 0, "left": 0, **change}
    with refused("image-damaged"):
        warp(noise(100, 100)[0], Geometry(**fields), (64, 64))


def test_the_mean_of_a_tall_bright_crop():
    """Sums of columns are kept in 16 bits: they must be emptied in time."""
    image = np.full((700, 9, 3), 250, np.uint8)
    for scaled in ((700, 9), (690, 9)):
        geometry = Geometry((700, 9), scaled, 0, 0, contrast=0.5)
        assert (warp(image, geometry, (680, 9)) == 250).all()


FORMS = [
    Floats(dtype, last, *terms)
    for dtype in ("float32", "bfloat16")
    for last in (False, True)
    for terms in ((), ((0.1, 0.5, 0.9), (0.3, 1.0, 0.01)))
]


@pytest.mark.parametrize(
    "floats", FORMS, ids=lambda f: f"{f.dtype}-{'NHWC' if f.channels_last else 'NCHW'}-{f.std[0]}"
)
def test_floats_are_the_levels_normalized_afterwards_to_the_bit(floats):
    """Odd sizes, flips, padding on all sides, reductions, a copy of rows, and colors with and
    without contrast.
    """
    for seed, size in enumerate([(211, 317), (40, 57), (3, 5), (90, 147), (640, 90)] * 4):
        image, _ = noise(*size, seed)
        shape = (90, 147) if seed % 3 else (61, 16)
        scale = (0.2, 3) if seed % 4 else (1, 1)
        data = Data(
            scale=scale, hue=0.2, jitter=(0.4, 0.4 * (seed % 2), 0.3), color_jitter_prob=0.7
        )
        geometry = draw(rng_for(seed, 0, 0), size, shape, data)
        levels = warp(image, geometry, shape)
        assert same(warp(image, geometry, shape, floats), levels, floats)


def same(out: np.ndarray, levels: np.ndarray, floats: Floats) -> bool:
    """Whether ``out`` has the bits of torch's normalization."""
    values = normalize(torch.tensor(levels)[None], floats.mean, floats.std)[0].to(
        getattr(torch, floats.dtype)
    )
    values = values.permute(1, 2, 0) if floats.channels_last else values
    kind = torch.int16 if floats.dtype == "bfloat16" else torch.int32
    bits = out.view(f"i{out.itemsize}")
    return np.array_equal(bits, values.contiguous().view(kind).numpy())


@pytest.mark.parametrize(
    "floats", FORMS, ids=lambda f: f"{f.dtype}-{'NHWC' if f.channels_last else 'NCHW'}-{f.std[0]}"
)
def test_finished_levels_are_normalized_with_the_library_and_without(floats, monkeypatch):
    for height, width in ((1, 1), (5, 15), (3, 16), (2, 65), (9, 131), (2, 256), (3, 529)):
        levels, _ = noise(height, width)
        for setting in ("1", "0"):
            monkeypatch.setenv("SEGTRAIN_NATIVE", setting)
            out = floats.view(np.empty(floats.area(height, width), np.uint8), height, width)
            floats.write(levels, out)
            assert same(out, levels, floats)
