"""The terms of a plan from a config: what its network computes and sends, what its samples cost,
and whether it fits.

FLOPs, activations, and memory are computed by a pass without data (dry.py). The time of a step on a
GPU follows from them by the roofline of device.py, or from a measured step on a GPU of this
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp

from segtrain.config import Config, duration_in_steps, interval_in_steps
from segtrain.evaluation.tiles import View
from segtrain.insight.plan import device, model
from segtrain.insight.plan.device import ModelCost
from segtrain.insight.plan.dry import DryModel
from segtrain.insight.plan.memory import need, refusal
from segtrain.insight.plan.offers import DRAWN, Offer, Offers, drawn, offer_of
from segtrain.insight.plan.terms import Terms
from segtrain.machines import Gpu, Machine, gpus

# bytes/s of a checkpoint, assumed: to the memory of the host, from where it is written in the
# background, or to a disk.
COPIED, WRITTEN = 2e9, 0.4e9
# Year of the software, for device.precision_named.
YEAR = 2026


@dataclass(frozen=True)
class SampleSeconds:
    """CPU and wall seconds of a training sample on one core. ``spread``: factors between which they
    lie.

    ``first``: CPU seconds of one that is not in memory yet, with data.cache=ram.
    """

    cpu: float
    wall: float
    spread: tuple[float, float]
    says: str
    measured: bool
    first: float = 0.0


@dataclass(frozen=True)
class StoredSize:
    """The data set: training images, and mean bytes of an image with its mask (0 if they are
    generated).
    """

    images: int
    mean_bytes: float
    files: int  # of a sample: 2, or 1 in shards

    @property
    def total_bytes(self) -> float:
        return self.images * self.mean_bytes


@dataclass(frozen=True)
class Scored:
    """What an evaluation predicts: images of the validation split, and the size of the first
    one.
    """

    images: int
    size: tuple[int, int]


@dataclass(frozen=True)
class Step:
    """A measured step: ``images`` images took ``seconds`` on ``gpu``, a row of gpus.csv."""

    gpu: str
    images: int
    seconds: float


@dataclass(frozen=True)
class DescribedJob:
    """A config, with its data set and network."""

    config: Config
    stored: StoredSize
    network: DryModel
    sample: SampleSeconds
    step: Step | None = None
    scored: Scored | None = None

    @cached_property
    def steps(self) -> int:
        train = self.config.train
        return duration_in_steps(train.duration, self.stored.images, train.batch_size)

    @property
    def total(self) -> float:
        """Training images of the whole run."""
        return float(self.steps * self.config.train.batch_size)

    def micro(self, ranks: int) -> int:
        """Images of a rank's micro-batch, the largest one; 0 if there are more ranks than
        images.
        """
        images = self.config.train.batch_size // self.config.train.accumulate
        return -(-images // ranks) if images >= ranks else 0

    @cached_property
    def work(self) -> ModelCost:
        """The costs of an image."""
        return self.network.step(self.network.most).work

    def roofline(self, gpu: Gpu, images: int) -> float:
        """Seconds of a micro-batch of ``images`` on a GPU by its data sheet."""
        setting = self.config.train.precision
        meant = {"fp32": "fp32 without TF32", "auto": "bf16" if gpu.bf16 else "fp16"}.get(
            setting, setting
        )
        precision = device.precision_named(meant, gpu, YEAR)
        transposed = self.config.train.channels_last is False and precision[0] != "fp32"
        return device.step(self.work, images, gpu, precision, device.TRANSPOSED * transposed)

    def device(self, gpu: Gpu, images: int) -> tuple[float, float, float]:
        """Least, usual, and most seconds of a micro-batch of ``images`` on a GPU."""
        usual, sd = self.roofline(gpu, images), device.SPECS
        if self.step is not None:
            measured_gpu = gpus()[self.step.gpu]
            usual *= self.step.seconds / self.roofline(measured_gpu, self.step.images)
            sd = 0.0 if gpu == measured_gpu else device.OTHER_GPU
        factor = exp(device.Z80 * sd / DRAWN)
        return usual / factor, usual, factor * usual

    def _times(self, every: str) -> float:
        """How often a run evaluates, or saves."""
        interval = interval_in_steps(
            every, self.stored.images, self.config.train.batch_size, self.steps
        )
        return float(-(-self.steps // interval))

    def scores(self, gpu: Gpu, cores: float) -> tuple[float, float]:
        """How many evaluations the run has, and the seconds of one on one rank with ``cores``.

        Its forward passes take a third of a step's time for their pixels: those of all windows,
        scales, and mirrored images. Meanwhile, the cores read the images, each of which costs as
        much as a training sample.
        """
        if self.scored is None:
            return 0.0, 0.0
        settings, (height, width) = self.config.eval, self.config.data.crop
        view = View.of(settings, self.config.data.base_scale)
        pixels = view.pixels(self.scored.size) / height / width
        batch = settings.batch_size
        forward = (1 - model.BACKWARD) * self.device(gpu, max(1, round(batch * pixels)))[1] / batch
        read = max(self.sample.cpu, self.sample.first) / cores
        return self._times(settings.every), self.scored.images * max(forward, read)

    def saves(self) -> tuple[float, float]:
        """How many checkpoints the run has, and the seconds for which one stops the training."""
        size = need(self.config, self.network.step(2), 1).fixed
        rate = COPIED if self.config.checkpoint.background else WRITTEN
        return self._times(self.config.checkpoint.every), size / rate

    def terms(self, machine: Machine, ranks: int) -> Terms:
        """The terms of a rank on a type, of a job of ``ranks``."""
        images, times = self.micro(ranks), self.config.train.accumulate
        dry = self.network.step(images)
        gradients = dry.gradients
        least, usual, most = (
            times * seconds for seconds in self.device(gpus()[machine.gpu], images)
        )
        return Terms(
            machine=machine.name,
            images=self.config.train.batch_size / ranks,
            device=usual,
            wall=self.sample.wall,
            cpu=self.sample.cpu,
            computed=times * device.LAUNCH * self.work.layers,
            gradients=sum(size for size, _ in gradients),
            total=self.total,
            device_range=(least / usual, most / usual),
            sample_range=self.sample.spread,
            buckets=model.buckets_of(gradients),
            scores=self.scores(gpus()[machine.gpu], machine.vcpus / machine.gpus),
            saves=self.saves(),
            kept=float(self.stored.images) if self.sample.first else 0.0,
            synced=2.0 * times * dry.norms if self.config.parallel.sync_bn else 0.0,
            first=(self.sample.first, self.sample.first),
        )

    def why_not(self, machine: Machine) -> str:
        """Why a type cannot run the job with any number of hosts; "" if it may."""
        if machine.retired:
            return "retired"
        if machine.gpu not in gpus():
            return f"no rates of the GPU {machine.gpu!r} are known"
        if self.config.train.precision == "tf32" and not gpus()[machine.gpu].tf32:
            return f"the {machine.gpu} has no units for train.precision=tf32"
        return "no price is known" if machine.price is None else ""


@dataclass(frozen=True)
class ConfigPlan(Offers):
    """The plan of ``job``. Its terms differ between types and numbers of hosts; ``terms`` are those
    of the last offer.

    ``dropped``: (type, hosts) -> why it is missing among the offers of the type.
    """

    job: DescribedJob
    dropped: dict[tuple[str, int], str]


def plan_config(job: DescribedJob, where: Sequence[Machine], hosts: Sequence[int]) -> ConfigPlan:
    """Every type of ``where`` with GPUs, at the config's global batch."""
    draws, offers = drawn(), list[Offer]()
    left_out = dict[str, str]()
    dropped = dict[tuple[str, int], str]()
    terms = None
    for machine in where:
        if not machine.gpus:
            continue
        why, reasons = job.why_not(machine), dict[int, str]()
        for count in () if why else hosts:
            ranks = count * machine.gpus
            images = job.micro(ranks)
            reasons[count] = (
                f"train.batch_size={job.config.train.batch_size} is less than one image for each "
                f"of {ranks} GPUs"
            )
            if images:
                reasons[count] = refusal(
                    job.config, job.network, images, ranks, machine.gpu_memory_gb
                )
            if not reasons[count]:
                terms = job.terms(machine, ranks)
                offers.append(offer_of(terms, machine, machine, count, draws))
        refused = {
            count: reason for count, reason in sorted(reasons.items(), reverse=True) if reason
        }
        if why or len(refused) == len(reasons):
            # Of the reasons, the one of memory with the most hosts, where each GPU has least to
            # hold.
            memory = (reason for reason in refused.values() if reason.startswith("needs"))
            left_out[machine.name] = why or next(memory, [*refused.values()][-1])
        else:
            dropped |= {
                (machine.name, count): refused[count] for count in hosts if count in refused
            }
    nothing = Terms("", 0.0, 0.0, job.sample.wall, job.sample.cpu, 0.0, 0.0, job.total)
    return ConfigPlan(terms or nothing, tuple(offers), left_out, job, dropped)
