"""Tests that a rotated crop equals rotating the whole scaled image about the center of the crop."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from segtrain.config import Data
from segtrain.data.augment.geometry import FILL, Geometry, draw
from segtrain.data.order import rng_for
from segtrain.data.pixels.crop import StoredSample, write_crop
from segtrain.errors import ConfigError

VOID = 255
CROP = (48, 64)


def cells(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Soft colors, and a mask of cells that the image shows as well: 8 times the id in the red
    channel.
    """
    rng = np.random.default_rng(0)
    mask = np.kron(
        rng.integers(0, 20, (height // 10 + 1, width // 10 + 1)), np.ones((10, 10), int)
    )[:height, :width]
    image = cv2.GaussianBlur(rng.integers(0, 256, (height, width, 3), np.uint8), (0, 0), 3)
    image[..., 0] = 8 * mask
    return image, mask.astype(np.uint8)


def crop_of(
    image: np.ndarray, mask: np.ndarray, geometry: Geometry
) -> tuple[np.ndarray, np.ndarray]:
    out = np.empty((*CROP, 3), np.uint8), np.empty(CROP, np.uint8)
    labels = SimpleNamespace(ignore_index=VOID, mask_dtype=np.uint8)
    write_crop(StoredSample(image, mask, "image", "mask", "train"), labels, geometry, CROP, out)
    return out


def plain(
    image: np.ndarray, mask: np.ndarray, g: Geometry
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """In float64, point by point: image (nan where there is none), mask, and where the nearest
    pixel is not in doubt.
    """
    y, x = np.mgrid[: CROP[0], : CROP[1]] + 0.5
    if g.flip:
        x = CROP[1] - x
    dy, dx = y - CROP[0] / 2, x - CROP[1] / 2
    cos, sin = np.cos(np.radians(g.angle)), np.sin(np.radians(g.angle))
    # A picture that turns counter-clockwise is read along a window that turns clockwise; y points
    # down.
    sy, sx = g.top + CROP[0] / 2 - sin * dx + cos * dy, g.left + CROP[1] / 2 + cos * dx + sin * dy
    py, px = sy * g.size[0] / g.scaled[0], sx * g.size[1] / g.scaled[1]
    inside = (py >= 0) & (py < g.size[0]) & (px >= 0) & (px < g.size[1])
    sure = (np.minimum(abs(py - np.round(py)), abs(px - np.round(px))) > 0.02) & (
        inside | (py < -1) | (px < -1) | (py > g.size[0] + 1) | (px > g.size[1] + 1)
    )
    iy, ix = np.clip(py.astype(int), 0, g.size[0] - 1), np.clip(px.astype(int), 0, g.size[1] - 1)
    ids = np.where(inside, mask[iy, ix], VOID)
    padded = np.pad(image.astype(float), ((1, 1), (1, 1), (0, 0)), mode="edge")
    qy, qx = np.clip(py + 0.5, 0, g.size[0]), np.clip(px + 0.5, 0, g.size[1])
    y0, x0 = np.floor(qy).astype(int), np.floor(qx).astype(int)
    wy, wx = (qy - y0)[..., None], (qx - x0)[..., None]
    top = padded[y0, x0] * (1 - wx) + padded[y0, x0 + 1] * wx
    low = padded[y0 + 1, x0] * (1 - wx) + padded[y0 + 1, x0 + 1] * wx
    well_inside = (py > 1) & (py < g.size[0] - 1) & (px > 1) & (px < g.size[1] - 1)
    return np.where(well_inside[..., None], top * (1 - wy) + low * wy, np.nan), ids, sure


@pytest.mark.parametrize("angle", [3.0, -17.0, 45.0, 90.0, -170.0])
@pytest.mark.parametrize("scale", [0.55, 1.0, 1.8])
def test_a_rotated_crop_is_that_of_the_whole_picture(angle, scale):
    image, mask = cells(150, 200)
    for seed in range(5):
        geometry = replace(
            draw(
                rng_for(seed, 0, 0), (150, 200), CROP, Data(scale=(scale, scale), jitter=(0, 0, 0))
            ),
            angle=angle,
        )
        pixels, ids = crop_of(image, mask, geometry)
        expected, expected_ids, sure = plain(image, mask, geometry)
        seen = ~np.isnan(expected)
        assert seen.any()
        # OpenCV before 5 knows positions to 1/32 pixel
        assert np.abs(pixels[seen] - expected[seen]).mean() <= 1.0
        assert sure.mean() > 0.5
        assert (ids == expected_ids)[sure].mean() > 0.995
        far = (expected_ids == VOID) & (ids == VOID) & sure
        assert (
            not far.any()
            or (pixels[cv2.erode(far.astype(np.uint8), np.ones((5, 5))) > 0] == FILL).all()
        )


@pytest.mark.parametrize("scale", [0.12, 0.3])
def test_small_scales_average_before_they_turn(scale):
    image, mask = cells(600, 800)
    noisy = np.clip(image + np.random.default_rng(0).normal(0, 60, image.shape), 0, 255).astype(
        np.uint8
    )
    geometry = replace(
        draw(rng_for(0, 0, 0), (600, 800), CROP, Data(scale=(scale, scale), jitter=(0, 0, 0))),
        angle=20.0,
    )
    calm, _ = crop_of(image, mask, geometry)
    pixels, _ = crop_of(noisy, mask, geometry)
    assert np.abs(pixels.astype(int) - calm).mean() < 30  # without averaging: 44


def test_angles_are_drawn_evenly_and_move_nothing_else():
    with_angle = [draw(rng_for(0, 0, k), (99, 99), (9, 9), Data(rotate=10)) for k in range(4000)]
    without = [draw(rng_for(0, 0, k), (99, 99), (9, 9), Data()) for k in range(4000)]
    counts, _ = np.histogram([g.angle for g in with_angle], 8, (-10, 10))
    assert counts.sum() == 4000
    assert abs(counts - 500).max() < 5 * np.sqrt(500)
    assert [replace(g, angle=0.0) for g in with_angle] == without


def test_a_window_that_turns_away_from_the_picture_is_padding():
    image, mask = cells(4, 4)
    pixels, ids = crop_of(image, mask, Geometry((4, 4), (4, 4), 0, -60, angle=90.0))
    assert (ids == VOID).all()
    assert (pixels == FILL).all()


def test_colors_on_the_device_cannot_come_after_a_rotation():
    from segtrain.config import make_config

    with pytest.raises(ConfigError, match=r"data\.rotate runs after color jitter, on the CPU"):
        make_config({"data": {"rotate": 10, "color_jitter_on": "device"}})
