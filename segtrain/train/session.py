"""One rank's part of a run: how it is opened, with the cheapest checks first, how it is saved, and how it is scored."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from segtrain.bucket.tally import OF_PROCESS, Requests
from segtrain.config import Config
from segtrain.data.datasets import Dataset
from segtrain.data.helpers.engine import Engine
from segtrain.data.index.subset import without
from segtrain.data.workers.pool import WorkerPool
from segtrain.evaluate.evaluation import evaluate
from segtrain.models import build_model
from segtrain.observe.journal import say_on_stderr
from segtrain.parallel.model import whole_cpu
from segtrain.parallel.strategy import Strategy
from segtrain.train import scored
from segtrain.train.agree import agree_on_config, check_same_files
from segtrain.train.learner import Learner, build_learner, build_network, learner_state, mean_buffers
from segtrain.train.limits import Guard, Limit, open_limit
from segtrain.train.lock import RunLock
from segtrain.train.numerics import set_numerics
from segtrain.train.output import Output, announce, decoder
from segtrain.train.parts import Parts, open_data, refuse_conflicts, sharing_listings
from segtrain.train.plan import Plan, make_plan
from segtrain.train.prepare import Prepared, prepare, refused, restored
from segtrain.train.state import State, Stopwatch, all_finite, averaged_weights, not_finite, on_every_rank, on_rank_0
from segtrain.train.writer import CheckpointWriter


@dataclass
class Session:
    """One rank's share of a run."""

    config: Config
    strategy: Strategy
    plan: Plan
    dataset: Dataset
    validation: Dataset
    learner: Learner
    state: State
    watch: Stopwatch
    output: Output
    pool: WorkerPool  # makes the samples of training and of evaluation
    lock: RunLock  # held by rank 0 alone
    writer: CheckpointWriter | None  # rank 0 alone
    data: dict[str, Any]  # record of the samples, for the checkpoints: see same_data.py
    # Returns the requests to buckets since its last call, for the journal.
    requests: Callable[[], Requests] = field(default_factory=OF_PROCESS.counter)
    guard: Guard | None = None  # of train.deadline and train.budget; rank 0 alone
    # A step with a checkpoint beside the usual ones: with a limit, its time must be known before the last one.
    first_save: int | None = None

    def save(self, reason: str) -> None:
        """Write a checkpoint of the current step. A collective. Raises ConfigError if a weight is not finite."""
        begin, strategy = time.perf_counter(), self.strategy
        if not all_finite(self.learner.parameters, strategy):
            raise not_finite(self.state.step, "a weight", self.config)
        content = learner_state(self.learner, strategy)
        if self.writer is None:
            return
        self.lock.check()
        content |= {
            "state": dict(vars(self.state)),
            "config_hash": self.config.hash,
            "decoder": decoder(),
            "data": self.data,
            "world_size": strategy.world_size,
            "precision": self.learner.precision.name,
        }
        path = self.writer.save(self.state.step, content)
        seconds = time.perf_counter() - begin
        if self.guard:
            self.guard.saved(seconds)
        self.output.journal.write("checkpoint", step=self.state.step, file=path.name, reason=reason, seconds=seconds)

    def score(self) -> float:
        """Score the weights, or their moving average if there is one, on the validation split. A collective.

        Writes the scores, and returns the mIoU.
        """
        config, strategy, learner, state = self.config, self.strategy, self.learner, self.state
        begin, last = time.perf_counter(), state.step >= self.plan.steps
        with self.watch.paused(state):
            with mean_buffers(learner.plain, learner.ema, strategy), averaged_weights(learner.plain, learner.ema):
                result = evaluate(
                    self._whole_model(),
                    self.validation,
                    config.eval,
                    device=strategy.device,
                    precision=learner.precision.name,
                    rank=strategy.rank,
                    world_size=strategy.world_size,
                    all_reduce=strategy.reduce,
                    pool=self.pool,
                    channels_last=learner.channels_last,
                    base_scale=config.data.base_scale,
                    pictures=config.log.pictures,
                    extremes=scored.extremes(config) if last else 0,
                )
            state.scores = result.scores.to_dict()
            if strategy.rank == 0:
                scored.tell(self.output, state, self.plan.epoch(state.step), self.validation.labels, result)
                scored.keep(self.output, config, state, self.validation, result, last)
        if self.guard:
            self.guard.evaluated(time.perf_counter() - begin)
        return float(result.scores.miou)

    def _whole_model(self) -> nn.Module:
        """The network to score. A sharded one is gathered, because ranks may score unequal numbers of images.

        The forward pass of a sharded network is a collective, which all ranks must call equally often.
        """
        plain = self.learner.plain
        if self.strategy.name != "fsdp":
            return plain
        settings = self.config.model.model_copy(update={"encoder_weights": None})
        whole = build_model(settings, self.learner.criterion.num_classes)
        whole.load_state_dict({name: whole_cpu(value) for name, value in plain.state_dict().items()})
        return whole.to(self.strategy.device)


def open_session(config: Config, strategy: Strategy, lock: RunLock, parts: Parts | None = None) -> Session:
    """Open a run: check the settings, then file names, the network, and every label, and write the run folder last.

    In this order, a mistake costs little time, and leaves few files. Rank 0 takes ``lock`` before it changes anything
    in the run folder. A collective.
    """
    parts, begun = parts or Parts(), time.time()
    agree_on_config(config, strategy)
    refuse_conflicts(config, parts)
    precision = set_numerics(config, strategy)
    engine = _engine(config, strategy)
    with sharing_listings(config.data, strategy):
        train, val = open_data(config, parts)
    check_same_files({"train": train, "val": val}, config, strategy)
    cluster, on_gpu, labels = strategy.cluster, strategy.device.type == "cuda", train.labels
    make_plan(config, len(train), cluster, on_gpu)
    names = parts.names()
    locked = on_rank_0(strategy, lambda: refused(config, train, names, lock, cluster.local_world_size))
    on_every_rank(strategy, lambda: lock.follow(locked["run"]))
    limit = open_limit(config, strategy, begun)
    network, initial = build_network(config, parts, labels, strategy, locked["resumes"])

    found = Prepared()
    prepared = on_rank_0(strategy, lambda: prepare(config, lock, found, train, val, names))
    dataset, validation = (
        without(split, prepared["skipped"][role]) for role, split in (("train", train), ("val", val))
    )
    plan = make_plan(config, len(dataset), cluster, on_gpu)  # now without the samples that are left out
    learner = build_learner(config, parts, network, labels, prepared["weights"], strategy, precision)
    state, saved, remarks = restored(config, learner, strategy, found, locked["resumes"])
    if config.train.compile:
        learner.compile()

    output = announce(
        config, parts, strategy, plan, learner, state, saved,
        splits={"train": train, "val": val}, counts=(len(dataset), len(validation)), initial=initial, prepared=prepared,
        remarks=[*locked["remarks"], *(initial.lines() if initial else []), *prepared["remarks"], *remarks],
        begun=begun, limit=limit,
    )  # fmt: skip
    pool = _pool(config, strategy, plan, output, engine)
    writer = None
    if strategy.rank == 0:
        folder, settings = config.run_dir / "checkpoints", config.checkpoint
        writer = CheckpointWriter(folder, settings.keep, settings.background, lock.check)
    watch = Stopwatch(strategy, pool.cpu_s)
    session = Session(
        config, strategy, plan, dataset, validation, learner, state, watch, output, pool, lock, writer, prepared["data"]
    )
    if config.train.deadline or config.train.budget:
        session.first_save = state.step + config.log.every
    if limit is not None:
        session.guard = _guard(session, limit, begun)
    return session


def _guard(session: Session, limit: Limit, begun: float) -> Guard:
    writer, lock, output = session.writer, session.lock, session.output
    return Guard(
        limit, session.plan, len(session.validation), time.time() - begun,
        lambda: (writer.slowest_s if writer else 0.0) + lock.upload_s, output.screen.say,
        partial(output.journal.write, "limit"),
    )  # fmt: skip


def _engine(config: Config, strategy: Strategy) -> Engine | None:
    """What places helpers for this rank; None without helpers. A collective."""
    found: list[Engine | None] = []
    if config.data.helpers != "none":
        from segtrain.data.helpers.cluster import engine_of

        join = partial(engine_of, config.data, strategy.rank, strategy.world_size)
        on_every_rank(strategy, lambda: found.append(join()))
    return found[0] if found else None


def _pool(config: Config, strategy: Strategy, plan: Plan, output: Output, engine: Engine | None) -> WorkerPool:
    """The workers of this rank, with helpers if there is an engine."""
    workers = plan.worker_count.start, plan.worker_kind
    if engine is None:
        return WorkerPool(*workers)
    from segtrain.data.helpers.pool import HelpedPool

    say = output.screen.say if strategy.rank == 0 else lambda text: say_on_stderr(f"rank {strategy.rank}: {text}")
    note = partial(output.journal.write, "helpers")
    return HelpedPool(*workers, engine, limit_s=config.data.helper_timeout_s, say=say, note=note)
