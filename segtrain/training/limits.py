"""The guard of train.deadline and train.budget: it ends a run in time for a last checkpoint, and
says so early.

A limit holds for the whole run: what earlier processes have taken counts, by the journal. Rank 0
decides, and its vote ends all ranks after the same step.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from segtrain.base.units import duration
from segtrain.config import Config
from segtrain.config.limits import dollars_of, seconds_of
from segtrain.errors import ConfigError
from segtrain.observe.journal import FILE, Say, last_status, read_journal
from segtrain.observe.spent import Spent, spent
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import Strategy
from segtrain.training.start.derived import Plan
from segtrain.training.start.price import price_of, refuse_budget
from segtrain.training.state import on_every_rank

# The last checkpoint may take this much longer than the slowest one so far.
SPARE = 1.5
# Seconds after the last checkpoint: workers, trackers, and the process end.
CLOSING_S = 3.0
# A warning comes when this share of the limit is left.
NEAR = 0.1
# A prediction is repeated if the step at which the run ends has moved by this share of the run.
MOVED = 0.1
WINDOWS = 20  # log windows over which the time of a step is measured


@dataclass(frozen=True)
class Limit:
    """The tighter one of the deadline and the budget.

    ``name``: as in "train.deadline=2h". ``whole_s``: seconds of this process if nothing was spent
    before. ``left_s``: seconds for this process. ``spent``: before this process. ``rate``: dollars
    per second of all machines; None: unknown.
    """

    name: str
    whole_s: float
    left_s: float
    spent: Spent
    rate: float | None

    def line(self) -> str:
        """What the run may take, for its start."""
        left = f"{self.name}: {duration(self.left_s)} for this process"
        if self.rate:
            left += f", ${self.left_s * self.rate:,.2f} at ${3600 * self.rate:,.2f} per hour"
        before = f"; {duration(self.spent.seconds)} were taken before" if self.spent.seconds else ""
        return f"limit     {left}{before}"


def limit_of(config: Config, cluster: Cluster, before: Spent) -> Limit | None:
    """The limit of a process of ``cluster``; None without one."""
    price = price_of(config, cluster.machine)
    rate = None if price is None else price * cluster.hosts / 3600
    limits = []
    if config.train.deadline:
        whole = seconds_of(config.train.deadline) or 0.0
        limits.append(
            Limit(
                f"train.deadline={config.train.deadline}",
                whole,
                whole - before.seconds,
                before,
                rate,
            )
        )
    if config.train.budget and rate:
        whole = (dollars_of(config.train.budget) or 0.0) / rate
        left = whole - (before.dollars or 0.0) / rate
        limits.append(Limit(f"train.budget={config.train.budget}", whole, left, before, rate))
    return min(limits, key=lambda limit: limit.left_s, default=None)


def open_limit(config: Config, strategy: Strategy, begun: float) -> Limit | None:
    """The limit of this process, on rank 0. A collective if a limit is set.

    ``begun``: Unix time at which the process began. Raises ConfigError on every rank if the price
    is unknown, or if nothing is left.
    """
    if not (config.train.deadline or config.train.budget):
        return None
    refuse_budget(config, strategy.cluster.machine)
    return on_every_rank(
        strategy, lambda: _remaining(config, strategy, begun) if strategy.rank == 0 else None
    )


def _remaining(config: Config, strategy: Strategy, begun: float) -> Limit | None:
    journal = config.run_dir / FILE
    price = price_of(config, strategy.cluster.machine)
    before = spent(read_journal(journal), price) if journal.is_file() else Spent()
    limit = limit_of(config, strategy.cluster, before)
    used = before.seconds and limit and limit.left_s <= time.time() - begun + CLOSING_S
    if limit and used and last_status(journal) != "done":
        key = limit.name.partition("=")[0]
        took = (
            f"{duration(before.seconds)} and ${before.dollars:,.2f}"
            if limit.rate
            else duration(before.seconds)
        )
        raise ConfigError(
            f"{limit.name} is used up: the run in {config.run_place} has taken {took}: set a "
            f"larger {key} to go on from its newest checkpoint",
            code="limit-used-up",
            key=key,
            found=before.seconds,
        )
    return limit


class LimitGuard:
    """Decides on rank 0 when a run must end, and predicts it.

    ``images``: of an evaluation. ``begun``: seconds that the process has taken already.
    ``written_s``: returns the most seconds so far from the moment when the loop continues after a
    checkpoint until it is written and uploaded. ``say`` takes a sentence, ``note`` the fields of
    the event ``limit``.
    """

    def __init__(
        self,
        limit: Limit,
        plan: Plan,
        images: int,
        begun: float,
        written_s: Callable[[], float],
        say: Say,
        note: Callable[..., None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit, self.reached = limit, False
        self._plan = plan
        self._images = images
        self._written_s = written_s
        self._say = say
        self._note = note
        self._now, self._begin = now, now() - begun
        self._eval_s: list[float] = []
        self._save_s: list[float] = []
        # (step, time without evaluations and checkpoints) at the last log lines.
        self._marks: deque[tuple[int, float]] = deque(maxlen=WINDOWS)
        self._predicted: int | None = None
        self._near = False

    @property
    def taken_s(self) -> float:
        return self._now() - self._begin

    def evaluated(self, seconds: float) -> None:
        self._eval_s.append(seconds)

    def saved(self, seconds: float) -> None:
        self._save_s.append(seconds)

    def over(self, step: int, delay: int) -> bool:
        """Whether the run must end. Call it before each step; the ranks end ``delay`` steps
        later.
        """
        if not self.reached:
            until = min(self._plan.steps, step + delay + 1)
            self.reached = (
                self.taken_s + self._needed(step, until) + self.reserve_s >= self.limit.left_s
            )
            if self.reached:
                self._record("reached", step, step, f"{self.limit.name} is reached")
        return self.reached

    @property
    def reserve_s(self) -> float:
        """Seconds that the last checkpoint and the end of the process may take."""
        return SPARE * (max(self._save_s, default=0.0) + self._written_s()) + CLOSING_S

    def logged(self, step: int) -> None:
        """Predict the end, and say it if it is new. Call it at each log line, after ``step``
        steps.
        """
        self._marks.append((step, self.taken_s - sum(self._eval_s) - sum(self._save_s)))
        if len(self._marks) < 2 or self.reached:
            return
        ends, steps = self.ends_at(step), self._plan.steps
        near = self.limit.left_s - self.taken_s < NEAR * self.limit.whole_s and ends < steps
        moved = (
            self._predicted is None
            or abs(ends - self._predicted) > MOVED * steps
            or (ends < steps) != (self._predicted < steps)
        )
        if not moved and not (near and not self._near):
            return
        self._predicted, self._near = ends, self._near or near
        if ends < steps:
            left = f"{duration(max(0.0, self.limit.left_s - self.taken_s))} left: " if near else ""
            text = f"{left}{self.limit.name} will end this run at about step {ends:,} of {steps:,}"
        else:
            more = self._needed(step, steps, 1)
            cost = f" and ${more * self.limit.rate:,.2f}" if self.limit.rate else ""
            text = f"the run will take about {duration(more)}{cost} more, within {self.limit.name}"
        self._say(f"limit     {text}")
        self._record("near" if near else "predicted", step, ends, text)

    def ends_at(self, step: int) -> int:
        """The step after which the limit ends the run; the last one if it does not.

        Call it after ``step`` steps, before the evaluation that may be due then.
        """
        left = self.limit.left_s - self.taken_s - self.reserve_s
        steps = range(step, self._plan.steps + 1)
        return steps[
            max(0, bisect_right(steps, left, key=lambda until: self._needed(step, until, 1)) - 1)
        ]

    def took(self) -> tuple[float, float | None]:
        """Seconds and dollars of the whole run so far; dollars are None without a price."""
        before, rate = self.limit.spent, self.limit.rate
        dollars = None
        if rate is not None and before.dollars is not None:
            dollars = before.dollars + self.taken_s * rate
        return before.seconds + self.taken_s, dollars

    def _record(self, what: str, step: int, ends: int, text: str) -> None:
        seconds, dollars = self.took()
        self._note(
            what=what,
            limit=self.limit.name,
            step=step,
            ends_at=ends,
            steps=self._plan.steps,
            seconds=seconds,
            dollars=dollars,
            text=text,
        )

    def _needed(self, step: int, until: int, pending: int = 0) -> float:
        """Seconds from ``step`` to ``until``, with the evaluations and checkpoints that are due
        between them.

        ``pending``: 1 if those of ``step`` itself are still to come.
        """
        plan, last = self._plan, until == self._plan.steps
        evals, saves = (
            _due(step - pending, until, every, last) for every in (plan.eval_every, plan.save_every)
        )
        pixel_s = self._pixel_s()
        train = pixel_s * self._pixels(step, until)
        # Until an evaluation was measured, an image counts as much there as in training.
        evaluation_s = (
            _mean(self._eval_s)
            or pixel_s * self._pixels(step, step + 1) / plan.batch_size * self._images
        )
        return train + evals * evaluation_s + saves * _mean(self._save_s)

    def _pixel_s(self) -> float:
        """Seconds of training per pixel of a crop; 0 before it was measured."""
        if len(self._marks) < 2:
            return 0.0
        (first, begin), (last, end) = self._marks[0], self._marks[-1]
        return (end - begin) / max(1, self._pixels(first, last))

    def _pixels(self, step: int, until: int) -> int:
        """The pixels of one crop, summed over steps: with train.progressive, later steps take
        longer.
        """
        total, begin = 0, step
        for crop_until, (height, width), _ in self._plan.crops:
            end = until if crop_until >= self._plan.steps else min(until, crop_until)
            if end > begin:
                total, begin = total + (end - begin) * height * width, end
        return total


def _mean(seconds: list[float]) -> float:
    return sum(seconds) / max(1, len(seconds))


def _due(step: int, until: int, every: int, last: bool) -> int:
    """How many of the steps in (step, until] are multiples of ``every``, or the ``last`` one of the
    run.
    """
    return until // every - step // every + (last and until > step and until % every > 0)
