"""One rank's part of a run: how it is opened, and how it is scored."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from segtrain.config import Config
from segtrain.data.dataset import Dataset
from segtrain.data.workers.pool import WorkerPool
from segtrain.evaluation.evaluation import Evaluation, evaluate, evaluating
from segtrain.models import build_model
from segtrain.models.base import channels_of
from segtrain.observe.journal import say_on_stderr
from segtrain.observe.scores import named_score
from segtrain.parallel.model import whole_cpu
from segtrain.parallel.strategy import Strategy
from segtrain.runfolder.upload import FolderLock
from segtrain.training import score_output
from segtrain.training.learner import Learner, mean_buffers
from segtrain.training.limits import LimitGuard
from segtrain.training.output import Output
from segtrain.training.provided import CORE, Helpers, Provided
from segtrain.training.saver import Saver
from segtrain.training.start.announce import announce
from segtrain.training.start.derived import Plan
from segtrain.training.start.stages import Start, build, check, check_data, open_data, restore
from segtrain.training.start.user_objects import UserObjects
from segtrain.training.state import State, Stopwatch, averaged_weights
from segtrain.training.step import restored_buffers


@dataclass(frozen=True)
class Session:
    """One rank's share of a run. ``state`` and ``learner`` change with each step."""

    config: Config
    strategy: Strategy
    plan: Plan
    train: Dataset
    val: Dataset
    learner: Learner
    state: State
    watch: Stopwatch
    output: Output
    pool: WorkerPool  # makes the samples of training and of evaluation
    helpers: Helpers | None
    saver: Saver
    guard: LimitGuard | None  # of train.deadline and train.budget; rank 0 alone

    def save(self, reason: str) -> None:
        """Write a checkpoint of the current step. A collective. Raises as ``Saver.save``."""
        seconds = self.saver.save(reason)
        if self.guard:
            self.guard.saved(seconds)

    @property
    def patience_ended(self) -> bool:
        """Whether ``train.patience`` ends the run. The scores have the same bits on all ranks, so
        this is the same, too.
        """
        return 0 < self.config.train.patience <= self.state.stale

    def score(self) -> bool:
        """Score the weights, or their moving average if there is one, on the validation split. A
        collective.

        Writes the scores. Returns whether they are the best so far.
        """
        config = self.config
        strategy = self.strategy
        learner = self.learner
        state = self.state
        begin, last = time.perf_counter(), state.step >= self.plan.steps
        may_end = last or state.stale + 1 == config.train.patience
        names, score = self.val.labels.names, named_score(config.eval.best)
        with self.watch.paused(state):
            with (
                mean_buffers(learner, strategy),
                averaged_weights(learner.plain, learner.ema),
                evaluating(learner.own_loss),
                restored_buffers(learner.own_loss),
            ):
                result = self.evaluate(
                    self.val,
                    rank=strategy.rank,
                    world_size=strategy.world_size,
                    all_reduce=strategy.reduce,
                    pool=self.pool,
                    pictures=config.log.pictures,
                    extremes=score_output.extremes(config) if may_end else 0,
                    criterion=learner.criterion,
                )
            state.scores = result.values()
            value = state.scores[score.key] = score.value(state.scores, names)
            state.best = state.best.after(state.step, value, score.key)
            best = state.best.step == state.step
            state.stale = 0 if best else state.stale + 1
            last = last or self.patience_ended
            if strategy.rank == 0:
                epoch = self.plan.epoch(state.step)
                score_output.announce_scores(
                    self.output, state, epoch, self.val.labels, result, best
                )
                score_output.write_tables(self.output, config, state, self.val, result, best, last)
        if self.guard:
            self.guard.evaluated(time.perf_counter() - begin)
        return best

    def evaluate(self, dataset: Dataset, **more: Any) -> Evaluation:
        """Score the present weights as the settings say. ``more``: of ``evaluation.evaluate``."""
        config, learner = self.config, self.learner
        return evaluate(
            self._whole_model(),
            dataset,
            config.eval,
            device=self.strategy.device,
            precision=learner.precision.name,
            channels_last=learner.channels_last,
            base_scale=config.data.base_scale,
            **more,
        )

    def _whole_model(self) -> nn.Module:
        """The network to score. A sharded one is gathered, because ranks may score unequal numbers
        of images.

        The forward pass of a sharded network is a collective, which all ranks must call equally
        often.
        """
        plain = self.learner.plain
        if self.strategy.name != "fsdp":
            return plain
        settings = self.config.model.model_copy(update={"encoder_weights": None})
        classes = self.learner.criterion.num_classes
        whole = build_model(settings, classes, channels_of(plain))
        whole.load_state_dict(
            {name: whole_cpu(value) for name, value in plain.state_dict().items()}
        )
        whole.origin = plain.origin
        return whole.to(self.strategy.device)


def open_session(
    config: Config,
    strategy: Strategy,
    lock: FolderLock,
    objects: UserObjects | None = None,
    provided: Provided = CORE,
) -> Session:
    """Open a run, or resume it. A collective.

    The cheapest checks come first, so that a mistake costs little time: settings, file names, the
    network, every label. The run folder is written only after them, so that a mistake leaves few
    files.
    """
    start = check(config, strategy, lock, objects, provided)
    opened = open_data(start)
    network = build(start, opened)
    data = check_data(start, opened)
    restored = restore(start, opened, network, data)
    output = announce(start, opened, network, data, restored)

    learner = restored.learner
    state = restored.state
    plan = data.plan
    pool = _worker_pool(start, plan, output)
    saver = Saver(config, strategy, learner, state, lock, output, data.findings.records)
    watch = Stopwatch(strategy, pool.cpu_s, start.cpu_before_s)
    guard = None
    if opened.limit is not None:
        guard = LimitGuard(
            opened.limit,
            plan,
            len(data.val),
            time.time() - start.begun,
            saver.written_s,
            output.screen.say,
            partial(output.journal.write, "limit"),
        )
    return Session(
        config=config,
        strategy=strategy,
        plan=plan,
        train=data.train,
        val=data.val,
        learner=learner,
        state=state,
        watch=watch,
        output=output,
        pool=pool,
        helpers=start.helpers,
        saver=saver,
        guard=guard,
    )


def _worker_pool(start: Start, plan: Plan, output: Output) -> WorkerPool:
    """The workers of this rank, with its helpers."""
    workers = (plan.worker_count.start, plan.worker_kind)
    rank = start.strategy.rank
    if start.helpers is None:
        return WorkerPool(*workers)
    say = output.screen.say if rank == 0 else lambda text: say_on_stderr(f"rank {rank}: {text}")
    return start.helpers.pool(*workers, say=say, note=partial(output.journal.write, "helpers"))
