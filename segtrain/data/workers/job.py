"""What is there to do? Samples, and the jobs (the samples of a step) to which they belong."""

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

    job: BatchTask
    task: Any
    areas: tuple[Area, ...]  # of what is made: image, mask, perhaps colors
    files: Callable[[], str]  # for messages
    deaths: int = 0


@dataclass(eq=False)
class BatchTask:
    """Samples that go into one block, and are waited for together."""

    maker: Maker
    block: SharedBlock
    result: Any = None
    pieces: list[SampleTask] = field(default_factory=list)
    left: int = 0
    errors: dict[int, Exception] = field(default_factory=dict)  # by place among the pieces

    def add(self, task: Any, areas: tuple[Area, ...], files: Callable[[], str]) -> None:
        self.pieces.append(SampleTask(self, task, areas, files))
        self.left += 1

    def make(self, piece: SampleTask) -> None:
        self.maker(piece.task, *(self.block.part(*area) for area in piece.areas))


def attempt(piece: SampleTask) -> tuple[Exception | None, float, Cost]:
    """Make a sample: its error, when it was begun (time.perf_counter), and what it cost."""
    began = time.perf_counter()
    begin()
    try:
        piece.job.make(piece)
    except Exception as error:
        return error, began, end()
    except BaseException as error:
        if threading.current_thread() is threading.main_thread():  # Ctrl-C
            raise
        # A worker thread that ended here would leave the job waiting for it.
        return DataError(f"{piece.files()}: {type(error).__name__}: {error}: a sample cannot end the run"), began, end()
    return None, began, end()
