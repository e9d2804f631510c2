"""The small state of a run, its stopwatch, its signals, and what must be undone after an evaluation."""

from __future__ import annotations

import contextlib
import json
import math
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from segtrain.config import Config
from segtrain.errors import CheckpointError, ConfigError, SegtrainError
from segtrain.optim import Ema
from segtrain.parallel.strategy import Strategy


@dataclass
class State:
    """What a checkpoint holds beside the weights. Order and randomness need none: they are functions of the step."""

    step: int = 0
    best_miou: float = -1.0
    best_step: int = 0  # of best_miou; 0: nothing was scored
    cpu_s: float = 0.0  # process time of all ranks while training, evaluation left out
    wall_s: float = 0.0  # likewise
    scores: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, saved: Mapping[str, Any], source: str) -> State:
        """What a checkpoint of the run folder ``source`` holds. Raises CheckpointError for what no State has."""
        kinds: dict[str, tuple[type, ...]] = {
            part.name: (dict,) if part.name == "scores" else (int,) if "step" in part.name else (int, float)
            for part in fields(cls)
        }
        odd = [f"the unknown entry {key!r}" for key in saved if key not in kinds]
        odd += [
            f"{key}={value!r}"
            for key, value in saved.items()
            if key in kinds and (not isinstance(value, kinds[key]) or isinstance(value, bool))
        ]
        if not odd:
            state = cls(**saved)
            if state.step >= 0 and 0 <= state.best_step <= state.step and math.isfinite(state.best_miou):
                return state
            odd = [f"step={state.step}, best_step={state.best_step}, best_miou={state.best_miou}"]
        raise CheckpointError(
            f"the newest checkpoint in {source} is damaged or from another version (its state has {odd[0]}): move it "
            "out of checkpoints/ to resume from the previous one, or choose another out=FOLDER",
            code="checkpoint-damaged", run=source, found=odd[0],
        )  # fmt: skip


def process_cpu_s() -> float:
    """User and system time of this process, all threads, from its start (imports included), in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Stopwatch:
    """Wall and process time of the training alone: paused during evaluation. CPU seconds are summed over ranks."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.wall, self.cpu = time.perf_counter(), 0.0  # all CPU since the process began counts
        self.workers_cpu_s: Callable[[], float] = lambda: 0.0  # of worker processes

    def lap(self, state: State) -> float:
        """Add the time since the last lap to ``state``; returns the wall seconds. A collective."""
        wall, cpu = time.perf_counter(), process_cpu_s() + self.workers_cpu_s()
        seconds, own = wall - self.wall, cpu - self.cpu
        self.wall, self.cpu = wall, cpu
        everywhere = torch.tensor([own], dtype=torch.float64, device=self.strategy.device)
        state.wall_s += seconds
        state.cpu_s += float(self.strategy.reduce(everywhere))
        return seconds

    @contextlib.contextmanager
    def paused(self, state: State) -> Iterator[None]:
        self.lap(state)
        yield
        self.wall, self.cpu = time.perf_counter(), process_cpu_s() + self.workers_cpu_s()


@contextlib.contextmanager
def stop_signals(earlier: list[int] | None = None) -> Iterator[list[int]]:
    """SIGTERM, SIGINT and SIGUSR1 append to the yielded list (or ``earlier``); a second SIGINT interrupts at once."""
    received: list[int] = [] if earlier is None else earlier
    if threading.current_thread() is not threading.main_thread():
        yield received  # only the main thread may install handlers: a caller that uses threads stops by itself
        return

    def remember(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and signal.SIGINT in received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def on_rank_0(strategy: Strategy, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run ``work`` on rank 0; every rank gets its result (JSON values), or raises its error."""
    outcome: dict[str, Any] = {}
    failure: SegtrainError | None = None
    if strategy.rank == 0:
        try:
            with strategy.at_work():
                outcome = {"result": work()}
        except SegtrainError as error:
            failure = error
            values = json.loads(json.dumps(error.values, default=str))
            outcome = {"error": str(error), "code": error.code, "values": values}
    outcome = strategy.broadcast_object(outcome)
    if "error" in outcome:
        raise failure or SegtrainError(outcome["error"], code=outcome["code"], **outcome["values"])
    return dict(outcome["result"])


@contextlib.contextmanager
def averaged_weights(model: nn.Module, ema: Ema | None) -> Iterator[None]:
    """The moving average in the place of the weights, for as long as the context lasts."""
    if ema is None:
        yield
        return
    current = model.state_dict()
    kept = {name: value.detach().clone() for name, value in current.items()}
    copy_into(current, ema.shadow)
    try:
        yield
    finally:
        copy_into(current, kept)


@torch.no_grad()
def copy_into(target: dict[str, Tensor], source: dict[str, Tensor]) -> None:
    for name, value in target.items():
        value.copy_(source[name])


def all_finite(parameters: list[nn.Parameter], strategy: Strategy) -> bool:
    """The same answer on every rank; one host sync. Sharded parameters answer for their own shard."""
    local = [getattr(p.detach(), "to_local", p.detach)() for p in parameters]
    bad = (~torch.isfinite(torch.stack(list(map(torch.linalg.vector_norm, local))))).any()
    return not bool(strategy.reduce(bad.double().reshape(1)))


def not_finite(step: int, what: str, config: Config, updated: bool = True) -> ConfigError:
    """The error for a loss or weight that is not finite. ``updated``: whether the optimizer has changed weights."""
    if updated:
        why = f"training has diverged, and this state was not saved. Lower optim.lr (now {config.optim.lr:g}), "
        why += "add optim.warmup or optim.clip=1"
    else:
        why = "no weight has been changed yet, so the learning rate is not the cause. Look at the model's output for "
        why += "one batch, at the loss, and at the weights that the model began with"
    if config.train.precision == "fp16":
        why += ", or set train.precision=bf16 in the place of fp16"
    return ConfigError(
        f"{what} is not finite at step {step}: {why}", code="not-finite", step=step, found=what, updated=updated
    )
