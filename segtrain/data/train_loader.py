"""Loaders that read samples from storage and make batches of them, before the device needs them.

Workers (threads or processes, see workers/pool.py) write each sample directly into its part of the
batch: uint8, in memory that is allocated once and reused (see workers/memory.py). A sample depends
only on (seed, epoch, index), so the workers affect only speed. Finished batches wait in a queue of
limited length.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from segtrain.config import Data
from segtrain.data.cache import RamCache
from segtrain.data.dataset import SampleSource
from segtrain.data.order import rank_slice, samples
from segtrain.data.pixels.floats import Floats
from segtrain.data.pixels.normalize import normalize as normalize
from segtrain.data.sample import COLOR_BYTES, SampleMaker, Task, make_whole, named
from segtrain.data.workers.autoscaler import Autoscaler
from segtrain.data.workers.batch import BatchTask, offsets
from segtrain.data.workers.memory import Ring
from segtrain.data.workers.passes import Loader
from segtrain.data.workers.pool import WorkerPool

# Threads that read the headers of images in a bucket, and images that one of them reads at a time.
_HEADER_READERS, _HEADERS = 64, 4


@dataclass
class Batch:
    """One micro-batch of one rank. Its tensors are in reused memory: clone them to keep them beyond
    the next step.
    """

    # uint8 (n, H, W, 3), RGB; float32 (n, H, W, bands) in stored units; or normalized (n, C, H, W),
    # if the loader makes floats
    images: torch.Tensor
    masks: torch.Tensor  # (n, H, W), train ids: uint8, or uint16 with more than 254 classes
    indices: np.ndarray  # int64 [n], of the samples in the data set
    epochs: np.ndarray  # int64 [n]
    looks: torch.Tensor | None = None  # uint8 (n, COLOR_BYTES); None: no color jitter on the device

    @property
    def colors(self) -> torch.Tensor | None:
        """float32 (n, 10), see ``normalize``."""
        return None if self.looks is None else self.looks.view(torch.float32)[:, :10]

    @property
    def covered(self) -> torch.Tensor | None:
        """int32 (n, 4), see ``normalize``: where the image is, without padding."""
        return None if self.looks is None else self.looks.view(torch.int32)[:, 10:]


def worker_kind(data: Data) -> str:
    """'thread' or 'process'. auto means threads, because decoders release the GIL, but processes
    for user transforms.

    A RAM cache needs threads, because each process would keep its own copy of the images: with it,
    auto means threads.
    """
    kind = data.worker_kind
    if kind == "auto":
        local = data.helpers != "ray-data"  # samples are made here
        kind = (
            "process"
            if local and data.transforms and data.cache != "ram" and hasattr(socket, "send_fds")
            else "thread"
        )
    return kind


def colors_on_device(data: Data, device: str) -> bool:
    """Whether color jitter runs on the device. auto: on CUDA, unless rotation or user transforms
    run after it.
    """
    after = data.transforms or data.rotate or data.stored
    return data.color_jitter_on == "device" or (
        data.color_jitter_on == "auto" and device == "cuda" and not after
    )


class TrainLoader(Loader):
    """Yields for each step from ``first_step`` to ``last_step - 1`` this rank's micro-batches:
    ``list[Batch]``.

    ``crop_and_scale(step)`` returns the crop (height, width) and the random scale (min, max).
    ``workers=0`` reads in the consumer's thread. ``prefetch`` micro-batches (at least one step) are
    made ahead. ``pool``: shared workers to use instead of ``workers`` workers of ``kind``.
    ``autoscaler``: sets the number of workers. ``transforms``: objects that replace
    ``data.transforms``. ``colors``: the device does color jitter, with parameters in the Batch.
    ``floats``: the workers normalize the images, in this form (not with ``colors``). ``lends``: the
    memory of a Batch is reused only when its tensors are gone, so they need no copies. Raises
    ConfigError if the batch is too small for the ranks, DataError if there are no samples or a file
    is bad.
    """

    def __init__(
        self,
        dataset: SampleSource,
        data: Data,
        *,
        seed: int,
        batch_size: int,
        accumulate: int = 1,
        rank: int = 0,
        world: int = 1,
        first_step: int = 0,
        last_step: int,
        crop_and_scale: Callable[[int], tuple[tuple[int, int], tuple[float, float]]] | None = None,
        pin_memory: bool = False,
        workers: int = 0,
        kind: str = "thread",
        prefetch: int = 4,
        pool: WorkerPool | None = None,
        autoscaler: Autoscaler | None = None,
        transforms: Any = None,
        colors: bool = False,
        floats: Floats | None = None,
        lends: bool = False,
    ) -> None:
        if not len(dataset):
            samples(seed, 0, 0, 0)  # raises DataError
        super().__init__(
            workers, kind, pool, max(1, prefetch // accumulate), pin_memory, autoscaler
        )
        self.dataset: SampleSource = dataset
        if data.cache == "ram" and not isinstance(dataset, RamCache):
            self.dataset = RamCache(dataset)
        self.maker = SampleMaker(self.dataset, data, seed, transforms, floats)
        self.seed, self.batch_size, self.colors, self.floats, self.lends = (
            seed,
            batch_size,
            colors,
            floats,
            lends,
        )
        self.parts = [
            rank_slice(batch_size, world, rank, accumulate, micro) for micro in range(accumulate)
        ]
        self.first_step, self.last_step = first_step, last_step
        self.crop_and_scale = crop_and_scale or (lambda step: (data.crop, data.scale))

    def __len__(self) -> int:
        return max(0, self.last_step - self.first_step)

    def _order(self) -> Iterator[np.ndarray]:
        for step in range(self.first_step, self.last_step):
            _, indices = samples(
                self.seed, len(self.dataset), step * self.batch_size, self.batch_size
            )
            yield np.concatenate([indices[part] for part in self.parts])

    def _batches(self, ring: Ring) -> Generator[BatchTask, None, None]:
        for step in range(self.first_step, self.last_step):
            epochs, indices = samples(
                self.seed, len(self.dataset), step * self.batch_size, self.batch_size
            )
            crop, scale = self.crop_and_scale(step)
            shapes = [(part.stop - part.start, *crop) for part in self.parts]
            form, wide = self.maker.form, mask_bytes(self.dataset)
            size = sum(offsets(shape, 0, form, wide)[-1] for shape in shapes)
            batch, start = BatchTask(self.maker, ring.take(size), []), 0
            for part, shape in zip(self.parts, shapes):
                tasks = [
                    Task(int(i), int(e), crop, scale) for i, e in zip(indices[part], epochs[part])
                ]
                numbers = indices[part].tolist()
                images, masks, memory = batch.lay_out(
                    self.dataset, tasks, numbers, shape, start, self.colors, form
                )
                looks = torch.from_numpy(memory.reshape(-1, COLOR_BYTES)) if self.colors else None
                batch.result.append(Batch(images, masks, indices[part], epochs[part], looks))
                start = offsets(shape, start, form, wide)[-1]
            if self.lends:
                ring.lend(batch.block, batch.views)
            yield batch


def mask_bytes(dataset: SampleSource) -> int:
    """The bytes of a pixel of a mask."""
    return np.dtype(dataset.labels.mask_dtype).itemsize


def widened(masks: torch.Tensor) -> torch.Tensor:
    """uint16 masks as int32, because torch has few functions for uint16."""
    return masks.int() if masks.dtype == torch.uint16 else masks


def image_sizes(dataset: SampleSource) -> list[tuple[int, int]]:
    """Height and width of every image. Headers in a bucket are read in threads, because each one
    takes a round trip.
    """
    if dataset.store.local:
        return [dataset.size(index) for index in range(len(dataset))]

    def part(begin: int) -> list[tuple[int, int]]:
        return [dataset.size(index) for index in range(begin, min(begin + _HEADERS, len(dataset)))]

    with ThreadPoolExecutor(_HEADER_READERS) as pool:
        return [
            size for sizes in pool.map(part, range(0, len(dataset), _HEADERS)) for size in sizes
        ]


class EvalLoader(Loader):
    """Yields the indices of each group (see ``order.eval_groups``), images uint8 (n, H, W, 3) or
    stored values, masks (n, H, W) as in a ``Batch``.

    The tensors are in reused memory, as in a ``Batch``. ``pool``: shared workers. ``sizes``: those
    of all images of the data set, if they are known; otherwise the header of the first image in
    each group is read.
    """

    def __init__(
        self,
        dataset: SampleSource,
        groups: Sequence[Sequence[int]],
        workers: int = 0,
        prefetch: int = 4,
        pin_memory: bool = False,
        pool: WorkerPool | None = None,
        sizes: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        super().__init__(workers, "thread", pool, max(1, prefetch), pin_memory)
        self.dataset, self.groups, self.sizes = dataset, groups, sizes

    def __len__(self) -> int:
        return len(self.groups)

    def _order(self) -> Iterator[Sequence[int]]:
        return iter(self.groups)

    def _batches(self, ring: Ring) -> Generator[BatchTask, None, None]:
        maker, form = partial(make_whole, self.dataset), self.dataset.reading.pixels
        for group in self.groups:
            indices = np.asarray(group, np.int64)
            try:
                height, width = self.sizes[group[0]] if self.sizes else self.dataset.size(group[0])
            except Exception as error:
                raise named(self.dataset, group[0], error) from error
            shape = (len(indices), height, width)
            size = offsets(shape, 0, form, mask_bytes(self.dataset))[-1]
            batch = BatchTask(maker, ring.take(size))
            numbers = indices.tolist()
            images, masks, _ = batch.lay_out(self.dataset, numbers, numbers, shape, form=form)
            batch.result = (indices, images, masks)
            yield batch
