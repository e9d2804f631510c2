"""The terms of a plan from a config: what its network computes and sends, what its samples cost, and whether it fits.

FLOPs, bytes, and memory are computed by a pass without data (dry.py). The time of a step on a GPU follows from them
with the rates of data sheets, or from a measured step on a GPU of this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from segtrain.config import Config, duration_in_steps
from segtrain.machines import Gpu, Machine, gpus
from segtrain.plan import model
from segtrain.plan.dry import Dry, DryModel
from segtrain.plan.memory import refusal
from segtrain.plan.offers import HOSTS, Offer, Plan, drawn, offer_of
from segtrain.plan.terms import Terms

# Share of a data sheet's rates that a training step reaches: (least, usual, most).
ARITHMETIC, MEMORY = (0.25, 0.4, 0.6), (0.6, 0.75, 0.9)
# Seconds that every operator takes at least: the host launches its kernels.
LAUNCH_S = (3e-6, 6e-6, 12e-6)
# A step on another GPU than the measured one: factors beyond the ratio of the data sheets.
ELSEWHERE = (0.75, 1.33)


@dataclass(frozen=True)
class Sample:
    """CPU and wall seconds of a training sample on one core. ``spread``: factors between which they lie."""

    cpu: float
    wall: float
    spread: tuple[float, float]
    says: str
    measured: bool


@dataclass(frozen=True)
class Stored:
    """The data set: training images, and mean bytes of an image with its mask (0 if they are generated)."""

    images: int
    mean_bytes: float
    files: int  # of a sample: 2, or 1 in shards

    @property
    def total_bytes(self) -> float:
        return self.images * self.mean_bytes


@dataclass(frozen=True)
class Step:
    """A measured step: ``images`` images took ``seconds`` on ``gpu``, a row of gpus.csv."""

    gpu: str
    images: int
    seconds: float


@dataclass(frozen=True)
class Job:
    """A config, with its data set and network."""

    config: Config
    stored: Stored
    network: DryModel
    sample: Sample
    step: Step | None = None

    @cached_property
    def total(self) -> float:
        """Training images of the whole run."""
        train = self.config.train
        return float(duration_in_steps(train.duration, self.stored.images, train.batch_size) * train.batch_size)

    def micro(self, ranks: int) -> int:
        """Images of a rank's micro-batch, the largest one; 0 if there are more ranks than images."""
        images = self.config.train.batch_size // self.config.train.accumulate
        return -(-images // ranks) if images >= ranks else 0

    def device(self, gpu: Gpu, images: int) -> tuple[float, float, float]:
        """Least, usual, and most seconds of a micro-batch of ``images`` on a GPU."""
        dry, precision = self.network.step(images), self.config.train.precision
        least, usual, most = (
            roofline(dry, gpu, precision, *shares) for shares in zip(ARITHMETIC[::-1], MEMORY[::-1], LAUNCH_S)
        )
        if self.step is None:
            return least, usual, most
        here = gpus()[self.step.gpu]
        known = self.network.step(self.step.images)
        found = self.step.seconds * usual / roofline(known, here, precision, ARITHMETIC[1], MEMORY[1], LAUNCH_S[1])
        low, high = (1.0, 1.0) if gpu == here else ELSEWHERE
        return low * found, found, high * found

    def terms(self, machine: Machine, ranks: int) -> Terms:
        """The terms of a rank on a type, of a job of ``ranks``."""
        images, times = self.micro(ranks), self.config.train.accumulate
        dry = self.network.step(images)
        least, usual, most = (times * seconds for seconds in self.device(gpus()[machine.gpu], images))
        return Terms(
            machine=machine.name,
            images=self.config.train.batch_size / ranks,
            device=usual,
            wall=self.sample.wall,
            cpu=self.sample.cpu,
            computed=times * LAUNCH_S[1] * len(dry.layers),
            gradients=sum(size for size, _ in dry.gradients),
            total=self.total,
            device_range=(least / usual, most / usual),
            sample_range=self.sample.spread,
            buckets=model.buckets_of(dry.gradients),
        )

    def why_not(self, machine: Machine) -> str:
        """Why a type cannot run the job with any number of hosts; "" if it may."""
        if machine.retired:
            return "retired"
        if machine.gpu not in gpus():
            return f"no rates of the GPU {machine.gpu!r} are known"
        return "no price is known" if machine.price is None else ""

    def why_not_with(self, machine: Machine, ranks: int) -> str:
        """Why the job does not run on ``ranks`` GPUs of a type; "" if it does."""
        images = self.micro(ranks)
        if not images:
            return f"train.batch_size={self.config.train.batch_size} is less than one image for each of {ranks} GPUs"
        return refusal(self.config, self.network, images, ranks, machine.gpu_memory_gb)


def roofline(dry: Dry, gpu: Gpu, precision: str, arithmetic: float, memory: float, launch: float) -> float:
    """Seconds of the operators of a pass on a GPU, one after the other.

    Each takes the longer of its FLOPs and its bytes (Williams et al., 2009), at the given shares of the GPU's rates,
    and ``launch`` seconds.
    Convolutions in fp32 run on TF32 cores where the GPU has them, as torch does by default.
    """
    peak = gpu.mixed if precision != "fp32" else gpu.tf32 or gpu.fp32 or gpu.mixed
    if precision == "bf16" and not gpu.bf16:
        peak = gpu.fp32 or gpu.mixed
    rate, stream = 1e12 * peak * arithmetic, 1e9 * gpu.memory_gbs * memory
    return sum(max(row.flops / rate, row.moved / stream) + launch for row in dry.layers)


@dataclass(frozen=True)
class ConfigPlan(Plan):
    """The plan of ``job``. Its terms differ between types and numbers of hosts; ``terms`` are those of the last offer.

    ``dropped``: (type, hosts) -> why it is missing among the offers of the type.
    """

    job: Job
    dropped: dict[tuple[str, int], str]


def plan_config(job: Job, where: Sequence[Machine], hosts: Sequence[int] = HOSTS) -> ConfigPlan:
    """Every type of ``where`` with GPUs, at the config's global batch."""
    draws, offers = drawn(), list[Offer]()
    left_out, dropped, terms = dict[str, str](), dict[tuple[str, int], str](), None
    for machine in where:
        if not machine.gpus:
            continue
        why = job.why_not(machine)
        reasons = {} if why else {count: job.why_not_with(machine, count * machine.gpus) for count in hosts}
        fitting = [count for count, reason in reasons.items() if not reason]
        for count in fitting:
            terms = job.terms(machine, count * machine.gpus)
            offers.append(offer_of(terms, machine, machine, count, draws))
        if not fitting:
            left_out[machine.name] = why or _most_useful(reasons)
        dropped |= {(machine.name, count): reason for count, reason in reasons.items() if reason and fitting}
    nothing = Terms("", 0.0, 0.0, job.sample.wall, job.sample.cpu, 0.0, 0.0, job.total)
    return ConfigPlan(terms or nothing, tuple(offers), left_out, job, dropped)


def _most_useful(reasons: dict[int, str]) -> str:
    """Of the reasons by number of hosts: the one of memory with the most hosts, where each GPU has least to hold."""
    ordered = [why for _, why in sorted(reasons.items(), reverse=True)]
    return next((why for why in ordered if why.startswith("needs")), ordered[-1])
