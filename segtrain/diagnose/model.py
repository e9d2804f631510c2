"""How long would a step take if one thing were otherwise? The model that predicted gains come from.

A rank's samples are made beside its step by its workers, within its share of the host's cores, so that the slowest of three rates
counts; what the loop stands still for comes on top:

    step = max(device, samples * wall / workers, (samples * cpu + computed) / cores) + stalls
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from segtrain.diagnose.stats import NON_STEP_PHASES, Figures, Rank

SHARED = (
    0.5  # of its cores, which a rank gets at least where other programs want them too: the system deals them out evenly
)


@dataclass(frozen=True)
class Stages:
    """Seconds of one step of one rank."""

    device: float  # all phases but waiting for samples and ``stalls``
    stalls: float
    samples: float
    wall: float  # of a sample, by a worker that has a core for itself
    cpu: float  # of a sample
    workers: float  # 0: the loop makes them itself
    computed: float  # CPU seconds of all else, where the device is the CPU
    cores: float

    @property
    def step(self) -> float:
        made = self.samples * self.wall
        cores = (self.samples * self.cpu + self.computed) / self.cores
        if not self.workers:
            return self.device + made + self.stalls
        return max(self.device, made / self.workers, cores) + self.stalls


def stages_of(figures: Figures, rank: Rank, others: bool = True) -> Stages:
    """What the figures say of a rank that has samples, in step with all others. Without ``others``: if no other program ran.

    What the ranks wait for each other because one of them has no samples, or no core, is no part of the device's time. Of the
    cores that other programs use this rank gets none, as long as half of its share is left.
    """
    samples = rank.samples
    assert samples is not None
    stalls = sum(rank.phases.get(phase, 0.0) for phase in NON_STEP_PHASES)
    used = (samples.made * samples.cpu * samples.threads + rank.computed) / rank.step
    cpu_wait = _cpu_wait(figures, rank) * (figures.own_part if others else 1.0)
    free = figures.free_cores if others else None
    alone = samples.cpu_wait is None and samples.workers <= 1 and not figures.crowded
    return Stages(
        device=max(0.0, rank.step - figures.as_one.wait - stalls - cpu_wait),
        stalls=stalls,
        samples=rank.images,  # of training: workers make those of an evaluation too
        wall=samples.wall if alone else samples.cpu + idle(rank, figures.crowded),
        cpu=samples.cpu * samples.threads,
        workers=samples.workers,
        computed=rank.computed,
        cores=rank.cores
        if free is None
        else min(rank.cores, max(SHARED * rank.cores, used + free / len(figures.ranks))),
    )


def _cpu_wait(figures: Figures, rank: Rank) -> float:
    """Seconds in which the phases of a model on the CPU wait for a core.

    Those for which the workers are to blame go when these need less. While they do not, the cores are what bounds the step, and it
    is counted there.
    """
    samples = rank.samples
    if samples is None or rank.device.startswith("cuda"):
        return 0.0
    if figures.as_one.cpu_wait is not None:
        return figures.as_one.cpu_wait
    if not figures.crowded:
        return 0.0
    return rank.computed * (max(1.0, (samples.workers + rank.threads) / rank.cores) - 1)


def idle(rank: Rank, crowded: bool) -> float:
    """Seconds of a sample in which its worker needs no core: it waits for storage, a lock, a clock.

    A worker that waits for a core is not idle. Where the system does not count that (``late``): on a crowded host reading alone is
    taken for idle, and elsewhere what is more than twice the wait for a core that the rank's own threads explain.
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
    """The least number with which making samples no longer bounds the step."""
    rest = max(replace(now, workers=10**6).step - now.stalls, 1e-9)
    return max(1, min(most, -int(-(now.samples * now.wall) // rest)))
