"""Model of the time of a step, from which the predicted gains are computed.

Workers make the samples of a rank while the rank computes. Together they use the rank's share of
the host's cores. The longest of three times bounds the step: the time of the device, of the
workers, or of the cores. The time in which the loop stops for log lines, evaluations, and
checkpoints (``stalls``) is added:

step = max(device, samples * wall / workers, (samples * cpu + computed) / cores) + stalls
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from segtrain.insight.diagnose.stats import Figures, Rank, Samples
from segtrain.observe.spans import NO_STEP

# A rank gets at least this share of its cores if other programs need them too: the system divides
# cores evenly.
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

    The time in which ranks wait for each other because one of them has no samples, or no core, is
    not part of the device's time. Cores that other programs use do not count as the rank's, but it
    has at least half of its share.
    """
    samples = rank.samples
    assert samples is not None
    stalls = rank.spent(*NO_STEP)
    # On a CPU, the term of the cores covers the waits for them, which get shorter if the workers
    # need less CPU time.
    cpu_wait = (
        0.0
        if rank.device.startswith("cuda")
        else figures.cpu_wait * (figures.own_part if others else 1.0)
    )
    cores = rank.cores
    if others and figures.free_cores is not None:
        used = (samples.made * samples.cpu * samples.threads + rank.computed) / rank.step
        cores = min(cores, max(SHARED * cores, used + figures.free_cores / len(figures.ranks)))
    return Stages(
        device=max(0.0, rank.step - figures.wait - stalls - cpu_wait),
        stalls=stalls,
        # Only those of training, although workers also make samples for evaluations; and not those
        # of helpers.
        samples=max(0.0, rank.images - sum(samples.helper_samples.values())),
        wall=samples.cpu + idle(samples),
        cpu=samples.cpu * samples.threads,
        workers=samples.workers,
        computed=rank.computed,
        cores=cores,
    )


def idle(samples: Samples) -> float:
    """Seconds of a sample in which its worker needs no core: it waits for storage, a lock, or a
    clock.
    """
    return max(0.0, samples.wall - samples.cpu - samples.cpu_wait)


def workers_needed(now: Stages, most: int) -> int:
    """The smallest number of workers with which making samples no longer bounds the step."""
    rest = max(replace(now, workers=10**6).step - now.stalls, 1e-9)
    return max(1, min(most, -int(-(now.samples * now.wall) // rest)))
