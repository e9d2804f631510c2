"""Tests that the native resampler equals the plain computation on every kind of processor."""

from __future__ import annotations

import ctypes

import cv2
import numpy as np
import pytest
import torch
from pngs import LIBRARY
from test_augment import VOID, plain

from segtrain.config import Data
from segtrain.data.augment.geometry import FILL, GRAY, Geometry, apply, draw
from segtrain.data.order import rng_for
from segtrain.data.pixels.floats import Floats
from segtrain.data.pixels.normalize import normalize

LEVELS = {"plain": 0, "avx2": 1, "avx512": 2}  # a processor without one of them tests the next lower twice
OLD = int(cv2.__version__.split(".")[0]) < 5
CALM = Data(jitter=(0, 0, 0))


class Refused(Exception):
    pass


class Native:
    """The test entry points; pixels lie in rows with gaps, before and after which nothing may be read or written."""

    def __init__(self, library: ctypes.CDLL, simd: int) -> None:
        self.library, self.simd = library, simd
        self.message = ctypes.create_string_buffer(256)

    def need(self, geometry: Geometry, crop: tuple[int, int], reduced: tuple[int, int], interpolate: bool) -> list[int]:
        rect = (ctypes.c_int32 * 4)()
        self._done(
            self.library.st_source_rect(_place(geometry, crop), _ints(reduced), int(interpolate), rect, self.message)
        )
        return list(rect)

    def warp(
        self,
        image: np.ndarray,
        geometry: Geometry,
        crop: tuple[int, int],
        rect: list[int] | None = None,
        floats: Floats | None = None,
    ) -> np.ndarray:
        """``image``: the whole picture, perhaps reduced, of which only the rectangle that is needed is handed over."""
        reduced = image.shape[:2]
        top, left, bottom, right = rect = rect or self.need(geometry, crop, reduced, True)
        part = np.ascontiguousarray(image[top:bottom, left:right])  # what lies around it belongs to the allocator
        size = floats.bytes_of(crop) if floats else crop[0] * crop[1] * 3
        out = np.full(size + 64, 0xEE, np.uint8)
        colors = (ctypes.c_float * 4)(geometry.brightness, geometry.contrast, geometry.saturation, geometry.hue)
        code = self.library.st_warp_floats(
            _address(part), part.shape[1] * 3, _ints(rect), _ints(reduced), _place(geometry, crop), colors,
            bytes(FILL), _address(out), self.simd, self.message, ctypes.byref(floats.form) if floats else None,
        )  # fmt: skip
        self._done(code)
        assert (out[-64:] == 0xEE).all()
        return floats.view(out[:-64], *crop) if floats else out[:-64].reshape(*crop, 3)

    def mask(
        self, mask: np.ndarray, geometry: Geometry, crop: tuple[int, int], lut: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, int]:
        top, left, bottom, right = rect = self.need(geometry, crop, mask.shape, False)
        part = np.ascontiguousarray(mask[top:bottom, left:right])
        out = np.full((crop[0] * crop[1] + 64), 0xEE, np.uint8)
        unknown = self.library.st_sample_mask(
            _address(part), part.shape[1], _ints(rect), _place(geometry, crop), _address(lut), _address(known), VOID,
            _address(out), self.simd, self.message,
        )  # fmt: skip
        self._done(unknown)
        assert (out[-64:] == 0xEE).all()
        return out[:-64].reshape(crop), unknown

    def _done(self, code: int) -> None:
        if code == -2:
            raise Refused(self.message.value.decode())


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _ints(numbers: object) -> ctypes.Array:
    return (ctypes.c_int32 * len(numbers))(*numbers)  # type: ignore[arg-type,call-overload]


def _place(g: Geometry, crop: tuple[int, int]) -> ctypes.Array:
    return _ints([*g.size, *g.scaled, *crop, g.top, g.left, int(g.flip)])


@pytest.fixture(params=LEVELS)
def native(request: pytest.FixtureRequest) -> Native:
    if not LIBRARY.exists():
        pytest.skip(f"the native decoder is not built: no {LIBRARY.name}")
    library = ctypes.CDLL(str(LIBRARY))
    size = ctypes.c_size_t
    pointer = ctypes.c_void_p
    library.st_source_rect.argtypes = [pointer, pointer, ctypes.c_int, pointer, ctypes.c_char_p]
    library.st_warp_floats.argtypes = [
        pointer, size, *[pointer] * 4, ctypes.c_char_p, pointer, ctypes.c_int, ctypes.c_char_p, pointer
    ]  # fmt: skip
    library.st_sample_mask.argtypes = [
        pointer, size, *[pointer] * 4, ctypes.c_int, pointer, ctypes.c_int, ctypes.c_char_p
    ]  # fmt: skip
    return Native(library, LEVELS[request.param])


def noise(height: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (height, width, 3), np.uint8), rng.integers(0, 12, (height, width), np.uint8)


LUT = np.arange(256, dtype=np.uint8)
KNOWN = np.ones(256, np.uint8)


@pytest.mark.parametrize("scale", [0.11, 0.13, 0.24, 0.26, 0.3, 0.45, 0.5, 0.51, 0.61, 0.99, 1.0, 1.3, 2.0, 2.9, 4.0])
@pytest.mark.parametrize("size", [(90, 161), (57, 40), (131, 303)])
def test_a_crop_is_that_of_the_resized_image(native: Native, size: tuple[int, int], scale: float) -> None:
    image, mask = noise(*size)
    for seed in range(5):
        crop = (32, 48) if seed % 2 else (71, 133)
        geometry = draw(rng_for(seed, 0, 0), size, crop, CALM, scale=(scale, scale))
        expected, expected_ids = plain(image, mask, geometry, crop)
        # Half a level of rounding, where blocks are averaged twice, and 0.05 for weights and lines.
        bound = 0.55 if scale >= 0.5 else 1.05
        assert np.abs(native.warp(image, geometry, crop) - expected).max() <= bound
        ids, unknown = native.mask(mask, geometry, crop, LUT, KNOWN)
        assert unknown == -1
        assert (ids == expected_ids).all()


@pytest.mark.parametrize("denom", [2, 4, 8])
@pytest.mark.parametrize("size", [(96, 160), (97, 163), (101, 199), (15, 9), (3, 200), (1, 5)])
def test_a_picture_that_the_decoder_reduced(native: Native, size: tuple[int, int], denom: int) -> None:
    """Its pixels stand for blocks of the whole picture, which may be cut off at the right and lower border."""
    image, _ = noise(*size)
    crop = (24, 40)
    reduced = mean_of_blocks(image, denom)
    for seed in range(8):
        scale = 1 / denom / (1.2 if seed % 2 else 3.3)
        geometry = draw(rng_for(seed, 0, 0), size, crop, CALM, scale=(scale, scale))
        out = native.warp(reduced, geometry, crop)
        rows, columns = plain_rows(reduced, geometry, crop, denom)
        expected = np.broadcast_to(np.array(FILL, float), (*crop, 3)).copy()
        expected[rows[0], columns[0]] = sample(reduced.astype(float), rows[1], columns[1], denom, geometry)
        if geometry.flip:
            expected = expected[:, ::-1]
        assert np.abs(out - expected).max() <= (0.55 if seed % 2 else 1.05)


def mean_of_blocks(image: np.ndarray, block: int) -> np.ndarray:
    height, width = image.shape[:2]
    padded = np.pad(image.astype(float), ((0, -height % block), (0, -width % block), (0, 0)), mode="edge")
    shape = (padded.shape[0] // block, block, padded.shape[1] // block, block, 3)
    return np.floor(padded.reshape(shape).mean((1, 3)) + 0.5).astype(np.uint8)


def plain_rows(
    image: np.ndarray, g: Geometry, crop: tuple[int, int], denom: int
) -> tuple[tuple[slice, np.ndarray], tuple[slice, np.ndarray]]:
    """Along each axis: the crop's covered pixels, and where their centers lie in the reduced picture."""
    found = []
    for axis, origin in ((0, g.top), (1, g.left)):
        first, last = max(0, -origin), min(crop[axis], g.scaled[axis] - origin)
        step = g.size[axis] / g.scaled[axis] / denom
        found.append((slice(first, last), (np.arange(first, last) + origin + 0.5) * step))
    return found[0], found[1]


def sample(image: np.ndarray, rows: np.ndarray, columns: np.ndarray, denom: int, g: Geometry) -> np.ndarray:
    block = 1
    while min(g.size[0] / g.scaled[0], g.size[1] / g.scaled[1]) / denom / block > 2:
        block *= 2
    out = mean_of_blocks(image, block).astype(float) if block > 1 else image
    for axis, places in ((0, rows / block - 0.5), (1, columns / block - 0.5)):
        first = np.floor(places).astype(int)
        share = (places - first).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        low, high = (np.take(out, np.clip(first + k, 0, out.shape[axis] - 1), axis) for k in (0, 1))
        out = low * (1 - share) + high * share
    return out


def test_unequal_steps(native: Native) -> None:
    """A scaled side of few pixels is rounded: then one axis shrinks by more than the other."""
    image, mask = noise(200, 230)
    for scaled in ((200, 7), (7, 230), (50, 230), (200, 61), (3, 3), (1, 1), (800, 23), (23, 900)):
        for flip in (False, True):
            geometry = Geometry((200, 230), scaled, -1, -2, flip)
            expected, ids = plain(image, mask, geometry, (64, 96))
            assert np.abs(native.warp(image, geometry, (64, 96)) - expected).max() <= 1.05
            assert (native.mask(mask, geometry, (64, 96), LUT, KNOWN)[0] == ids).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (2, 3), (7, 5), (6, 43), (4, 128), (4, 127)])
def test_small_pictures_padded_on_every_side(native: Native, size: tuple[int, int]) -> None:
    image, mask = noise(*size)
    for seed in range(12):
        scale = (0.2, 0.7, 1.0, 1.9, 4.0)[seed % 5]
        geometry = draw(rng_for(seed, 0, 0), size, (150, 200), CALM, scale=(scale, scale))
        expected, ids = plain(image, mask, geometry, (150, 200))
        assert np.abs(native.warp(image, geometry, (150, 200)) - expected).max() <= 1.05
        assert (native.mask(mask, geometry, (150, 200), LUT, KNOWN)[0] == ids).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_image_and_mask_show_the_same_place(native: Native, axis: int) -> None:
    """White stripes of label 1: interpolation is brighter than half where the nearest pixel is white, to the pixel."""
    for seed in range(20):
        stripes = np.random.default_rng(seed).integers(0, 2, 160).astype(np.uint8)
        mask = np.broadcast_to(stripes[:, None] if axis == 0 else stripes, (160, 160)).copy()
        image = np.repeat(mask[..., None] * 255, 3, 2)
        geometry = draw(rng_for(seed, 0, 0), mask.shape, (96, 128), Data(scale=(0.5, 4), jitter=(0, 0, 0)))
        pixels = native.warp(image, geometry, (96, 128))[..., 0]
        ids = native.mask(mask, geometry, (96, 128), LUT, KNOWN)[0]
        sure = (ids != VOID) & (pixels != 127) & (pixels != 128)  # not half-way between two pixels
        assert sure.sum() > 0.9 * (ids != VOID).sum()
        assert ((pixels > 127) == ids)[sure].all()


@pytest.mark.parametrize("colors", [(1.3, 1, 1, 0), (1, 0.7, 1, 0), (1, 1, 1.6, 0), (1, 1, 1, 0.1), (0.8, 1.3, 0.7, -0.2),
                                     (1.3, 1.3, 1.3, 0.5), (0, 1, 1, 0), (1, 0, 1, 0), (1, 1, 0, 0), (3, 2, 2, 0.3),
                                     (50, 1, 1, 0)])  # fmt: skip
@pytest.mark.parametrize("scale", [0.4, 1.0, 1.7])
def test_colors(native: Native, colors: tuple[float, float, float, float], scale: float) -> None:
    image, mask = noise(300, 120)
    image = (image // 2 + 40).astype(np.uint8)
    for seed in range(3):
        crop = (280, 53) if seed else (64, 400)  # the second is padded
        still = draw(rng_for(seed, 0, 0), (300, 120), crop, CALM, scale=(scale, scale))
        geometry = Geometry(still.size, still.scaled, still.top, still.left, still.flip, *colors)
        base = native.warp(image, still, crop).astype(float)
        inside = plain(image, mask, still, crop)[1] != VOID
        out = native.warp(image, geometry, crop)
        expected = step_by_step(base, inside, colors)
        assert (out[~inside] == FILL).all()
        assert np.abs(out - np.clip(expected, 0, 255))[inside].max() <= (0.75 if max(colors) < 1.7 else 1.0)


def step_by_step(image: np.ndarray, inside: np.ndarray, colors: tuple[float, float, float, float]) -> np.ndarray:
    brightness, contrast, saturation, hue = colors
    out = image * brightness
    out = contrast * out + (1 - contrast) * (out[inside] @ GRAY).mean()
    out = saturation * out + (1 - saturation) * (out @ GRAY)[..., None]
    yiq = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
    y, i, q = np.moveaxis(out @ yiq.T, -1, 0)
    c, s = np.cos(2 * np.pi * hue), np.sin(2 * np.pi * hue)
    return np.stack([y, c * i + s * q, c * q - s * i], -1) @ np.linalg.inv(yiq).T


def test_all_processors_give_the_same_bytes(native: Native) -> None:
    image, _ = noise(211, 317)
    other = Native(native.library, 0)
    for seed in range(20):
        geometry = draw(rng_for(seed, 0, 0), (211, 317), (90, 147), Data(scale=(0.2, 3), hue=0.2))
        assert (native.warp(image, geometry, (90, 147)) == other.warp(image, geometry, (90, 147))).all()


def test_ids_are_mapped_and_unknown_ones_told(native: Native) -> None:
    rng = np.random.default_rng(0)
    lut = rng.permutation(256).astype(np.uint8)
    known = np.ones(256, np.uint8)
    mask = rng.integers(0, 256, (200, 300)).astype(np.uint8)
    known[[7, 200]] = 0
    fine = np.where((mask == 7) | (mask == 200), 9, mask).astype(np.uint8)
    for seed in range(10):
        geometry = draw(rng_for(seed, 0, 0), (200, 300), (100, 150), Data(scale=(0.3, 3)))
        nearest = plain(np.zeros((200, 300, 3), np.uint8), mask, geometry, (100, 150))[1]
        inside = plain(np.zeros((200, 300, 3), np.uint8), np.zeros_like(mask), geometry, (100, 150))[1] == 0
        ids, unknown = native.mask(mask, geometry, (100, 150), lut, known)
        seen = nearest[inside]
        first = seen[(seen == 7) | (seen == 200)][:1]
        assert unknown == (int(first[0]) if first.size else -1)
        assert (ids[inside] == lut[seen]).all()
        ids, unknown = native.mask(fine, geometry, (100, 150), lut, known)
        assert unknown == -1
        assert (ids[~inside] == VOID).all()


def test_what_is_not_there_is_not_read(native: Native) -> None:
    image, _ = noise(100, 100)
    geometry = Geometry((100, 100), (150, 150), 40, 40)
    rect = native.need(geometry, (32, 32), (100, 100), True)
    native.warp(image, geometry, (32, 32), rect)
    for side in range(4):
        smaller = list(rect)
        smaller[side] += 1 if side < 2 else -1
        with pytest.raises(Refused, match="decoded part of the picture is too small"):
            native.warp(image, geometry, (32, 32), smaller)


@pytest.mark.parametrize("change", [{"scaled": (0, 10)}, {"size": (-1, 5)}, {"top": 200}, {"left": -90}, {"left": 1 << 30},
                                    {"scaled": (1 << 21, 5)}, {"size": (50, 100)}, {"hue": float("nan")}])  # fmt: skip
def test_impossible_geometry_is_a_fault(native: Native, change: dict) -> None:
    image, _ = noise(100, 100)
    fields = {"size": (100, 100), "scaled": (100, 100), "top": 0, "left": 0, **change}
    with pytest.raises(Refused):
        native.warp(image, Geometry(**fields), (64, 64))  # type: ignore[arg-type]


def test_the_packages_show_the_same_picture(native: Native) -> None:
    """OpenCV before 5 places pixels to 1/32 of a source pixel: invisible, and here bounded on a picture with soft and hard edges."""
    rng = np.random.default_rng(0)
    image = cv2.GaussianBlur(rng.integers(0, 256, (300, 500, 3), np.uint8), (0, 0), 2)
    image = cv2.normalize(image, None, 0, 255, cv2.NORM_MINMAX)
    cv2.rectangle(image, (100, 50), (300, 200), (250, 20, 128), -1)
    mask = rng.integers(0, 12, (300, 500)).astype(np.uint8)
    for seed in range(12):
        geometry = draw(rng_for(seed, 0, 0), (300, 500), (128, 192), Data(scale=(0.2, 3), hue=0.1))
        pixels, ids = apply(image, mask, geometry, (128, 192), VOID)
        difference = np.abs(native.warp(image, geometry, (128, 192)).astype(int) - pixels)
        assert difference.max() <= (4 if OLD else 2) * max(1, geometry.brightness * geometry.contrast * 1.5)
        assert difference.mean() <= (0.7 if OLD else 0.2)
        assert (native.mask(mask, geometry, (128, 192), LUT, KNOWN)[0] == ids).all()


def test_the_mean_of_a_tall_bright_crop(native: Native) -> None:
    """Sums of columns are kept in 16 bits: they must be emptied in time."""
    image = np.full((700, 9, 3), 250, np.uint8)
    for scaled in ((700, 9), (690, 9)):
        geometry = Geometry((700, 9), scaled, 0, 0, contrast=0.5)
        assert (native.warp(image, geometry, (680, 9)) == 250).all()


FORMS = [Floats(dtype, last, *terms) for dtype in ("float32", "bfloat16") for last in (False, True)
         for terms in ((), ((0.1, 0.5, 0.9), (0.3, 1.0, 0.01)))]  # fmt: skip


@pytest.mark.parametrize("floats", FORMS, ids=lambda f: f"{f.dtype}-{'NHWC' if f.channels_last else 'NCHW'}-{f.std[0]}")
def test_floats_are_the_levels_normalized_afterwards_to_the_bit(native: Native, floats: Floats) -> None:
    """Odd sizes, flips, padding on all sides, reductions, a copy of rows, and colors with and without contrast."""
    for seed, size in enumerate([(211, 317), (40, 57), (3, 5), (90, 147), (640, 90)] * 4):
        image, _ = noise(*size, seed)
        crop = (90, 147) if seed % 3 else (61, 16)
        scale = (0.2, 3) if seed % 4 else (1, 1)
        data = Data(scale=scale, hue=0.2, jitter=(0.4, 0.4 * (seed % 2), 0.3), color_jitter_prob=0.7)
        geometry = draw(rng_for(seed, 0, 0), size, crop, data)
        levels = native.warp(image, geometry, crop)
        assert same(native.warp(image, geometry, crop, floats=floats), levels, floats)


def same(out: np.ndarray, levels: np.ndarray, floats: Floats) -> bool:
    """Whether ``out`` has the bits of torch's normalization."""
    values = normalize(torch.tensor(levels)[None], floats.mean, floats.std)[0].to(getattr(torch, floats.dtype))
    values = values.permute(1, 2, 0) if floats.channels_last else values
    kind = torch.int16 if floats.dtype == "bfloat16" else torch.int32
    return np.array_equal(out.view(f"i{floats.item_bytes}"), values.contiguous().view(kind).numpy())


@pytest.mark.parametrize("floats", FORMS, ids=lambda f: f"{f.dtype}-{'NHWC' if f.channels_last else 'NCHW'}-{f.std[0]}")
def test_finished_levels_are_normalized_with_the_library_and_without(
    native: Native, floats: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    for height, width in ((1, 1), (5, 15), (3, 16), (2, 65), (9, 131)):
        levels, _ = noise(height, width)
        for setting in ("1", "0"):
            monkeypatch.setenv("SEGTRAIN_NATIVE", setting)
            out = floats.view(np.empty(floats.bytes_of((height, width)), np.uint8), height, width)
            floats.write(levels, out)
            assert same(out, levels, floats)
