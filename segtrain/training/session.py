"""One rank's part of a run: how it is opened, with the cheapest checks first, how it is saved, and how it is scored."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from segtrain.config import Config
from segtrain.data.dataset import Dataset
from segtrain.data.index.subset import without
from segtrain.data.workers.pool import WorkerPool
from segtrain.evaluation.evaluation import Evaluation, evaluate
from segtrain.models import build_model
from segtrain.observe.journal import say_on_stderr
from segtrain.parallel.model import gathered, whole_cpu
from segtrain.parallel.strategy import Strategy
from segtrain.runfolder.upload import FolderLock
from segtrain.runfolder.writer import CheckpointWriter, Contents
from segtrain.training import score_output as scored
from segtrain.training.graphs import refuse_graphs
from segtrain.training.host_copies import HostCopies, sent_home
from segtrain.training.learner import Learner, as_saved, build_learner, build_network, learner_state, mean_buffers
from segtrain.training.limits import Guard, Limit, open_limit
from segtrain.training.output import Output, announce, decoder
from segtrain.training.provided import CORE, Helpers, Provided
from segtrain.training.start.agree import agree_on_config, agree_on_network, check_same_files
from segtrain.training.start.derived import Plan, make_plan
from segtrain.training.start.numerics import set_numerics
from segtrain.training.start.prepare import Prepared, prepare, refused, restored
from segtrain.training.start.user_objects import Parts, open_data, refuse_conflicts, sharing_listings
from segtrain.training.state import (
    State,
    Stopwatch,
    averaged_weights,
    nonfinite_weights,
    not_finite,
    on_every_rank,
    on_rank_0,
)


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
    helpers: Helpers | None
    lock: FolderLock  # held by rank 0 alone
    writer: CheckpointWriter | None  # rank 0 alone
    data: dict[str, Any]  # record of the samples, for the checkpoints: see same_data.py
    guard: Guard | None = None  # of train.deadline and train.budget; rank 0 alone
    # A step with a checkpoint beside the usual ones: with a limit, its time must be known before the last one.
    first_save: int | None = None
    copies: HostCopies | None = None  # of a GPU's state; rank 0 alone
    unsettled: tuple[int, Tensor, Any] | None = None  # the last checkpoint's step, and whether a weight is not finite

    def save(self, reason: str) -> None:
        """Write a checkpoint of the current step. A collective.

        Raises ConfigError if a weight is not finite: on a CPU now, on a GPU in ``settle``, so the host need not wait.
        """
        begin, strategy, step = time.perf_counter(), self.strategy, self.state.step
        self.settle()
        bad, arrived = sent_home(nonfinite_weights(self.learner.parameters, strategy))
        self.unsettled = step, bad, arrived
        if arrived is None:
            self.settle()
        if self.writer is None:
            learner_state(self.learner, strategy, _gathered_and_dropped)  # for its collectives
            return
        self.writer.wait()  # before the memory of its copies is used again
        content = learner_state(self.learner, strategy, self.copies.take if self.copies else None)
        if self.copies:
            self.copies.start()
        self.lock.check()
        content |= {
            "state": dict(vars(self.state)),
            "config_hash": self.config.hash,
            "decoder": decoder(),
            "data": self.data,
            "world_size": strategy.world_size,
            "precision": self.learner.precision.name,
            "origin": dict(vars(self.learner.plain.origin)),
        }

        def complete(content: Contents) -> Contents | None:
            if self.copies:
                self.copies.wait()
            if arrived is not None:
                arrived.synchronize()
            return None if bad else as_saved(content)

        path = self.writer.save(step, content, complete)
        seconds = time.perf_counter() - begin
        if self.guard:
            self.guard.saved(seconds)
        self.output.journal.write("checkpoint", step=step, file=path.name, reason=reason, seconds=seconds)

    def settle(self) -> None:
        """Raise ConfigError if a weight of the last checkpoint was not finite: it was not written. All ranks alike.

        On a GPU, this waits until the checkpoint has been copied.
        """
        if self.unsettled is None:
            return
        (step, bad, arrived), self.unsettled = self.unsettled, None
        if arrived is not None:
            arrived.synchronize()
        if bad:
            raise not_finite(step, "a weight", self.config)

    def wait_saved(self) -> None:
        """Wait until the last checkpoint is written. Raises as ``settle`` does, or CheckpointError."""
        self.settle()
        if self.writer:
            self.writer.wait()

    def score(self) -> float:
        """Score the weights, or their moving average if there is one, on the validation split. A collective.

        Writes the scores, and returns the mIoU.
        """
        config, strategy, learner, state = self.config, self.strategy, self.learner, self.state
        begin, last = time.perf_counter(), state.step >= self.plan.steps
        with self.watch.paused(state):
            with mean_buffers(learner, strategy), averaged_weights(learner.plain, learner.ema):
                result = self.evaluate(
                    self.validation,
                    rank=strategy.rank,
                    world_size=strategy.world_size,
                    all_reduce=strategy.reduce,
                    pool=self.pool,
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

    def evaluate(self, dataset: Dataset, **more: Any) -> Evaluation:
        """Score the present weights as the settings say. ``more``: of ``evaluation.evaluate``."""
        config, learner = self.config, self.learner
        return evaluate(
            self._whole_model(), dataset, config.eval, device=self.strategy.device, precision=learner.precision.name,
            channels_last=learner.channels_last, base_scale=config.data.base_scale, **more,
        )  # fmt: skip

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
        whole.origin = plain.origin
        return whole.to(self.strategy.device)


def _gathered_and_dropped(value: Any) -> None:
    gathered(value)


def open_session(
    config: Config, strategy: Strategy, lock: FolderLock, parts: Parts | None = None, provided: Provided = CORE
) -> Session:
    """Open a run: check the settings, then file names, the network, and every label, and write the run folder last.

    In this order, a mistake costs little time, and leaves few files. Rank 0 takes ``lock`` before it changes anything
    in the run folder. A collective.
    """
    # Parts come from segtrain.train, for which the process may have worked on something else before.
    before_s = time.process_time() if parts else 0.0
    parts, begun = parts or Parts(), time.time()
    names = parts.names()
    agree_on_config(config, names, strategy)
    refuse_conflicts(config, parts)
    refuse_graphs(config, strategy, parts.criterion is not None)
    precision = set_numerics(config, strategy)
    helpers = _open_helpers(config, strategy, provided)
    with sharing_listings(config.data, strategy):
        train, val = open_data(config, parts)
    check_same_files({"train": train, "val": val}, config, strategy)
    cluster, on_gpu, labels = strategy.cluster, strategy.device.type == "cuda", train.labels
    make_plan(config, len(train), cluster, on_gpu)
    claim = partial(refused, config, train, names, lock, cluster.local_world_size, provided.trackers)
    locked = on_rank_0(strategy, claim)
    on_every_rank(strategy, lambda: lock.follow(locked["run"]))
    limit = open_limit(config, strategy, begun)
    network, initial = build_network(config, parts, labels, strategy, locked["resumes"])
    agree_on_network(network, strategy)

    found = Prepared()
    prepared = on_rank_0(strategy, lambda: prepare(config, lock, found, train, val, names))
    dataset, validation = (
        without(split, prepared["skipped"][role]) for role, split in (("train", train), ("val", val))
    )
    plan = make_plan(config, len(dataset), cluster, on_gpu)  # now without the samples that are left out
    learner = build_learner(config, parts, network, labels, prepared["weights"], strategy, precision)
    state, saved, remarks = restored(config, learner, strategy, found, locked["resumes"])

    output = announce(
        config, parts, strategy, plan, learner, state, saved,
        splits={"train": train, "val": val}, initial=initial, prepared=prepared,
        remarks=[
            *network.remarks, *locked["remarks"], *(initial.lines() if initial else []), *prepared["remarks"], *remarks,
            *([limit.line()] if limit else []),
        ],
        begun=begun, trackers=provided.trackers,
    )  # fmt: skip
    pool = _pool(strategy, plan, output, helpers)
    writer = copies = None
    if strategy.rank == 0:
        folder, settings = config.run_dir / "checkpoints", config.checkpoint
        writer = CheckpointWriter(folder, settings.keep, settings.background, lock.check)
        copies = HostCopies(strategy.device, output.screen.say) if on_gpu else None
    watch = Stopwatch(strategy, pool.cpu_s, before_s)
    session = Session(
        config, strategy, plan, dataset, validation, learner, state, watch, output, pool, helpers, lock,
        writer,
        prepared["data"], copies=copies,
    )  # fmt: skip
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


def _open_helpers(config: Config, strategy: Strategy, provided: Provided) -> Helpers | None:
    """The helpers that ``data.helpers`` asks for. A collective."""
    opened: list[Helpers] = []
    if config.data.helpers != "none":
        join = partial(provided.open_helpers, config.data, strategy.rank, strategy.world_size)
        on_every_rank(strategy, lambda: opened.append(join()))
    return opened[0] if opened else None


def _pool(strategy: Strategy, plan: Plan, output: Output, helpers: Helpers | None) -> WorkerPool:
    """The workers of this rank, with its helpers."""
    workers = plan.worker_count.start, plan.worker_kind
    if helpers is None:
        return WorkerPool(*workers)
    say = output.screen.say if strategy.rank == 0 else lambda text: say_on_stderr(f"rank {strategy.rank}: {text}")
    return helpers.pool(*workers, say=say, note=partial(output.journal.write, "helpers"))
