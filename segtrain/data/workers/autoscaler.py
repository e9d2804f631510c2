"""How many workers does a rank need? As many as keep its device from waiting, at most its share of the host.

Measured, not guessed: how busy the workers are says how many would do, and a consumer that waits says that these are too few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WINDOW = 16  # steps between two looks
SLACK = 1.25  # workers for each that is busy on average: samples differ, and so do steps
CROWD = 4  # worker processes for each core, from which on a run says so
WAITED = 0.01  # share of the time that may be waited for before another worker is called


@dataclass(frozen=True)
class WorkerCount:
    """How many workers a rank has: ``start`` at first, later as many as are needed, from ``least`` to ``most``."""

    start: int
    least: int
    most: int


def worker_count(setting: int | str, cores: int, ranks: int = 1, cpu_training: bool = False) -> WorkerCount:
    """The setting ``data.workers``, or for 'auto' this rank's share of the ``cores`` that its host has for ``ranks`` ranks.

    Where the model trains on the CPU, one: it fills the gaps that compute leaves and takes no more cores from it.
    """
    if setting != "auto":
        return WorkerCount(int(setting), int(setting), int(setting))
    share = 1 if cpu_training else max(1, cores // max(1, ranks))
    return WorkerCount(min(16, share), 1, share)


def too_many(workers: int | str, kind: str, cores: int, ranks: int) -> str:
    """The remark about more worker processes than a host can start and run in reasonable time; "" where they are fewer.

    Each is a Python of its own: 64 of them on 2 cores took two minutes to begin, 64 threads three seconds.
    """
    if kind != "process" or workers == "auto" or int(workers) * ranks <= CROWD * cores:
        return ""
    return (
        f"warning: data.workers={workers} worker processes for each of {ranks} ranks share {cores} cores: they start slowly, wait for "
        f"each other, and each takes memory; try data.workers={max(1, cores // ranks)}, or data.worker_kind=thread"
    )


@dataclass
class Autoscaler:
    """Starts with all workers, so that the first batch comes soon, and lets go of those that are not needed.

    ``next`` is told of each step and gives the number of workers from then on. A worker that had to be called back is not
    sent away again for a while, each time twice as long.
    """

    count: int
    most: int
    least: int = 1
    _steps: int = 0
    _waited: float = 0.0
    _from: tuple[float, float] | None = None  # time and the workers' busy seconds at the start of the window
    _patience: int = 1  # quiet windows before one is sent away
    _quiet: int = 0
    _sent_away: bool = False

    def next(self, now: float, waited: float, busy: float) -> int:
        """``now``: seconds on any clock; ``waited``: for this step; ``busy``: what all samples so far took, together."""
        if self.least == self.most:
            return self.count
        if self._from is None:  # the first step waits for the first samples, whoever makes them
            self._from = now, busy
            return self.count
        self._steps += 1
        self._waited += waited
        if self._steps < WINDOW:
            return self.count
        seconds, load = now - self._from[0], busy - self._from[1]
        if self._waited > WAITED * seconds:
            self._quiet = 0
            if self._sent_away:
                self._patience, self._sent_away = self._patience * 2, False
            # Those who were all busy while the device waited were at least one too few.
            self.count = min(self.most, self.count + 1)
        else:
            self._quiet += 1
            enough = math.ceil(SLACK * load / max(seconds, 1e-9))
            if self._quiet >= self._patience and max(self.least, enough) < self.count:
                self.count, self._quiet, self._sent_away = self.count - 1, 0, True
        self._from, self._steps, self._waited = (now, busy), 0, 0.0
        return self.count
