"""Model of the time of a step, from which the predicted gains are computed.

Workers make the samples of a rank while the rank computes. Together they use the rank's share of the host's cores. The
longest of three times bounds the step: the time of the device, of the workers, or of the cores. The time in which the
loop stops for log lines, evaluations, and checkpoints (``stalls``) is added:

step = max(device, samples * wall / workers, (samples * cpu + computed) / cores) + stalls
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from segtrain.diagnose.stats import Figures, Rank
from segtrain.observe.spans import NO_STEP

# A rank gets at least this share of its cores if other programs need them too: the system divides cores evenly.
SHARED = 0.5


@dataclass(frozen=True)
class Stages:
    """Seconds of one step of one rank."""

    device: float  # all phases except ``stalls`` and waiting for samples
    stalls: float
    samples: float
    wall: float  # of a sample, by a worker that has a core for itself
    cpu: float  # of a sample
    workers: float  # 0: the loop makes the samples itself
    computed: float  # CPU seconds of everything except making samples
    cores: float

    @property
    def step(self) -> float:
        made = self.samples * self.wall
        cores = (self.samples * self.cpu + self.computed) / self.cores
        if not self.workers:
            return self.device + made + self.stalls
        return max(self.device, made / self.workers, cores) + self.stalls


def stages_of(figures: Figures, rank: Rank, others: bool = True) -> Stages:
    """The terms of a rank's step. ``others=False``: as if no other program ran.

    The time in which ranks wait for each other because one of them has no samples, or no core, is not part of the
    device's time. Cores that other programs use do not count as the rank's, but it has at least half of its share.
    """
    samples = rank.samples
    assert samples is not None
    stalls = rank.spent(*NO_STEP)
    cpu_wait, cores = _cpu_wait(figures, rank) * (figures.own_part if others else 1.0), rank.cores
    if others and figures.free_cores is not None:
        used = (samples.made * samples.cpu * samples.threads + rank.computed) / rank.step
        cores = min(cores, max(SHARED * cores, used + figures.free_cores / len(figures.ranks)))
    alone = samples.cpu_wait is None and samples.workers <= 1 and not figures.crowded
    return Stages(
        device=max(0.0, rank.step - figures.wait - stalls - cpu_wait),
        stalls=stalls,
        # Only those of training, although workers also make samples for evaluations; and not those of helpers.
        samples=max(0.0, rank.images - sum(samples.helped.values())),
        wall=samples.wall if alone else samples.cpu + idle(rank, figures.crowded),
        cpu=samples.cpu * samples.threads,
        workers=samples.workers,
        computed=rank.computed,
        cores=cores,
    )


def _cpu_wait(figures: Figures, rank: Rank) -> float:
    """Seconds of a step in which a rank that trains on the CPU waits for a core; 0 on a GPU.

    ``stages_of`` subtracts these waits from the device's time, because the term of the cores already covers them. They
    get shorter if the workers need less CPU time.
    """
    samples = rank.samples
    if samples is None or rank.device.startswith("cuda"):
        return 0.0
    if figures.cpu_wait is not None:
        return figures.cpu_wait
    if not figures.crowded:
        return 0.0
    return rank.computed * (max(1.0, (samples.workers + rank.threads) / rank.cores) - 1)


def idle(rank: Rank, crowded: bool) -> float:
    """Seconds of a sample in which its worker needs no core: it waits for storage, a lock, or a clock.

    A worker that waits for a core is not idle. If the system does not count such waits, they are estimated. On a
    crowded host, only reading counts as idle. On other hosts, twice the wait that the rank's own threads cause is
    subtracted, but reading still counts as idle.
    """
    samples = rank.samples
    assert samples is not None
    gap = max(0.0, samples.wall - samples.cpu)
    if samples.cpu_wait is not None:
        return max(0.0, gap - samples.cpu_wait)
    read = min(gap, samples.stages.get("read", 0.0))
    if crowded:
        return read
    crowd = max(1.0, (samples.workers + rank.computed / rank.step) / rank.cores)
    return max(read, gap - 2 * (crowd - 1) * samples.cpu)


def workers_needed(now: Stages, most: int) -> int:
    """The smallest number of workers with which making samples no longer bounds the step."""
    rest = max(replace(now, workers=10**6).step - now.stalls, 1e-9)
    return max(1, min(most, -int(-(now.samples * now.wall) // rest)))
