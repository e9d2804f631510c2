"""State of a run besides its weights, a stopwatch, signal handlers, and averaged weights for an
evaluation.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from segtrain.base import stopping
from segtrain.config import Config
from segtrain.errors import CheckpointError, ConfigError, SegtrainError
from segtrain.optim import Ema
from segtrain.parallel.collective import broadcast_json, names_of, table
from segtrain.parallel.model import load_state, taken
from segtrain.parallel.strategy import Strategy
from segtrain.runfolder.checkpoint import Best, renamed

T = TypeVar("T")


@dataclass
class State:
    """The small values of a checkpoint. The order of samples and the random numbers are functions
    of ``step``.
    """

    step: int = 0
    best: Best = field(default_factory=Best)
    cpu_s: float = 0.0  # CPU time of all ranks and their workers while training, without evaluation
    wall_s: float = 0.0  # wall time while training, without evaluation
    scores: dict[str, Any] = field(default_factory=dict)
    stale: int = 0  # evaluations since the best one

    def to_dict(self) -> dict[str, Any]:
        """The entries of a checkpoint's state."""
        entries = {**vars(self), **self.best.entries()}
        del entries["best"]
        return entries

    @classmethod
    def read(cls, saved: Mapping[str, Any], source: str) -> State:
        """The state in a checkpoint of the run folder ``source``. Raises CheckpointError for
        invalid entries.
        """
        saved, defaults = renamed(saved), cls().to_dict()
        kinds = {key: type(value) for key, value in defaults.items()}
        invalid = [
            f"{key}={value!r}" if key in kinds else f"the unknown entry {key!r}"
            for key, value in saved.items()
            if type(value) is not kinds.get(key)
            and not (kinds.get(key) is float and type(value) is int)
        ]
        if not invalid:
            entries = {**defaults, **saved}
            best = Best(*(entries.pop(key) for key in Best().entries()))
            state = cls(best=best, **entries)
            if 0 <= best.step <= state.step and math.isfinite(best.value):
                return state
            invalid = [f"step={state.step}, best_step={best.step}, best_value={best.value}"]
        raise CheckpointError(
            f"the newest checkpoint in {source} is damaged or from another version (its state has "
            f"{invalid[0]}): move it out of checkpoints/ to resume from the previous one, or "
            "choose another out=FOLDER",
            code="checkpoint-damaged",
            run=source,
            found=invalid[0],
        )


class Stopwatch:
    """Wall and CPU time of the training alone: paused during evaluation. CPU seconds are summed
    over ranks.

    The CPU time of a process counts from its start, imports included, without the first
    ``before_s`` seconds. ``workers_cpu_s`` returns the workers' CPU time.
    """

    def __init__(
        self, strategy: Strategy, workers_cpu_s: Callable[[], float], before_s: float = 0.0
    ) -> None:
        self._strategy, self._workers_cpu_s = strategy, workers_cpu_s
        self._wall, self._cpu = time.perf_counter(), before_s

    def lap(self, state: State) -> None:
        """Add the time since the last lap to ``state``. A collective."""
        wall, cpu = self._wall, self._cpu
        self._restart()
        state.wall_s += self._wall - wall
        own = torch.tensor([self._cpu - cpu], dtype=torch.float64, device=self._strategy.device)
        state.cpu_s += float(self._strategy.reduce(own))

    def _restart(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time() + self._workers_cpu_s()

    @contextlib.contextmanager
    def paused(self, state: State) -> Iterator[None]:
        self.lap(state)
        yield
        self._restart()


@contextlib.contextmanager
def stop_signals(earlier: list[int] | None = None) -> Iterator[list[int]]:
    """Yield a list (``earlier``, if given) to which each SIGTERM, SIGINT and SIGUSR1 is appended.

    A SIGINT before the ranks have met, and a second one, raise KeyboardInterrupt at once.
    """
    received: list[int] = [] if earlier is None else earlier
    stopping.connected.clear()
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread can install handlers. In another thread, the caller handles signals.
        yield received
        return

    def remember(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and (
            signal.SIGINT in received or not stopping.connected.is_set()
        ):
            raise KeyboardInterrupt
        received.append(number)
        stopping.requested.set()

    before = {
        number: signal.signal(number, remember)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    }
    try:
        yield received
    finally:
        stopping.requested.clear()
        for number, handler in before.items():
            # None: a handler that was not installed from Python, which cannot be installed again
            # from here.
            signal.signal(number, handler or signal.SIG_DFL)


def on_rank_0(strategy: Strategy, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run ``work`` on rank 0; every rank gets its result (JSON values), or raises its error."""
    outcome: dict[str, Any] = {}
    failure: SegtrainError | None = None
    if strategy.rank == 0:
        try:
            with strategy.at_work():
                outcome = {"result": work()}
        except SegtrainError as error:
            failure, outcome = error, {"error": _sent(error)}
    outcome = strategy.broadcast_object(outcome)
    if "error" in outcome:
        raise failure or _received(outcome["error"])
    return dict(outcome["result"])


def on_every_rank(strategy: Strategy, work: Callable[[], T]) -> T:
    """Run ``work`` on every rank, and return its result. A collective.

    If it fails anywhere, all ranks raise the error of the first rank where it did, with the names
    of these ranks.
    """
    failure: SegtrainError | None = None
    try:
        result = work()
    except SegtrainError as error:
        failure = error
    rows = table(
        strategy, torch.tensor([failure is not None], dtype=torch.int64, device=strategy.device)
    )
    failed = [rank for rank, row in enumerate(rows.tolist()) if row[0]]
    if not failed:
        return result
    if failure is not None and strategy.world_size == 1:
        raise failure
    where = f"{names_of(strategy, failed)}: " if len(failed) < strategy.world_size else ""
    raise _received(broadcast_json(strategy, failed[0], failure and _sent(failure, where)))


def _sent(error: SegtrainError, where: str = "") -> dict[str, Any]:
    """An error as JSON values, for the other ranks. ``where``: words before its text."""
    values = json.loads(json.dumps(error.values, default=str))
    return {
        "text": f"{where}{error}",
        "code": error.code,
        "exit_code": error.exit_code,
        "values": values,
    }


def _received(sent: Mapping[str, Any]) -> SegtrainError:
    error = SegtrainError(sent["text"], code=sent["code"], **sent["values"])
    error.exit_code = sent["exit_code"]
    return error


@contextlib.contextmanager
def averaged_weights(model: nn.Module, ema: Ema | None) -> Iterator[None]:
    """Replace the weights by their moving average, if there is one, while the context lasts."""
    if ema is None:
        yield
        return
    weights = taken(model.state_dict(), set(), lambda value: value)
    load_state(model, {**weights, **ema.shadow})
    try:
        yield
    finally:
        load_state(model, weights)


def nonfinite_weights(parameters: list[nn.Parameter], strategy: Strategy) -> Tensor:
    """Whether a weight on any rank is not finite: float64 (1,) on the device, above 0 if so. A
    collective.
    """
    local = [getattr(p.detach(), "to_local", p.detach)() for p in parameters]
    bad = (~torch.isfinite(torch.stack(list(map(torch.linalg.vector_norm, local))))).any()
    return strategy.reduce(bad.double().reshape(1))


def not_finite(step: int, what: str, config: Config, updated: bool = True) -> ConfigError:
    """The error for a loss or weight that is not finite. ``updated``: whether the optimizer has
    changed weights.
    """
    if updated:
        why = (
            "training has diverged, and this state was not saved. Lower optim.lr (now "
            f"{config.optim.lr:g}), add optim.warmup or optim.clip=1"
        )
    else:
        why = (
            "no weight has been changed yet, so the learning rate is not the cause. Look at "
            "the model's output for "
            "one batch, at the loss, and at the weights that the model began with"
        )
    if config.train.precision == "fp16":
        why += ", or set train.precision=bf16 instead of fp16"
    return ConfigError(
        f"{what} is not finite at step {step}: {why}",
        code="not-finite",
        step=step,
        found=what,
        updated=updated,
    )
