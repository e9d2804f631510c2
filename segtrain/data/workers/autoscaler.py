"""Number of workers of a rank: enough to keep its device from waiting, but at most its share of the
host's cores.

It follows from measurements: the load of the workers shows how many are enough, and waits of the
loop show that there are too few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WINDOW = 16  # steps between two decisions
# workers as a multiple of those busy on average: a reserve, since times of samples and steps vary
SLACK = 1.25
WAITED = 0.01  # share of the time that the consumer may wait before a worker is added


@dataclass(frozen=True)
class WorkerCount:
    """Workers of a rank: ``start`` at first, then as many as are needed, from ``least`` to
    ``most``.
    """

    start: int
    least: int
    most: int


def worker_count(
    setting: int | str, cores: int, ranks: int = 1, cpu_training: bool = False
) -> WorkerCount:
    """The setting ``data.workers``; for 'auto', this rank's share of its host's ``cores`` among
    ``ranks`` ranks.

    For training on the CPU, 'auto' is one worker, which uses the gaps between computations of the
    model. More workers would take cores from these computations.
    """
    if setting != "auto":
        return WorkerCount(int(setting), int(setting), int(setting))
    share = 1 if cpu_training else max(1, cores // max(1, ranks))
    return WorkerCount(min(16, share), 1, share)


@dataclass
class Autoscaler:
    """Starts with many workers, so that the first batch comes soon, then removes unneeded ones or
    adds more.

    Call ``next`` after each step for the number of workers from then on. If a removed worker turns
    out to be needed, the next removal waits twice as long.
    """

    count: int
    most: int
    least: int = 1
    _steps: int = 0
    _waited: float = 0.0
    # time and the workers' busy seconds at the start of the window
    _from: tuple[float, float] | None = None
    _patience: int = 1  # windows without waiting before a worker is removed
    _quiet: int = 0
    _removed: bool = False

    def next(self, now: float, waited: float, busy: float) -> int:
        """The number of workers after a step.

        ``now``: seconds on any clock. ``waited``: seconds for which this step waited for samples.
        ``busy``: seconds that making all samples so far has taken.
        """
        if self.least == self.most:
            return self.count
        # not counted: the first step waits for its samples with any number of workers
        if self._from is None:
            self._from = now, busy
            return self.count
        self._steps += 1
        self._waited += waited
        if self._steps < WINDOW:
            return self.count
        seconds, load = now - self._from[0], busy - self._from[1]
        if self._waited > WAITED * seconds:
            self._quiet = 0
            if self._removed:
                self._patience, self._removed = self._patience * 2, False
            # The workers were all busy while the device waited: there was at least one too few.
            self.count = min(self.most, self.count + 1)
        else:
            self._quiet += 1
            enough = math.ceil(SLACK * load / max(seconds, 1e-9))
            if self._quiet >= self._patience and max(self.least, enough) < self.count:
                self.count, self._quiet, self._removed = self.count - 1, 0, True
        self._from, self._steps, self._waited = (now, busy), 0, 0.0
        return self.count
