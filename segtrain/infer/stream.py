"""Prediction of a stream of images: in batches of one size, with the next batch already on its way
to the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from segtrain.evaluation.tiles import Size

if TYPE_CHECKING:
    from segtrain.infer.predictor import Predictor

# class ids (H, W), probabilities float16 (C, H, W) or None
Segmentation = tuple[np.ndarray, np.ndarray | None]
Waiting = Callable[[], list[Segmentation]]  # waits for the results of a batch
AHEAD = 2  # batches of images that may wait for others of their size


@dataclass(frozen=True)
class Item:
    """An image uint8 (H, W, 3) or float32 (H, W, bands), its name for messages, what the caller
    knows it by, and bool (H, W): pixels without data, which become ignored ones.
    """

    pixels: np.ndarray
    name: str
    key: Any = None
    void: np.ndarray | None = None

    @property
    def size(self) -> Size:
        return self.pixels.shape[0], self.pixels.shape[1]


def grouped(items: Iterable[Item], most: Callable[[Size], int]) -> Iterator[list[Item]]:
    """Groups of ``most(size)`` items of one size; smaller ones when AHEAD times as many items wait,
    and at the end.
    """
    # first the size whose oldest item has waited for the longest
    waiting: dict[Size, list[Item]] = {}
    for item in items:
        group, limit = waiting.setdefault(item.size, []), most(item.size)
        group.append(item)
        if len(group) >= limit:
            yield waiting.pop(item.size)
        elif sum(map(len, waiting.values())) >= AHEAD * limit:
            yield waiting.pop(next(iter(waiting)))
    yield from waiting.values()


def segmented(
    predictor: Predictor, items: Iterable[Item], batch_size: int = 0, probabilities: bool = False
) -> Iterator[tuple[Item, Segmentation]]:
    """Each item with its result, batch by batch. Items of one size keep their order.

    batch_size: images in a batch; 0: as ``Predictor.batch_size`` says. On a GPU, a batch is waited
    for when the next one is launched. Raises SegtrainError if a logit is NaN or infinite.
    """
    limits: dict[Size, int] = {}

    def most(size: Size) -> int:
        if size not in limits:
            limits[size] = batch_size or (1 if probabilities else predictor.batch_size(size))
        return limits[size]

    def launch(group: list[Item]) -> Iterator[tuple[list[Item], Waiting]]:
        try:
            yield (
                group,
                predictor.launch([(item.pixels, item.name) for item in group], probabilities),
            )
        except torch.cuda.OutOfMemoryError:
            if len(group) == 1:
                raise
            half = limits[group[0].size] = len(group) // 2
            for begin in range(0, len(group), half):
                yield from launch(group[begin : begin + half])

    def done(group: list[Item], results: Waiting) -> Iterator[tuple[Item, Segmentation]]:
        for item, (ids, scores) in zip(group, results()):
            if item.void is not None:
                ids[item.void] = predictor.labels.ignore_index
            yield item, (ids, scores)

    pending = deque[tuple[list[Item], Waiting]]()
    for group in grouped(items, most):
        for launched in launch(group):
            pending.append(launched)
            if len(pending) > predictor.asynchronous:
                yield from done(*pending.popleft())
    for launched in pending:
        yield from done(*launched)
