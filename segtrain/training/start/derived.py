"""What a run will do, in numbers: each derived quantity is computed here once and printed once."""

from __future__ import annotations

from dataclasses import dataclass

from segtrain.base.cores import cores
from segtrain.config import Config, Size, duration_in_steps, interval_in_steps, joined
from segtrain.data.train_loader import worker_kind
from segtrain.data.workers.autoscaler import WorkerCount, worker_count
from segtrain.errors import ConfigError
from segtrain.parallel.cluster import Cluster
from segtrain.training.start.early_checks import refuse_batch


@dataclass(frozen=True)
class Plan:
    """The derived numbers of a run. Steps are optimizer steps, counted from 0 over the whole
    run.

    ``steps``: with those of ``train.extend``. ``planned``: those of ``train.duration``, on which
    all else depends.
    """

    steps: int
    planned: int
    warmup: int
    eval_every: int
    save_every: int
    samples: int
    batch_size: int
    worker_count: WorkerCount
    worker_kind: str
    crops: tuple[tuple[int, Size, float], ...]  # (until this step, (height, width), size factor)
    scale: tuple[float, float]  # smallest and largest random scale at the first step
    scale_end: tuple[float, float]  # the same at the last step
    encoder_start: int = 0  # the step at which the encoder begins to learn

    def crop_and_scale(self, step: int) -> tuple[Size, tuple[float, float]]:
        """Crop and scale range at a step: a pure function, so that a resumed run draws the same
        crops.

        A smaller crop shows as much of the scene as a full one: the scale shrinks with it.
        """
        crop, factor = next(
            (c, f) for until, c, f in self.crops if step < until or until >= self.steps
        )
        done = min(1.0, step / self.planned)
        low, high = (factor * (a + (b - a) * done) for a, b in zip(self.scale, self.scale_end))
        return crop, (low, high)

    def schedule_ends(self, step: int) -> int:
        """The step at which the schedule of the learning rate ends that holds at ``step``."""
        return self.planned if step < self.planned else self.steps

    def epoch(self, step: int) -> float:
        return step * self.batch_size / self.samples


def make_plan(config: Config, samples: int, cluster: Cluster, has_gpu: bool) -> Plan:
    """The plan of a run.

    Raises ConfigError if a micro-batch has fewer images than there are ranks, or if the warm-up
    outlasts the run.
    """
    train = config.train
    steps = max(1, duration_in_steps(train.duration, samples, train.batch_size))
    refuse_batch(config, cluster.world_size)
    warmup = duration_in_steps(config.optim.warmup, samples, train.batch_size, steps)
    if config.optim.warmup.endswith("%"):
        warmup = min(warmup, steps - 1)  # a share of a very short run is rounded down
    if warmup >= steps:
        raise ConfigError(
            f"optim.warmup={config.optim.warmup} is {warmup} steps, but the run has {steps}: "
            "shorten it",
            code="warmup-too-long",
            found=warmup,
            expected=steps,
        )
    encoder_start = duration_in_steps(config.optim.encoder_start, samples, train.batch_size, steps)
    lengths = [joined(train.duration, train.extend)]
    if not lengths[0]:
        lengths = [train.duration, train.extend]
    total = sum(duration_in_steps(text, samples, train.batch_size) for text in lengths)
    return Plan(
        steps=max(steps, total),
        planned=steps,
        warmup=warmup,
        eval_every=interval_in_steps(config.eval.every, samples, train.batch_size, steps),
        save_every=interval_in_steps(config.checkpoint.every, samples, train.batch_size, steps),
        samples=samples,
        batch_size=train.batch_size,
        worker_count=worker_count(
            config.data.workers, cores(), cluster.local_world_size, cpu_training=not has_gpu
        ),
        worker_kind=worker_kind(config.data),
        crops=_crops(config, steps, max(steps, total)),
        scale=config.data.scale,
        scale_end=config.data.scale_end or config.data.scale,
        encoder_start=encoder_start,
    )


def _crops(config: Config, steps: int, total: int) -> tuple[tuple[int, Size, float], ...]:
    stages = list(config.train.progressive)
    if not stages or stages[-1][0] < 1:
        stages.append((1.0, 1.0))
    crops = []
    for until, factor in stages:
        height, width = config.data.crop
        if factor < 1:
            height, width = (max(32, round(side * factor / 8) * 8) for side in (height, width))
        crops.append((total if until == 1 else round(until * steps), (height, width), factor))
    return tuple(crops)
