"""How do samples get from the disk into batches, ahead of the device?

Threads are the workers: decoders and OpenCV release the GIL, and a batch needs no copy between processes. Each sample is written
straight into its place in the batch (uint8; pinned where asked). What a sample is depends on (seed, epoch, id) alone, so the
number of workers changes speed and nothing else. Steps are jobs in a queue of bounded length: that bounds memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import torch

from segtrain.config import Data
from segtrain.data.augment import apply, class_centre, draw
from segtrain.data.cache import RamCache, Source
from segtrain.data.normalise import IMAGENET_MEAN as IMAGENET_MEAN
from segtrain.data.normalise import IMAGENET_STD as IMAGENET_STD
from segtrain.data.normalise import normalise as normalise
from segtrain.data.order import CLASS, rank_slice, rng_for, samples
from segtrain.errors import DataError, SegtrainError

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass
class Batch:
    """One micro-batch of one rank."""

    images: torch.Tensor  # uint8 (n, H, W, 3), RGB
    masks: torch.Tensor  # uint8 (n, H, W), train ids
    ids: np.ndarray  # int64 [n], places in the data set
    epochs: np.ndarray  # int64 [n]


def worker_count(setting: int | str, ranks: int = 1, cpu_training: bool = False) -> int:
    """Decoding threads of a rank: the setting, or for 'auto' this rank's share of the cores it may run on (at most 16).

    Where the model trains on the CPU, one: it fills the gaps that compute leaves and takes no more cores from it.
    """
    if setting != "auto":
        return int(setting)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if cpu_training else max(1, min(16, cores // max(1, ranks)))


@dataclass
class _Job:
    """Calls that fill ``result``; independent of each other."""

    calls: list[Callable[[], None]]
    result: Any


def _in_order(jobs: Iterable[_Job], workers: int, ahead: int) -> Iterator[Any]:
    """Results of ``jobs`` in order, with at most ``ahead`` jobs begun and not yet given out.

    The first call that raises ends it, when its job's turn comes. Ends with all threads gone, however it ends.
    """
    if workers == 0:
        for job in jobs:
            for call in job.calls:
                call()
            yield job.result
        return
    source = iter(jobs)
    waiting: deque[tuple[list[Future[None]], Any]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="segtrain-data")

    def top_up() -> None:
        while len(waiting) < ahead:
            job = next(source, None)
            if job is None:
                return
            waiting.append(([pool.submit(call) for call in job.calls], job.result))

    try:
        top_up()
        while waiting:
            futures, result = waiting.popleft()
            for future in futures:
                future.result()
            top_up()
            yield result
            del futures, result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _named(source: Source, index: int, error: Exception) -> SegtrainError:
    """An error of a worker, with the file in its text."""
    if isinstance(error, SegtrainError):
        return error
    entry = source.entries[index]
    files = f"{entry.image} with {entry.mask}" if entry.mask else str(entry.image)
    return DataError(f"{files}: {type(error).__name__}: {' '.join(str(error).split())}: repair or remove the files")


def _sizes(source: Source, index: int, image: np.ndarray, mask: np.ndarray, rule: str) -> str:
    entry = source.entries[index]
    return (
        f"{entry.image}: the image has {image.shape[0]}x{image.shape[1]} pixels, its mask {entry.mask} "
        f"{mask.shape[0]}x{mask.shape[1]}: both must be {rule}"
    )


class _Loader:
    """Iterates once at a time; closing ends the threads."""

    _running: Any = None

    def _jobs(self) -> Iterator[_Job]:
        raise NotImplementedError

    def _start(self, workers: int, ahead: int) -> Iterator[Any]:
        self.close()
        # OpenCV's own threads would fight with the workers and with the model.
        cv2.setNumThreads(1)
        self._running = _in_order(self._jobs(), workers, ahead)
        return self._running

    def close(self) -> None:
        """End the threads; what they had read ahead is dropped."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TrainLoader(_Loader):
    """Yields for each step from ``first_step`` to ``last_step - 1`` this rank's micro-batches: ``list[Batch]``.

    ``size_at(step)`` gives the crop (height, width) and the (least, most) random scale. ``workers=0`` reads in the consumer's thread.
    ``prefetch`` micro-batches (at least one step) are made ahead.
    Raises ConfigError where the batch is too small for the ranks, DataError where there are no samples or a file is bad.
    """

    def __init__(
        self,
        dataset: Source,
        data: Data,
        *,
        seed: int,
        batch_size: int,
        accumulate: int = 1,
        rank: int = 0,
        world: int = 1,
        first_step: int = 0,
        last_step: int,
        size_at: Callable[[int], tuple[tuple[int, int], tuple[float, float]]] | None = None,
        pin_memory: bool = False,
        workers: int = 0,
        prefetch: int = 4,
    ) -> None:
        if not len(dataset):
            samples(seed, 0, 0, 0)  # says what is wrong
        self.dataset: Source = dataset
        if data.cache == "ram" and not isinstance(dataset, RamCache):
            self.dataset = RamCache(dataset)
        self.data, self.seed, self.batch_size = data, seed, batch_size
        self.parts = [rank_slice(batch_size, world, rank, accumulate, micro) for micro in range(accumulate)]
        self.first_step, self.last_step = first_step, last_step
        self.size_at = size_at or (lambda step: (data.crop, data.scale))
        self.pin_memory, self.workers = pin_memory, workers
        self.ahead = max(1, prefetch // accumulate)

    def __len__(self) -> int:
        return max(0, self.last_step - self.first_step)

    def __iter__(self) -> Iterator[list[Batch]]:
        return self._start(self.workers, self.ahead)

    def _jobs(self) -> Iterator[_Job]:
        for step in range(self.first_step, self.last_step):
            crop, scale = self.size_at(step)
            epochs, ids = samples(self.seed, len(self.dataset), step * self.batch_size, self.batch_size)
            job = _Job([], [])
            for part in self.parts:
                batch = _empty_batch(ids[part], epochs[part], crop, self.pin_memory)
                images, masks = batch.images.numpy(), batch.masks.numpy()
                for k, (index, epoch) in enumerate(zip(batch.ids.tolist(), batch.epochs.tolist())):
                    job.calls.append(_Sample(self, index, epoch, crop, scale, (images[k], masks[k])))
                job.result.append(batch)
            yield job


def _empty_batch(ids: np.ndarray, epochs: np.ndarray, size: tuple[int, int], pin_memory: bool) -> Batch:
    n, (height, width) = len(ids), size
    images = torch.empty((n, height, width, 3), dtype=torch.uint8, pin_memory=pin_memory)
    masks = torch.empty((n, height, width), dtype=torch.uint8, pin_memory=pin_memory)
    return Batch(images, masks, ids, epochs)


@dataclass
class _Sample:
    """One training sample; called, it writes its crop to ``out``."""

    loader: TrainLoader
    index: int
    epoch: int
    crop: tuple[int, int]
    scale: tuple[float, float]
    out: tuple[np.ndarray, np.ndarray]

    def __call__(self) -> None:
        loader, data = self.loader, self.loader.data
        key = (loader.seed, self.epoch, self.index)
        try:
            image, mask = loader.dataset.read(self.index)
            if image.shape[:2] != mask.shape:
                raise DataError(_sizes(loader.dataset, self.index, image, mask, "of one size"))
            centre = None
            if data.balance > 0:
                u = rng_for(*key, CLASS).random(3)
                if u[0] < data.balance:
                    centre = class_centre(mask, u[1:], loader.dataset.labels.num_classes)
            geometry = draw(rng_for(*key), mask.shape, self.crop, data, centre, self.scale)
            apply(image, mask, geometry, self.crop, loader.dataset.labels.ignore_index, self.out)
        except Exception as error:
            raise _named(loader.dataset, self.index, error) from error


class EvalLoader(_Loader):
    """Yields for each group (see ``order.eval_groups``) its indices, images uint8 (n, H, W, 3) and masks uint8 (n, H, W)."""

    def __init__(
        self,
        dataset: Source,
        groups: Sequence[Sequence[int]],
        workers: int = 0,
        prefetch: int = 4,
        pin_memory: bool = False,
    ) -> None:
        self.dataset, self.groups = dataset, groups
        self.workers, self.prefetch, self.pin_memory = workers, prefetch, pin_memory

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        return self._start(self.workers, max(1, self.prefetch))

    def _jobs(self) -> Iterator[_Job]:
        for group in self.groups:
            ids = np.asarray(group, np.int64)
            try:
                size = self.dataset.size(group[0])
            except Exception as error:
                raise _named(self.dataset, group[0], error) from error
            batch = _empty_batch(ids, ids, size, self.pin_memory)
            images, masks = batch.images.numpy(), batch.masks.numpy()
            calls: list[Callable[[], None]] = [
                _Whole(self.dataset, index, (images[k], masks[k])) for k, index in enumerate(ids.tolist())
            ]
            yield _Job(calls, (ids, batch.images, batch.masks))


@dataclass
class _Whole:
    """One whole image; called, it writes it to ``out``."""

    dataset: Source
    index: int
    out: tuple[np.ndarray, np.ndarray]

    def __call__(self) -> None:
        try:
            image, mask = self.dataset.read(self.index)
            if image.shape != self.out[0].shape or mask.shape != self.out[1].shape:
                raise DataError(
                    _sizes(
                        self.dataset,
                        self.index,
                        image,
                        mask,
                        f"{self.out[1].shape[0]}x{self.out[1].shape[1]}, as their group",
                    )
                )
            self.out[0][...] = image
            self.out[1][...] = mask
        except Exception as error:
            raise _named(self.dataset, self.index, error) from error
