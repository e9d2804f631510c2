"""Windows, scales and mirror images: every pixel covered, weights exact, labels never mixed, memory
of one tile.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segtrain.evaluation import tiles
from segtrain.evaluation.tiles import View


def pointwise(images: torch.Tensor) -> torch.Tensor:
    """Logits (N, 4, H, W) that depend on the pixel alone: windows must not change them."""
    weight = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.9, -1.1], [-0.7, 0.2, 1.4], [0.1, 0.1, 0.1]])
    return torch.einsum("kc,nchw->nkhw", weight, images)


def picture(height: int, width: int, count: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 400), st.integers(1, 120), st.floats(0, 0.95))
def test_windows_cover_every_pixel_inside_the_image(length, tile, overlap):
    first = tiles.starts(length, tile, overlap)
    size = min(tile, length)
    assert first[0] == 0
    assert first[-1] == length - size
    assert all(a < b for a, b in itertools.pairwise(first))
    assert all(b - a <= max(1, round(tile * (1 - overlap))) for a, b in itertools.pairwise(first))
    counts = tiles.coverage(length, size, first).tolist()
    assert min(counts) >= 1
    assert sum(counts) == len(first) * size


@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("size", [(37, 53), (16, 60), (20, 24), (5, 7)])
def test_windows_of_a_pointwise_model_change_nothing(size, overlap):
    images = picture(*size, count=2)
    whole = tiles.predict_scores(pointwise, images)
    assert torch.equal(whole, pointwise(images))
    windows = tiles.predict_scores(pointwise, images, View((16, 20), overlap))
    single = View((16, 20)).is_single(size)
    torch.testing.assert_close(windows, whole if single else whole.softmax(1), rtol=1e-6, atol=1e-6)


def test_scores_are_the_plain_mean_over_the_windows_that_see_a_pixel():
    """A model that looks at its whole window, against a direct sum over windows."""
    images = picture(23, 31)

    def contextual(crop: torch.Tensor) -> torch.Tensor:
        return pointwise(crop) + crop.mean((1, 2, 3), keepdim=True) * torch.arange(4.0).view(
            1, 4, 1, 1
        )

    expected, count = (
        torch.zeros(1, 4, 23, 31, dtype=torch.float64),
        torch.zeros(1, 1, 23, 31, dtype=torch.float64),
    )
    for top in (0, 5, 10, 13):
        for left in (0, 6, 12, 18, 19):
            window = (..., slice(top, top + 10), slice(left, left + 12))
            crop = images[window]
            mirrored = contextual(crop.flip(-1)).softmax(1).flip(-1)
            expected[window] += ((contextual(crop).softmax(1) + mirrored) / 2).double()
            count[window] += 1
    assert count.min() >= 1
    scores = tiles.predict_scores(contextual, images, View((10, 12), flip=True))
    torch.testing.assert_close(scores.double(), expected / count, rtol=1e-6, atol=1e-7)
    ids = tiles.predict_ids(contextual, images, View((10, 12), flip=True))
    assert torch.equal(ids.long(), scores.max(1)[1])


def test_flip_and_scales_average_probabilities():
    images = picture(16, 24)

    def sided(crop: torch.Tensor) -> torch.Tensor:
        return pointwise(crop) + torch.linspace(-1, 1, crop.shape[-1])

    logits = sided(images).softmax(1)
    flipped = sided(images.flip(-1)).softmax(1).flip(-1)
    torch.testing.assert_close(
        tiles.predict_scores(sided, images, View(flip=True)), (logits + flipped) / 2
    )

    def at(scale: float) -> torch.Tensor:
        part = sided(tiles.resize(images, (round(16 * scale), round(24 * scale)))).softmax(1)
        return torch.nn.functional.interpolate(part, (16, 24), mode="bilinear", align_corners=False)

    scores = tiles.predict_scores(sided, images, View(scales=(0.5, 1.0, 1.75)))
    torch.testing.assert_close(scores, (at(0.5) + logits + at(1.75)) / 3)
    assert torch.allclose(scores.sum(1), torch.ones(1, 16, 24))


def test_one_window_at_a_time_and_strips_of_one_tile_height():
    seen: list[tuple[int, ...]] = []

    def watched(crop: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(crop.shape))
        return pointwise(crop)

    images = picture(100, 40)
    pieces = list(tiles.strips(watched, images, View((16, 20))))
    assert set(seen) == {(1, 3, 16, 20)}
    assert max(piece.shape[2] for _, piece in pieces) <= 16
    assert [top for top, _ in pieces] == tiles.starts(100, 16, 0.5)
    torch.testing.assert_close(
        torch.cat([p for _, p in pieces], 2), pointwise(images).softmax(1), rtol=1e-6, atol=1e-6
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 60), st.integers(1, 60))
def test_nearest_takes_the_label_under_the_pixel_center(height, width, new_height, new_width):
    masks = torch.arange(height * width).view(1, height, width) % 251
    got = tiles.nearest(masks.to(torch.uint8), (new_height, new_width))
    rows = [int((i + 0.5) * height / new_height + 1e-9) for i in range(new_height)]
    columns = [int((j + 0.5) * width / new_width + 1e-9) for j in range(new_width)]
    assert torch.equal(got.long(), masks[:, rows][:, :, columns])


def test_ids_at_another_size_come_from_resized_scores():
    images = picture(12, 20)
    ids = tiles.predict_ids(pointwise, images, size=(24, 10))
    scores = torch.nn.functional.interpolate(
        pointwise(images), (24, 10), mode="bilinear", align_corners=False
    )
    assert torch.equal(ids.long(), scores.max(1)[1])
