"""Tests that color jitter of a whole batch equals that of the workers, and leaves padding alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from segtrain.config import Data
from segtrain.data.augment.geometry import Geometry, apply, color_matrix, color_terms, draw
from segtrain.data.order import rng_for
from segtrain.data.pixels.normalize import IMAGENET_MEAN, IMAGENET_STD, normalize

CROP = (40, 56)
DEVICES = ["cpu", "cuda"]


def terms(*colors: tuple[float, float, float, float]) -> torch.Tensor:
    return torch.from_numpy(np.stack([color_terms(each) for each in colors]))


def batch_of(data: Data, size: tuple[int, int]) -> tuple[list[Geometry], np.ndarray, np.ndarray]:
    """Geometries, and their crops without colors and with them."""
    rng = np.random.default_rng(0)
    image, mask = rng.integers(0, 256, (*size, 3), np.uint8), np.zeros(size, np.uint8)
    drawn = [draw(rng_for(0, 0, index), size, CROP, data) for index in range(12)]
    without, colored = (
        np.stack([apply(image, mask, geometry, CROP, 255)[0] for geometry in geometries])
        for geometries in ([g.plain() for g in drawn], drawn)
    )
    return drawn, without, colored


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return torch.device(request.param)


@pytest.mark.parametrize("channels_last", [False, True])
# never, sometimes and always padded
@pytest.mark.parametrize("size", [(90, 121), (30, 200), (25, 31)])
def test_colors_are_those_of_the_workers(device, size, channels_last):
    data = Data(scale=(0.7, 1.6), jitter=(0.4, 0.5, 0.6), hue=0.3, color_jitter_prob=0.8)
    drawn, without, colored = batch_of(data, size)
    out = normalize(
        torch.from_numpy(without).to(device),
        channels_last=channels_last,
        colors=terms(*(g.colors for g in drawn)).to(device),
        covered=torch.tensor([g.covered(CROP) for g in drawn], device=device),
    )
    assert out.shape == (12, 3, *CROP)
    assert out.dtype == torch.float32
    memory = torch.channels_last if channels_last else torch.contiguous_format
    assert out.is_contiguous(memory_format=memory)
    levels = (
        out.cpu().permute(0, 2, 3, 1) * torch.tensor(IMAGENET_STD) + torch.tensor(IMAGENET_MEAN)
    ) * 255
    difference = (levels - torch.from_numpy(colored)).abs()
    assert difference.max() <= 1.01  # OpenCV's fixed point, and the rounding that is left out here
    assert difference.mean() <= 0.3
    # Padding, and images whose colors stay, are what they are without colors.
    still = normalize(torch.from_numpy(without))
    outside = np.ones((12, *CROP), bool)
    for k, geometry in enumerate(drawn):
        top, left, bottom, right = geometry.covered(CROP)
        outside[k, top:bottom, left:right] = geometry.colors == (1, 1, 1, 0)
    assert outside.any()
    chosen = torch.from_numpy(outside)[:, None].expand_as(still)
    assert torch.allclose(out.cpu()[chosen], still[chosen], atol=1e-5)


def test_without_padding_no_rectangle_is_needed():
    drawn, without, _ = batch_of(Data(scale=(1, 1.6)), (90, 121))
    colors = terms(*(g.colors for g in drawn))
    whole = torch.tensor([[0, 0, *CROP]]).expand(12, 4)
    images = torch.from_numpy(without)
    assert torch.equal(
        normalize(images, colors=colors), normalize(images, colors=colors, covered=whole)
    )


def test_extreme_colors_are_clamped():
    images = (
        torch.tensor([0, 255], dtype=torch.uint8)
        .repeat(3)[None, :, None, None]
        .expand(1, 6, 2, 3)
        .contiguous()
    )
    out = normalize(images, colors=terms((9.0, 1.0, 3.0, 0.4)))
    assert torch.allclose(out, normalize(images), atol=1e-4)


def test_the_terms_of_colors_are_their_matrix_and_the_share_of_the_mean_gray():
    colors = (0.75, 1.5, 0.5, 0.125)  # exact in float32
    assert terms(colors)[0, :9].tolist() == np.float32(color_matrix(*colors)).flatten().tolist()
    assert terms(colors)[0, 9] == -0.375
    assert torch.allclose(terms((1.0, 1.0, 1.0, 0.0))[0, :9].view(3, 3), torch.eye(3), atol=1e-7)


@pytest.mark.parametrize("channels_last", [False, True])
def test_only_the_first_batch_copies_constants(channels_last, monkeypatch):
    images = torch.from_numpy(batch_of(Data(), (90, 121))[1])
    more = {
        "colors": terms(*[(1.2, 0.8, 1.0, 0.1)] * 12),
        "covered": torch.tensor([[0, 0, *CROP]] * 12),
    }
    first = [normalize(images, channels_last=channels_last, **each) for each in ({}, more)]
    monkeypatch.setattr(
        torch, "tensor", lambda *_, **__: pytest.fail("a copy that a GPU would be waited for")
    )
    again = [normalize(images, channels_last=channels_last, **each) for each in ({}, more)]
    assert all(torch.equal(a, b) for a, b in zip(first, again))
