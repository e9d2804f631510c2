"""The rate of a described job: the device's step, the all-reduce, the slowest rank, and the supply
of samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import exp, isfinite, log

from bench.exam.names import transposed_passes
from segtrain.insight.plan import model
from segtrain.insight.plan.device import DENSE, ModelCost, step
from segtrain.machines import Gpu

# Standard deviation of a rank's step as a share of it. With it, 8 GPUs reach 97 % of 8 times one:
# NVIDIA's page of ResNet-50 v1.5 says 96.5 to 98.9 % for seven of its ten rows, where samples do
# not limit.
SPREAD = 0.02
# The same where samples differ in size, so that ranks finish apart (detection, segmentation,
# volumes). Assumed.
UNEVEN = 0.04
# Share of the all-reduce that slows the backward pass although it runs beside it: it takes compute
# units and memory traffic. Assumed; on NVLink it does not matter.
BESIDE = 0.15
# Sharpness of the minimum of the device's and the samples' rate.
SHARP = 6
# Seconds of a worker for a photo: to decode a JPEG of 500 x 375, and to augment to 224 x 224. Both
# together are twice the 3.3 ms that torch's DataLoader takes of a whole core
# (bench/results/2026-11-23-accounts-vertex.md), because a vCPU is half a core.
DECODE, AUGMENT = 3.5e-3, 3.1e-3
LARGE_GRADIENTS = 5e9


@dataclass(frozen=True)
class Job:
    """``size``: of a side. ``gpus``: of a host, 0 for CPU work alone. ``workers``: of a host, None
    if not known.

    ``gradient``: bytes of a parameter's gradient on the wire. ``images``: whether samples are
    decoded from photos, so that a host's cores can limit.
    """

    work: ModelCost
    size: float
    batch: float
    gpu: Gpu | None
    precision: tuple[str, float, int]
    gpus: int
    hosts: int
    inside: tuple[float, float]
    between: tuple[float, float]
    framework: str
    year: int
    workers: float | None = None
    gradient: float = 4.0
    images: bool = False

    @property
    def ranks(self) -> int:
        return self.gpus * self.hosts


@dataclass(frozen=True)
class Correction:
    """What measured neighbors say. ``device``, ``sample``: factors of the model's seconds. ``fed``:
    samples limit.
    """

    device: float = 1.0
    sample: float = 1.0
    fed: bool = False


def rate(job: Job, by: Correction = Correction(), dense: float = DENSE) -> float:
    """Samples/s of the whole job."""
    supply = _supply(job, by)
    if job.gpu is None or not job.gpus:
        if supply is None:
            raise ValueError(
                "workers_per_host: missing, and without GPUs only the workers' number tells the rate"
            )
        return supply
    name = job.precision[0]
    passes, _ = transposed_passes(job.work.kind, job.framework, job.year, name)
    device = step(job.work, job.batch, job.gpu, job.precision, passes, dense) * by.device
    spread = UNEVEN if job.work.kind in ("dense", "volume") else SPREAD
    all_ranks = (device + exposed(job, device)) * model.slowest(job.ranks, spread)
    found = job.ranks * job.batch / all_ranks
    return found if supply is None else found / (1 + (found / supply) ** SHARP) ** (1 / SHARP)


def exposed(job: Job, device: float) -> float:
    """Seconds of a step in which ranks wait for gradients."""
    if job.ranks == 1:
        return 0.0
    buckets = _buckets(job.gradient * job.work.params, job.hosts, job.gpus, job.inside, job.between)
    return max(BESIDE * sum(buckets), model.exposed(model.BACKWARD * device, buckets))


@lru_cache(256)
def _buckets(
    gradients: float,
    hosts: int,
    gpus: int,
    inside: tuple[float, float],
    between: tuple[float, float],
) -> list[float]:
    """Seconds of the all-reduce of each bucket."""
    sizes = (
        model.bucket_sizes(gradients) if gradients < LARGE_GRADIENTS else [gradients / 200] * 200
    )
    return [model.hosts_and_gpus(size, hosts, gpus, inside, between) for size in sizes]


def _supply(job: Job, by: Correction) -> float | None:
    """Samples/s that all hosts' cores supply; None where nothing is known to limit them."""
    if job.workers is None:
        return None
    seconds = (DECODE + AUGMENT * (job.size / 224) ** 2) * by.sample
    return job.hosts * job.workers / seconds if job.images or by.fed or not job.gpus else None


def solve(of: Callable[[float], float], wanted: float) -> float:
    """The factor of seconds in 1e-3 to 1e3 with which ``of`` gives ``wanted``, the nearest end if
    none does.
    """
    low, high = log(1e-3), log(1e3)
    for _ in range(32):
        middle = (low + high) / 2
        found = of(exp(middle))
        low, high = (middle, high) if isfinite(found) and found > wanted else (low, middle)
    return exp((low + high) / 2)
