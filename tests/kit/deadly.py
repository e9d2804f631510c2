"""Data sets for worker processes, which import them: one that kills them, one that is slow, one
that tells what they imported.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Trapped:
    """Another source, of which reading ``index`` has a consequence."""

    source: Any
    index: int

    def __post_init__(self) -> None:
        self.labels, self.entries = self.source.labels, self.source.entries
        self.store, self.stored = self.source.store, self.source.stored
        self.reading = self.source.reading

    def __len__(self) -> int:
        return len(self.source)

    def size(self, index: int) -> Any:
        return self.source.size(index)

    def read(self, index: int) -> Any:
        self.trap(index)
        return self.source.read(index)

    def record(self, index: int) -> Any:
        self.trap(index)
        return self.source.record(index)

    def ranges(self, index: int) -> Any:
        return self.source.ranges(index)

    def trap(self, index: int) -> None:
        raise NotImplementedError


@dataclass
class Deadly(Trapped):
    """Ends the process that reads the index, by ``number``: the first ``times`` times. ``folder``
    counts.
    """

    folder: Path
    number: int = signal.SIGKILL
    times: int = 1

    def trap(self, index: int) -> None:
        if index != self.index:
            return
        for time_ in range(self.times):
            # also if two processes read the index at the same moment
            with suppress(FileExistsError):
                (self.folder / str(time_)).touch(exist_ok=False)
                os.kill(os.getpid(), self.number)


@dataclass
class Sleepy(Trapped):
    """Takes a while, so that all workers have something to do all the time."""

    def trap(self, index: int) -> None:
        time.sleep(0.01)


@dataclass
class Telling(Trapped):
    """Fails with what it found in the process that reads the index."""

    def trap(self, index: int) -> None:
        if index == self.index:
            import cv2

            heavy = {"torch", "torchvision", "pytest", "PIL.ImageTk"} & set(sys.modules)
            raise ValueError(
                f"heavy={sorted(heavy)} cv2={cv2.getNumThreads()} omp={os.environ['OMP_NUM_THREADS']} pages={_new_pages()}"
            )


def _new_pages() -> int:
    """Pages that the system must clear for arrays that are freed and allocated again, in percent of
    their pages.
    """
    import resource

    import numpy as np

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    sizes, before = [600_000] * 8, 0
    for number in range(22):
        before = faults() if number == 2 else before
        kept = [np.ones(size, np.uint8) for size in sizes]
        del kept
    return 100 * (faults() - before) // (20 * sum(sizes) // 4096)


class Unpicklable(Trapped):
    def trap(self, index: int) -> None:
        pass

    def __reduce__(self) -> Any:
        raise TypeError("not today")
