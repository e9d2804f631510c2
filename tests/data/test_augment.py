"""Tests that a sample equals the plain computation: resize the whole image, pad, crop, flip,
jitter.

Where a test says ``cut``, it runs twice: with OpenCV's functions and with the native ones.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from plain_crop import VOID, plain

from segtrain.config import Data
from segtrain.data.augment.geometry import FILL, Geometry, apply, class_center, draw
from segtrain.data.order import rng_for
from segtrain.data.pixels import native
from segtrain.data.pixels.crop import StoredSample, write_crop

# OpenCV before 5 rounds source coordinates to 1/32 pixel: 2 axes x 1/64 pixel x 255 levels; after
# it, rounding alone.
BOUND = 1 if int(cv2.__version__.split(".")[0]) >= 5 else 8


Cut = Callable[..., tuple[np.ndarray, np.ndarray]]


@pytest.fixture(params=["packages", "native"])
def cut(request: pytest.FixtureRequest) -> Cut:
    """``apply``, or what writes a crop of stored pixels by the native decoder."""
    if request.param == "packages":
        return apply
    if not native.available():
        pytest.skip(f"no native decoder here: {native.describe()}")

    def crop_of(image, mask, geometry, crop, ignore_index, out=None):  # type: ignore[no-untyped-def]
        out = out or (np.empty((*crop, 3), np.uint8), np.empty(crop, np.uint8))
        labels = SimpleNamespace(ignore_index=ignore_index, mask_dtype=np.uint8)
        write_crop(StoredSample(image, mask, "image", "mask", "train"), labels, geometry, crop, out)
        return out

    return crop_of


def picture(height: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noise: the worst case for a resampler."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (height, width, 3), np.uint8), rng.integers(
        0, 12, (height, width), np.uint8
    )


@pytest.mark.parametrize("scale", [0.11, 0.24, 0.3, 0.51, 0.99, 1.0, 1.3, 2.9])
@pytest.mark.parametrize("size", [(90, 161), (57, 40), (1, 50), (50, 1), (7, 5), (131, 303)])
def test_a_crop_is_that_of_the_resized_image(cut, size, scale):
    image, mask = picture(*size)
    data = Data(scale=(scale, scale), jitter=(0, 0, 0))
    # The native resampler: half a level of rounding, where blocks are averaged twice, and 0.05 for
    # weights and lines.
    bound = BOUND + 0.5 if cut is apply else 0.55 if scale >= 0.5 else 1.05
    for seed in range(6):
        crop = (32, 48) if seed % 2 else (71, 133)
        geometry = draw(rng_for(seed, 0, 0), size, crop, data)
        pixels, ids = cut(image, mask, geometry, crop, VOID)
        expected, expected_ids = plain(image, mask, geometry, crop)
        assert pixels.shape == (*crop, 3)
        assert pixels.dtype == ids.dtype == np.uint8
        assert np.abs(pixels - expected).max() <= bound
        assert np.abs(pixels - expected).mean() <= 0.31 * BOUND
        assert (ids == expected_ids).all()


def test_the_inputs_stay_untouched(cut):
    image, mask = picture(40, 40)
    before = image.copy(), mask.copy()
    for scale in (0.5, 1.0, 2.0):
        out = np.zeros((32, 32, 3), np.uint8), np.zeros((32, 32), np.uint8)
        geometry = draw(rng_for(0, 0, 0), (40, 40), (32, 32), Data(scale=(scale, scale), flip=1))
        assert cut(image, mask, geometry, (32, 32), VOID, out)[0] is out[0]
        out[0][...], out[1][...] = 1, 1
    assert (image == before[0]).all()
    assert (mask == before[1]).all()


def test_the_scale_is_drawn_by_the_law_that_was_asked_for():
    drawn = [
        draw(rng_for(0, 0, k), (1000, 1000), (9, 9), Data(scale_sampling="uniform")).scaled[0]
        for k in range(4000)
    ]
    counts, _ = np.histogram(drawn, 8, (500, 2000))
    assert counts.sum() == 4000
    assert abs(counts - 500).max() < 5 * np.sqrt(500)


def test_colors_change_as_often_and_as_much_as_asked_for():
    data = Data(jitter=(0.5, 0.5, 0.5), hue=0.1, color_jitter_prob=0.3)
    drawn = [draw(rng_for(0, 0, k), (99, 99), (9, 9), data) for k in range(4000)]
    changed = [g for g in drawn if (g.brightness, g.contrast, g.saturation, g.hue) != (1, 1, 1, 0)]
    assert abs(len(changed) / 4000 - 0.3) < 0.03
    hues = np.array([g.hue for g in changed])
    assert -0.1 <= hues.min() < -0.095
    assert 0.095 < hues.max() <= 0.1
    always = [
        draw(rng_for(0, 0, k), (99, 99), (9, 9), Data(jitter=(0.5, 0.5, 0.5))) for k in range(4000)
    ]
    places = {k for k, g in enumerate(drawn) if g in changed}
    for k, (one, other) in enumerate(zip(drawn, always)):
        assert (one.top, one.left, one.flip) == (other.top, other.left, other.flip)
        assert k not in places or one.brightness == other.brightness


def test_draws_cover_their_ranges_evenly():
    data = Data(scale=(0.5, 2.0), jitter=(0.3, 0.2, 0.0), flip=0.25)
    drawn = [draw(rng_for(0, 0, index), (1000, 1000), (200, 300), data) for index in range(4000)]
    logs = np.log2([g.scaled[0] / 1000 for g in drawn])
    tops = np.array([g.top / (g.scaled[0] - 200) for g in drawn])
    lefts = np.array([g.left / (g.scaled[1] - 300) for g in drawn])
    brightness = np.array([g.brightness for g in drawn])
    for values, low, high in ((logs, -1, 1), (tops, 0, 1), (lefts, 0, 1), (brightness, 0.7, 1.3)):
        counts, _ = np.histogram(values, 8, (low, high))
        assert counts.sum() == 4000
        assert abs(counts - 500).max() < 5 * np.sqrt(500)
    assert abs(np.mean([g.flip for g in drawn]) - 0.25) < 0.03
    assert all(g.saturation == 1.0 for g in drawn)
    assert len({g.contrast for g in drawn}) > 3900
    for one, other in ((logs, tops), (tops, lefts), (lefts, brightness)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.08


def in_source(geometry: Geometry, crop: tuple[int, int]) -> tuple[float, float, float, float]:
    """The crop's rectangle in source pixels: top, left, height, width; it may reach outside the
    image.
    """
    fy, fx = (size / scaled for size, scaled in zip(geometry.size, geometry.scaled))
    return geometry.top * fy, geometry.left * fx, crop[0] * fy, crop[1] * fx


def test_progressive_size_keeps_the_field_of_view():
    for index in range(50):
        full = draw(rng_for(0, 0, index), (720, 960), (384, 512), Data())
        half = draw(rng_for(0, 0, index), (720, 960), (192, 256), Data(), scale=(0.25, 1.0))
        assert (full.flip, full.brightness) == (half.flip, half.brightness)
        # Whole pixels of the smaller picture are up to 4 source pixels.
        assert np.allclose(in_source(full, (384, 512)), in_source(half, (192, 256)), atol=8)


def test_base_scale_multiplies():
    one = draw(rng_for(0, 0, 5), (500, 700), (64, 64), Data(base_scale=0.5))
    two = draw(rng_for(0, 0, 5), (500, 700), (64, 64), Data(base_scale=1.0))
    assert abs(2 * one.scaled[0] - two.scaled[0]) <= 1


def test_balanced_crops_center_on_the_class(cut):
    mask = np.zeros((300, 400), np.uint8)
    mask[150:153, 200:202] = 7  # six pixels of 120,000
    mask[:20] = VOID
    image = np.zeros((300, 400, 3), np.uint8)
    classes = []
    for index in range(200):
        rng = rng_for(0, 0, index)
        y, x = class_center(mask, rng.random(2), 12)
        classes.append(int(mask[y, x]))
        geometry = draw(rng, mask.shape, (64, 96), Data(jitter=(0, 0, 0)), (y, x))
        _, ids = cut(image, mask, geometry, (64, 96), VOID)
        if classes[-1] == 7:
            assert (ids[30:34, 46:50] == 7).any()  # far from the border: in the very middle
        else:
            top, left, height, width = in_source(geometry, (64, 96))
            assert top <= y + 1
            assert y <= top + height
            assert left <= x + 1
            assert x <= left + width
    assert 70 < classes.count(7) < 130
    assert classes.count(7) + classes.count(0) == 200


def test_a_void_mask_has_no_center():
    assert class_center(np.full((4, 4), VOID, np.uint8), np.zeros(2), 12) is None
    assert class_center(np.full((4, 4), 11, np.uint8), np.full(2, 1 - 2.0**-53), 12) == (3, 3)


COLORS = [
    (1.3, 1, 1, 0),
    (1, 0.7, 1, 0),
    (1, 1, 1.6, 0),
    (1, 1, 1, 0.1),
    (0.8, 1.3, 0.7, -0.2),
    (1.3, 1.3, 1.3, 0.5),
    (0, 1, 1, 0),
    (1, 0, 1, 0),
    (1, 1, 0, 0),
    (3, 2, 2, 0.3),
    (50, 1, 1, 0),
]


@pytest.mark.parametrize("colors", COLORS)
@pytest.mark.parametrize("scale", [0.4, 1.0])
def test_colors(cut, colors, scale):
    image, mask = picture(300, 120)
    image = (image // 2 + 40).astype(np.uint8)
    for seed, shape in enumerate(((280, 53), (64, 400))):  # the second is padded
        calm = Data(jitter=(0, 0, 0))
        still = draw(rng_for(seed, 0, 0), (300, 120), shape, calm, scale=(scale, scale))
        geometry = Geometry(still.size, still.scaled, still.top, still.left, still.flip, *colors)
        inside = plain(image, mask, still, shape)[1] != VOID
        out = cut(image, mask, geometry, shape, VOID)[0]
        expected = step_by_step(
            cut(image, mask, still, shape, VOID)[0].astype(float), inside, colors
        )
        assert (out[~inside] == FILL).all()
        assert np.abs(out - np.clip(expected, 0, 255))[inside].max() <= (
            0.75 if max(colors) < 1.7 else 1.0
        )


def step_by_step(
    image: np.ndarray, inside: np.ndarray, colors: tuple[float, float, float, float]
) -> np.ndarray:
    brightness, contrast, saturation, hue = colors
    out, gray = image * brightness, np.array([0.299, 0.587, 0.114])
    out = contrast * out + (1 - contrast) * (out[inside] @ gray).mean()
    out = saturation * out + (1 - saturation) * (out @ gray)[..., None]
    yiq = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
    y, i, q = np.moveaxis(out @ yiq.T, -1, 0)
    c, s = np.cos(2 * np.pi * hue), np.sin(2 * np.pi * hue)
    return np.stack([y, c * i + s * q, c * q - s * i], -1) @ np.linalg.inv(yiq).T
