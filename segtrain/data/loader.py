"""Loaders: samples from storage into batches, ahead of the device.

Workers (threads or processes, see workers/pool.py) write each sample directly into its place in the batch: uint8, in
memory that is allocated once and reused (see workers/memory.py). A sample depends only on (seed, epoch, id), so workers
change only speed. Steps wait in a queue of bounded length, which bounds memory.
"""

from __future__ import annotations

import itertools
import math
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import torch

from segtrain.callable_module import make_callable
from segtrain.config import Data
from segtrain.data.cache import RamCache, SampleSource
from segtrain.data.order import rank_slice, samples
from segtrain.data.pixels.normalize import IMAGENET_MEAN as IMAGENET_MEAN
from segtrain.data.pixels.normalize import IMAGENET_STD as IMAGENET_STD
from segtrain.data.pixels.normalize import normalize as normalize
from segtrain.data.sample import COLOR_BYTES, SampleMaker, Task, colors_in, files_of, named, whole
from segtrain.data.workers.autoscaler import Autoscaler
from segtrain.data.workers.batch import BatchRun, BatchTask
from segtrain.data.workers.memory import Ring
from segtrain.data.workers.pool import WorkerPool
from segtrain.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass
class Batch:
    """One micro-batch of one rank. Its tensors are in reused memory: clone them to keep them beyond the next step."""

    images: torch.Tensor  # uint8 (n, H, W, 3), RGB
    masks: torch.Tensor  # uint8 (n, H, W), train ids
    ids: np.ndarray  # int64 [n], places in the data set
    epochs: np.ndarray  # int64 [n]
    colors: torch.Tensor | None = None  # float32 (n, 10), see normalize: where colors are left to the device
    covered: torch.Tensor | None = None  # int32 (n, 4)


def worker_kind(data: Data) -> str:
    """'thread' or 'process'. auto: threads, since decoders release the GIL; processes for transforms, which may not.

    Raises ConfigError for processes with a RAM cache, since each would keep a copy of the images.
    """
    kind = data.worker_kind
    if kind == "process" and data.cache == "ram":
        reason = "data.worker_kind=process: each process would keep its own copy of data.cache=ram"
        fix = "set data.cache=off, or data.worker_kind=thread"
        raise ConfigError(f"{reason}: {fix}", code="cache-with-processes", key="data.worker_kind")
    if kind == "auto":
        kind = "process" if data.transforms and data.cache == "off" and hasattr(socket, "send_fds") else "thread"
    return kind


def colors_on_device(data: Data, device: str) -> bool:
    """Whether color jitter runs on the device. auto: on CUDA, unless rotation or user transforms run after it."""
    after = data.transforms or data.rotate
    return data.color_jitter_on == "device" or (data.color_jitter_on == "auto" and device == "cuda" and not after)


class _Loader:
    """Iterates once at a time, with its own pool or a shared one; closing ends its own pool."""

    pin_memory: bool
    workers: int
    kind: str
    pool: WorkerPool | None
    ahead: int
    autoscaler: Autoscaler | None = None
    _running: BatchRun | None = None

    def _batches(self, ring: Ring) -> Generator[BatchTask, None, None]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        self.close()
        # OpenCV's own threads would compete with the workers and with the model.
        cv2.setNumThreads(1)
        pool = self.pool or WorkerPool(self.workers, self.kind)
        self._running = BatchRun(self._batches, self.pin_memory, pool, self.pool is None, self.ahead, self.autoscaler)
        return self._running

    def ready(self) -> bool:
        """Whether the next item is ready."""
        return self._running is not None and self._running.ready()

    def first(self) -> None:
        """Block until the next item is ready (excluded from timing)."""
        if self._running is not None:
            self._running.first()

    def queue(self) -> tuple[int, int]:
        """Requests in this pass, and the number of ready batches summed over those requests."""
        run = self._running
        return (run.asked, run.ready_sum) if run is not None else (0, 0)

    def close(self) -> None:
        """End the pass and drop what was read ahead."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TrainLoader(_Loader):
    """Yields for each step from ``first_step`` to ``last_step - 1`` this rank's micro-batches: ``list[Batch]``.

    ``size_at(step)`` gives the crop (height, width) and the random scale (min, max). ``workers=0`` reads in the
    consumer's thread. ``prefetch`` micro-batches (at least one step) are made ahead. ``pool``: shared workers, instead
    of ``workers`` of ``kind``; ``autoscaler`` sets their number. ``transforms``: objects in place of
    ``data.transforms``. ``colors``: leave colors to the device; each Batch has the parameters. Raises ConfigError if
    the batch is too small for the ranks, DataError if there are no samples or a file is bad.
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
        size_at: Callable[[int], tuple[tuple[int, int], tuple[float, float]]] | None = None,
        pin_memory: bool = False,
        workers: int = 0,
        kind: str = "thread",
        prefetch: int = 4,
        pool: WorkerPool | None = None,
        autoscaler: Autoscaler | None = None,
        transforms: Any = None,
        colors: bool = False,
    ) -> None:
        if not len(dataset):
            samples(seed, 0, 0, 0)  # raises
        self.dataset: SampleSource = dataset
        if data.cache == "ram" and not isinstance(dataset, RamCache):
            self.dataset = RamCache(dataset)
        self.sampler = SampleMaker(self.dataset, data, seed, transforms)
        self.data, self.seed, self.batch_size = data, seed, batch_size
        self.parts = [rank_slice(batch_size, world, rank, accumulate, micro) for micro in range(accumulate)]
        self.first_step, self.last_step = first_step, last_step
        self.size_at = size_at or (lambda step: (data.crop, data.scale))
        self.pin_memory, self.workers, self.kind = pin_memory, workers, kind
        self.pool, self.autoscaler = pool, autoscaler
        self.ahead, self.colors = max(1, prefetch // accumulate), colors

    def __len__(self) -> int:
        return max(0, self.last_step - self.first_step)

    def _batches(self, ring: Ring) -> Generator[BatchTask, None, None]:
        for step in range(self.first_step, self.last_step):
            epochs, ids = samples(self.seed, len(self.dataset), step * self.batch_size, self.batch_size)
            crop, scale = self.size_at(step)
            shapes = [(part.stop - part.start, *crop) for part in self.parts]
            batch = BatchTask(self.sampler, ring.take(sum(_places(shape)[-1] for shape in shapes)), [])
            offset = 0
            for part, shape in zip(self.parts, shapes):
                tasks = [Task(int(i), int(e), crop, scale) for i, e in zip(ids[part], epochs[part])]
                images, masks, memory = _lay(batch, self.dataset, tasks, ids[part].tolist(), shape, offset, self.colors)
                looks = map(torch.from_numpy, colors_in(memory)) if self.colors else ()
                batch.result.append(Batch(images, masks, ids[part], epochs[part], *looks))
                offset = _places(shape, offset)[-1]
            yield batch


def _places(shape: tuple[int, ...], offset: int = 0) -> tuple[int, ...]:
    """Offsets of images, masks (n, H, W), and n colors, each on whole cache lines, and the end."""
    pixels = math.prod(shape)
    sizes = (-(-size // 64) * 64 for size in (3 * pixels, pixels, shape[0] * COLOR_BYTES))
    return tuple(itertools.accumulate(sizes, initial=offset))


def _lay(
    batch: BatchTask,
    dataset: SampleSource,
    tasks: Sequence[Any],
    indices: Sequence[int],
    shape: tuple[int, ...],
    offset: int,
    colors: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Assign each sample of ``shape`` (n, H, W) its place in the block; returns images, masks, bytes of colors."""
    n, height, width = shape
    pixels = height * width
    first, behind, last, _ = _places(shape, offset)
    for k, (task, index) in enumerate(zip(tasks, indices)):
        image, mask = (first + 3 * k * pixels, (height, width, 3)), (behind + k * pixels, (height, width))
        look = ((last + k * COLOR_BYTES, (COLOR_BYTES,)),) if colors else ()
        batch.add(task, (image, mask, *look), partial(files_of, dataset, index))
    images, masks = (torch.from_numpy(batch.block.part(*area)) for area in ((first, (*shape, 3)), (behind, shape)))
    return images, masks, batch.block.part(last, (n * COLOR_BYTES,))


class EvalLoader(_Loader):
    """Yields the indices of each group (see ``order.eval_groups``), images uint8 (n, H, W, 3), masks uint8 (n, H, W).

    The tensors are in reused memory, as in a ``Batch``. ``pool``: shared workers.
    """

    def __init__(
        self,
        dataset: SampleSource,
        groups: Sequence[Sequence[int]],
        workers: int = 0,
        prefetch: int = 4,
        pin_memory: bool = False,
        kind: str = "thread",
        pool: WorkerPool | None = None,
    ) -> None:
        self.dataset, self.groups, self.pool = dataset, groups, pool
        self.workers, self.ahead, self.pin_memory, self.kind = workers, max(1, prefetch), pin_memory, kind

    def __len__(self) -> int:
        return len(self.groups)

    def _batches(self, ring: Ring) -> Generator[BatchTask, None, None]:
        maker = partial(whole, self.dataset)
        for group in self.groups:
            ids = np.asarray(group, np.int64)
            try:
                shape = (len(ids), *self.dataset.size(group[0]))
            except Exception as error:
                raise named(self.dataset, group[0], error) from error
            batch = BatchTask(maker, ring.take(_places(shape)[-1]))
            images, masks, _ = _lay(batch, self.dataset, ids.tolist(), ids.tolist(), shape, 0)
            batch.result = (ids, images, masks)
            yield batch


make_callable(__name__, "segtrain.data.batches", "BatchLoader")
