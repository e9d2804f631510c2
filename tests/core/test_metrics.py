"""Tests that every pixel counts once, and that the scores match their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import refused
from torch import Tensor

from segtrain.base.bins import add_up
from segtrain.metrics import confusions, histogram, predict_classes, refuse_unknown

C, VOID = 6, 255


def masks(n: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, C, (n, 13, 17), generator=generator).to(torch.uint8)
    target[torch.rand(target.shape, generator=generator) < 0.2] = VOID
    return torch.randint(0, C, target.shape, generator=generator).to(torch.uint8), target


def confusion(pred: Tensor, target: Tensor, ignore: int = VOID) -> Tensor:
    return confusions(pred[None], target[None], C, ignore)[0]


def naive_confusion(pred: Tensor, target: Tensor, ignore: int = VOID) -> list[list[int]]:
    counts = [[0] * C for _ in range(C)]
    for p, t in zip(pred.flatten().tolist(), target.flatten().tolist()):
        if t != ignore:
            counts[t][p] += 1
    return counts


@pytest.mark.parametrize("pred_type", [torch.uint8, torch.int64])
@pytest.mark.parametrize("target_type", [torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("ignore", [VOID, 2])
def test_confusion_counts_every_valid_pixel_once(pred_type, target_type, ignore):
    pred, target = masks()
    if ignore != VOID:
        target[target == VOID] = ignore
    counts = confusion(pred.to(pred_type), target.to(target_type), ignore)
    assert counts.dtype == torch.int64
    assert counts.tolist() == naive_confusion(pred, target, ignore)
    assert int(counts.sum()) == int((target != ignore).sum())


def test_the_histogram_of_a_gpu_is_that_of_bincount():
    index = torch.randint(
        0, 40, (5000,), generator=torch.Generator().manual_seed(0), dtype=torch.int32
    )
    assert torch.equal(histogram(index, minlength=50), torch.bincount(index, minlength=50))
    assert not histogram(index[:0], minlength=50).any()
    ones = torch.ones(len(index), dtype=torch.int64)
    for copies in (1, 3, 64):  # as many as the threads that would add to the same number
        assert torch.equal(add_up(50, index, ones, copies), torch.bincount(index, minlength=50))


@pytest.mark.parametrize("wrong", [C, 200, -7])
def test_what_is_checked_later_is_as_wrong_as_at_once(wrong):
    """On a GPU nobody waits to hear of unknown ids batch by batch."""
    pred, target = masks()
    later: list[Tensor] = []
    assert torch.equal(confusions(pred, target, C, later=later), confusions(pred, target, C))
    confusions(pred[:0], target[:0], C, later=later)
    refuse_unknown(later, C)
    refuse_unknown([], C)
    target = target.long()
    target[0, 0, :3] = wrong
    confusions(pred, target, C, later=later)
    with refused("unknown-ids", pixels=3, found=[wrong]):
        refuse_unknown(later, C)
    later = []
    confusions(torch.where(pred == 5, 6, pred), target, C, later=later)
    with refused("prediction-classes", found=(0, 6), expected=C):
        refuse_unknown(later, C)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("classes", [1, 2, 11, 300])
def test_predicted_class_is_the_lowest_of_the_largest(layout, dtype, classes):
    logits = torch.randint(
        -3, 3, (3, classes, 5, 8), generator=torch.Generator().manual_seed(1)
    ).to(dtype)
    logits[0] = -math.inf
    pred = predict_classes(logits.contiguous(memory_format=layout).requires_grad_())
    wanted = [
        max(range(classes), key=lambda c, v=v: (v[c], -c))
        for v in logits.permute(0, 2, 3, 1).flatten(0, 2).tolist()
    ]
    assert pred.shape == (3, 5, 8)
    assert pred.flatten().tolist() == wanted
    assert pred.dtype == (torch.uint8 if classes <= 256 else torch.int64)
