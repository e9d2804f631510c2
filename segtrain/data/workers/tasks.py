"""Tasks of the worker pool: samples to make, and the batches to which they belong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from segtrain.data.stages import Cost, begin, end
from segtrain.data.workers.memory import SharedBlock
from segtrain.errors import DataError

Maker = Callable[..., None]  # (task, image_out, mask_out, perhaps colors_out)
Area = tuple[int, tuple[int, ...]]  # offset in a block, shape


@dataclass(eq=False)
class SampleTask:
    """One sample to make."""

    batch: BatchTask
    task: Any
    areas: tuple[Area, ...]  # where the image, the mask, and perhaps the colors are written
    files: Callable[[], str]  # for messages
    crashes: int = 0


@dataclass(eq=False)
class BatchTask:
    """Samples that share a block and are awaited together."""

    maker: Maker
    block: SharedBlock
    result: Any = None
    samples: list[SampleTask] = field(default_factory=list)
    left: int = 0
    errors: dict[int, Exception] = field(default_factory=dict)  # by place among the samples

    def add(self, task: Any, areas: tuple[Area, ...], files: Callable[[], str]) -> None:
        self.samples.append(SampleTask(self, task, areas, files))
        self.left += 1

    def make(self, sample: SampleTask) -> None:
        self.maker(sample.task, *(self.block.part(*area) for area in sample.areas))


def attempt(sample: SampleTask) -> tuple[Exception | None, float, Cost]:
    """Make a sample; returns its error, start time (time.perf_counter), and cost."""
    began = time.perf_counter()
    begin()
    try:
        sample.batch.make(sample)
    except Exception as error:
        return error, began, end()
    except BaseException as error:
        if threading.current_thread() is threading.main_thread():  # Ctrl-C
            raise
        # If the worker thread ended here, the batch would wait for it forever.
        reason = f"{type(error).__name__}: {error}"
        message = f"{sample.files()}: {reason}: a sample cannot end the run"
        return DataError(message, code="sample-failed", files=sample.files(), found=reason), began, end()
    return None, began, end()
