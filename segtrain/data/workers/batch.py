"""Batches in progress: the samples to make, and where in a block of memory each one is written."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from segtrain.data.dataset import SampleSource
from segtrain.data.pixels.floats import RGB, Floats, Pixels
from segtrain.data.sample import COLOR_BYTES, files_of
from segtrain.data.stages import Cost, begin, end
from segtrain.data.workers.memory import SharedBlock
from segtrain.errors import DataError

Maker = Callable[..., None]  # (task, image_out, mask_out, perhaps colors_out)
Area = tuple[int, tuple[int, ...]]  # offset in a block, shape
Form = Floats | Pixels  # of images


@dataclass(eq=False)
class SampleTask:
    """One sample to make."""

    batch: BatchTask
    task: Any
    areas: tuple[Area, ...]  # where the image, the mask, and perhaps the colors are written
    files: Callable[[], str]  # for messages
    crashes: int = 0
    only_here: bool = False  # a helper on another host could not make it


@dataclass(eq=False)
class BatchTask:
    """The samples of a batch, which share a block of memory and are waited for together."""

    maker: Maker
    block: SharedBlock
    result: Any = None
    views: list[np.ndarray] = field(default_factory=list)  # of the images and masks
    samples: list[SampleTask] = field(default_factory=list)
    left: int = 0
    errors: dict[int, Exception] = field(default_factory=dict)  # by position among the samples

    def add(self, task: Any, areas: tuple[Area, ...], files: Callable[[], str]) -> None:
        self.samples.append(SampleTask(self, task, areas, files))
        self.left += 1

    def lay_out(
        self,
        dataset: SampleSource,
        tasks: Sequence[Any],
        indices: Sequence[int],
        shape: tuple[int, ...],
        start: int = 0,
        colors: bool = False,
        form: Form = RGB,
    ) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
        """Add n samples of H x W pixels, whose memory begins at byte ``start`` of the block.
        ``shape``: (n, H, W).

        Returns views of the block: images in their ``form``, masks (n, H, W) of train ids, and
        colors uint8 [n * COLOR_BYTES].
        """
        count, height, width = shape
        each = form.area(height, width)
        dtype = np.dtype(dataset.labels.mask_dtype)
        row = width * dtype.itemsize  # bytes
        images, masks, looks, _ = offsets(shape, start, form, dtype.itemsize)
        for k, (task, index) in enumerate(zip(tasks, indices)):
            image, mask = (
                (images + k * math.prod(each), each),
                (masks + k * height * row, (height, row)),
            )
            look = ((looks + k * COLOR_BYTES, (COLOR_BYTES,)),) if colors else ()
            self.add(task, (image, mask, *look), partial(files_of, dataset, index))
        part = self.block.part
        views = part(images, (count, *each)), part(masks, (count, height, row)).view(dtype)
        self.views += views
        seen, ids = map(torch.from_numpy, views)
        return (
            tensor_of(seen, form, shape),
            ids,
            part(looks, (count * COLOR_BYTES,)),
        )


def tensor_of(memory: torch.Tensor, form: Form, shape: tuple[int, ...]) -> torch.Tensor:
    """The images in ``memory`` uint8 (n, ...): (n, H, W, channels), or ``Floats`` (n, channels, H,
    W). ``shape``: (n, H, W).
    """
    values = memory.view(getattr(torch, form.dtype)).view(shape[0], *form.shape(*shape[1:]))
    last = isinstance(form, Floats) and form.channels_last
    return values.permute(0, 3, 1, 2) if last else values


def offsets(
    shape: tuple[int, ...], start: int = 0, form: Form = RGB, mask_bytes: int = 1
) -> tuple[int, ...]:
    """Offsets in a block of the images, masks, and colors of ``shape`` (n, H, W), and the offset of
    their end. ``mask_bytes``: of a pixel of a mask.

    Each part is padded to whole cache lines (64 bytes).
    """
    pixels = math.prod(shape)
    images = shape[0] * math.prod(form.area(*shape[1:]))
    sizes = (-(-size // 64) * 64 for size in (images, pixels * mask_bytes, shape[0] * COLOR_BYTES))
    return tuple(itertools.accumulate(sizes, initial=start))


def attempt(sample: SampleTask) -> tuple[Exception | None, float, Cost]:
    """Make a sample; returns its error, start time (time.perf_counter), and cost."""
    began = time.perf_counter()
    try:
        begin()
        sample.batch.maker(sample.task, *(sample.batch.block.part(*area) for area in sample.areas))
        return None, began, end()
    except Exception as error:
        return error, began, Cost()
    except BaseException as error:
        if threading.current_thread() is threading.main_thread():  # Ctrl-C
            raise
        # If the worker thread ended here, the batch would wait for it forever.
        files, reason = sample.files(), f"{type(error).__name__}: {error}"
        return (
            DataError(
                f"{files}: {reason}: code that makes a sample must not exit: remove the exit() "
                "call",
                code="sample-failed",
                files=files,
                found=reason,
            ),
            began,
            Cost(),
        )
