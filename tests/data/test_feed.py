"""Tests that the device gets the loader's pixels although the loader reuses its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from segtrain.config import Data
from segtrain.data.datasets import open_dataset
from segtrain.data.device_feed import DeviceFeed
from segtrain.data.train_loader import Batch, TrainLoader

N = 12


class Loader:
    """Gives batches in one block of memory that it writes again as soon as the next one is asked
    for.
    """

    def __init__(self) -> None:
        self.block = torch.zeros(4, 8, 8, 3, dtype=torch.uint8)
        self.is_ready, self.asked = True, 0

    def __iter__(self) -> Iterator[list[Batch]]:
        for step in range(N):
            self.asked += 1
            self.block.fill_(step)
            yield [Batch(self.block, self.block[..., 0], np.arange(4), np.full(4, step))]

    def ready(self) -> bool:
        return self.is_ready and self.asked < N


class LateCopier:
    """As a GPU that copies as late as it may: when somebody waits for it."""

    def __init__(self) -> None:
        self.pending: list[tuple[Tensor, Tensor]] = []
        self.kept: list[Any] = []

    def copy(self, tensor: Tensor) -> Tensor:
        target = torch.full_like(tensor, 255)
        self.pending.append((target, tensor))
        return target

    def mark(self) -> LateCopier:
        return self

    def synchronize(self) -> None:
        for target, tensor in self.pending:
            target.copy_(tensor)
        self.pending.clear()

    def hand_over(self, tensors: list[Tensor], mark: Any) -> None:
        assert mark is self
        self.kept.append(tensors)


@pytest.mark.parametrize("lookahead", ["always", "never", "sometimes"])
def test_memory_is_given_back_only_after_its_copy(lookahead):
    loader, copier = Loader(), LateCopier()
    feed, given = DeviceFeed(loader, "cpu", copier), []
    for step, (_, placed) in enumerate(feed):
        assert loader.asked == step + 1
        given.append(placed)
        loader.is_ready = lookahead == "always" or (lookahead == "sometimes" and step % 3 > 0)
        feed.ahead()
        feed.ahead()  # a second time does nothing
        assert loader.asked == min(N, step + 1 + loader.is_ready)
    copier.synchronize()
    assert len(given) == N
    for step, (batch,) in enumerate(given):
        assert (batch.images == step).all()
        assert (batch.masks == step).all()
        assert (batch.epochs == step).all()
    assert [len(tensors) for tensors in copier.kept] == [2] * N


def test_on_the_cpu_nothing_is_copied():
    loader = Loader()
    feed = DeviceFeed(loader, "cpu")
    for batches, placed in feed:
        assert placed is batches
        asked = loader.asked
        feed.ahead()
        assert loader.asked == asked


def test_tuples_and_numbers_pass():
    class Groups(Loader):
        def __iter__(self) -> Iterator[Any]:
            yield np.arange(2), self.block, 7

    ((_, placed),) = list(DeviceFeed(Groups(), "cpu", LateCopier()))
    assert isinstance(placed, tuple)
    assert (placed[0] == [0, 1]).all()
    assert placed[2] == 7
    assert placed[1].data_ptr() != Groups().block.data_ptr()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_the_gpu_sees_every_pixel(kind):
    data, device = Data(scenes=9, scene_size=(96, 128), crop=(64, 96)), torch.device("cuda")
    settings: dict[str, Any] = {"seed": 1, "batch_size": 8, "last_step": 60, "accumulate": 2}
    dataset = open_dataset(data, "train")
    with TrainLoader(dataset, data, **settings) as plain:
        wanted = [
            [int(b.images.long().sum() * 7 + b.masks.long().sum()) for b in step] for step in plain
        ]
    sums, busy = [], torch.randn(1024, 1024, device=device)
    with TrainLoader(
        dataset, data, **settings, workers=2, kind=kind, pin_memory=True, prefetch=2
    ) as loader:
        feed = DeviceFeed(loader, device)
        for _, placed in feed:
            for _ in range(20):  # work that the copies must not overtake
                busy = torch.nn.functional.normalize(busy @ busy)
            sums.append([b.images.long().sum() * 7 + b.masks.long().sum() for b in placed])
            feed.ahead()
    assert [[int(s) for s in step] for step in sums] == wanted
