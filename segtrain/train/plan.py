"""What a run will do, in numbers: each derived quantity is computed here once and printed once."""

from __future__ import annotations

from dataclasses import dataclass

from segtrain.config import Config, Size, duration_in_steps
from segtrain.cores import cores
from segtrain.data.crew.pace import Staff, staff
from segtrain.data.loader import worker_kind
from segtrain.errors import ConfigError
from segtrain.parallel.cluster import Cluster


@dataclass(frozen=True)
class Plan:
    """Steps are optimizer steps, counted from 0 over the whole run."""

    steps: int
    warmup: int
    eval_every: int
    save_every: int
    samples: int
    batch_size: int
    staff: Staff
    worker_kind: str
    crops: tuple[tuple[int, Size, float], ...]  # (until this step, (height, width), size factor)
    scale: tuple[float, float]  # least and most random scale at the first step
    scale_end: tuple[float, float]  # and at the last

    def size_at(self, step: int) -> tuple[Size, tuple[float, float]]:
        """Crop and scale range at a step: a pure function, so that a resumed run draws what it would have drawn.

        A smaller crop shows as much of the scene as a full one: the scale shrinks with it.
        """
        crop, factor = next((c, f) for until, c, f in self.crops if step < until or until >= self.steps)
        done = step / self.steps
        low, high = (factor * (a + (b - a) * done) for a, b in zip(self.scale, self.scale_end))
        return crop, (low, high)

    def epoch(self, step: int) -> float:
        return step * self.batch_size / self.samples


def make_plan(config: Config, samples: int, cluster: Cluster, has_gpu: bool) -> Plan:
    """Raises ConfigError when the batch does not spread over the ranks, or the warm-up outlasts the run."""
    train = config.train
    steps = duration_in_steps(train.duration, samples, train.batch_size)
    if steps < 1:
        raise ConfigError(f"train.duration={train.duration} is no step at all: use at least '1st'")
    images = train.batch_size // train.accumulate
    if images < cluster.world_size:
        raise ConfigError(
            f"train.batch_size={train.batch_size} in {train.accumulate} micro-batches leaves {images} images for "
            f"{cluster.world_size} ranks: use at least {cluster.world_size * train.accumulate}, or fewer ranks"
        )
    warmup = duration_in_steps(config.optim.warmup, samples, train.batch_size, steps)
    if warmup >= steps:
        raise ConfigError(f"optim.warmup={config.optim.warmup} is {warmup} steps, but the run has {steps}: shorten it")
    return Plan(
        steps=steps,
        warmup=warmup,
        eval_every=max(1, duration_in_steps(config.eval.every, samples, train.batch_size)),
        save_every=max(1, duration_in_steps(config.checkpoint.every, samples, train.batch_size)),
        samples=samples,
        batch_size=train.batch_size,
        staff=staff(config.data.workers, cores(), cluster.local_world_size, cpu_training=not has_gpu),
        worker_kind=worker_kind(config.data),
        crops=_crops(config, steps),
        scale=config.data.scale,
        scale_end=config.data.scale_end or config.data.scale,
    )


def _crops(config: Config, steps: int) -> tuple[tuple[int, Size, float], ...]:
    stages = list(config.train.progressive)
    if not stages or stages[-1][0] < 1:
        stages.append((1.0, 1.0))
    crops = []
    for until, factor in stages:
        height, width = config.data.crop
        if factor < 1:
            height, width = (max(32, round(side * factor / 8) * 8) for side in (height, width))
        crops.append((round(until * steps), (height, width), factor))
    return tuple(crops)
