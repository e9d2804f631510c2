"""How long would a step take if one thing were otherwise? The model that predicted gains come from.

A rank's samples are made beside its step by its workers, within its share of the host's cores, so that the slowest of three rates
counts; what the loop stands still for comes on top:

    step = max(device, samples * wall / workers, (samples * cpu + computed) / cores) + stalls
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from segtrain.diagnose.figures import BESIDE, Rank


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


def stages_of(rank: Rank, crowded: bool, free: float | None = None) -> Stages:
    """What a rank's figures say. Needs ``rank.samples``. ``crowded``: no core of the host had time left; ``free``: cores that had.

    Cores that other programs use are none of this rank's, whatever its share of the host.
    """
    samples = rank.samples
    assert samples is not None
    stalls = sum(rank.phases.get(phase, 0.0) for phase in BESIDE)
    used = (samples.made * samples.cpu + rank.computed) / rank.step
    return Stages(
        device=rank.step - rank.phases.get("wait", 0.0) - stalls - _crowded_out(rank, crowded, free),
        stalls=stalls,
        samples=rank.images,  # of training: workers make those of an evaluation too
        wall=samples.wall
        if samples.late is None and samples.workers <= 1 and not crowded
        else samples.cpu + idle(rank, crowded),
        cpu=samples.cpu,
        workers=samples.workers,
        computed=rank.computed,
        cores=rank.cores if free is None else max(1e-3, min(rank.cores, used + free)),
    )


def _crowded_out(rank: Rank, crowded: bool, free: float | None) -> float:
    """Seconds in which the phases of a model on the CPU wait for a core, because the workers have them.

    They go when the workers need less. While they do not, the cores are what bounds the step, and it is counted there.
    """
    samples = rank.samples
    if samples is None or rank.device.startswith("cuda"):
        return 0.0
    if rank.late is not None:
        return rank.late * _own_part(rank, free)
    if not crowded:
        return 0.0
    return rank.computed * (max(1.0, (samples.workers + rank.threads) / rank.cores) - 1)


def _own_part(rank: Rank, free: float | None) -> float:
    """Of the cores that were busy, which part was so with this rank: the rest of its lateness is that of other programs."""
    samples = rank.samples
    assert samples is not None
    used = (samples.made * samples.cpu + rank.computed) / rank.step
    busy = max(used, rank.cores - free) if free is not None else used
    return used / busy if busy else 0.0


def idle(rank: Rank, crowded: bool) -> float:
    """Seconds of a sample in which its worker needs no core: it waits for storage, a lock, a clock.

    A worker that waits for a core is not idle. Where the system does not count that (``late``): on a crowded host reading alone is
    taken for idle, and elsewhere what is more than twice the wait for a core that the rank's own threads explain.
    """
    samples = rank.samples
    assert samples is not None
    gap = max(0.0, samples.wall - samples.cpu)
    if samples.late is not None:
        return max(0.0, gap - samples.late)
    read = min(gap, samples.stages.get("read", 0.0))
    if crowded:
        return read
    crowd = max(1.0, (samples.workers + rank.computed / rank.step) / rank.cores)
    return max(read, gap - 2 * (crowd - 1) * samples.cpu)


def workers_needed(now: Stages, most: int) -> int:
    """The least number with which making samples no longer bounds the step."""
    rest = max(replace(now, workers=10**6).step - now.stalls, 1e-9)
    return max(1, min(most, -int(-(now.samples * now.wall) // rest)))
