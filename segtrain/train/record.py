"""How does a rank get a clock that knows its device, and a writer of its spans?"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

import torch

from segtrain.cores import cores
from segtrain.data.loader import TrainLoader
from segtrain.diagnose.live import Starving
from segtrain.observe.clock import Clock
from segtrain.observe.device_clock import DeviceClock
from segtrain.observe.spans import Begin, Spans, Work, file_of
from segtrain.parallel.strategy import Strategy
from segtrain.train.crowd import crowding
from segtrain.train.session import Session
from segtrain.train.stacking import Stacker
from segtrain.train.tracing import Tracer

SENT = {"none": 1.0, "fp16": 0.5, "bf16": 0.5}  # of the bytes of a float32 gradient; powersgd: next to nothing


def clock_of(device: torch.device) -> Clock:
    if device.type != "cuda":
        return Clock()
    return DeviceClock(lambda: torch.cuda.Event(enable_timing=True))


@contextlib.contextmanager
def recording(session: Session, clock: Clock, loader: TrainLoader) -> Iterator[Callable[[int], None]]:
    """What is to be told of each step, with the number of steps done; it writes this rank's spans, and traces and stacks when asked
    to.

    With log.spans=false it does nothing: whoever asks finds the ranks by their spans.
    """
    config, strategy = session.config, session.strategy
    if not config.log.spans:
        yield lambda done: clock.forget()
        return
    cluster = strategy.cluster
    images = [part.stop - part.start for part in loader.parts]
    begin = Begin(
        rank=strategy.rank,
        host=socket.gethostname(),
        local_rank=cluster.local_rank,
        world_size=strategy.world_size,
        local_world_size=cluster.local_world_size,
        device=str(strategy.device),
        cores=cores(),
        batch_size=config.train.batch_size,
        accumulate=config.train.accumulate,
        bytes_gradient=_bytes_gradient(session.parameters, strategy),
        crowded=crowding(session, max(images)),
    )
    spans = Spans(
        file_of(config.run_dir, strategy.rank),
        begin,
        clock,
        lambda: _work(session, loader),
        first=session.state.step,
        images=sum(images),
        threads=torch.get_num_threads(),
        shared=lambda: _shared(session.model),
    )
    starving = Starving(config.model_dump(mode="json"), lambda cause, text: _slow(session, cause, text), config.run_dir)
    tracer = Tracer(config.run_dir, strategy.rank, clock, session.pool.tally)
    stacker = Stacker(config.run_dir, strategy.rank, session.pool)

    def step(done: int) -> None:
        if spans.step() and strategy.rank == 0:
            starving.look(spans.recent)
        tracer.step(done)
        stacker.step()

    try:
        yield step
    except BaseException:
        with contextlib.suppress(RuntimeError):  # a device that has failed answers every question so: not our news
            spans.close()
        raise
    tracer.close()
    stacker.close()
    spans.close()


def _slow(session: Session, cause: str, text: str) -> None:
    session.screen.say(f"slow      {text}")
    session.journal.write("slow", step=session.state.step, cause=cause, text=text)


def _work(session: Session, loader: TrainLoader) -> Work:
    pool, (asked, ready) = session.pool, loader.queue()
    return Work(
        pool.count,
        pool.kind,
        pool.tally.samples,
        *pool.tally.cost,
        asked=asked,
        ready=ready,
        process_cpu_s=pool.cpu_s(),
    )


def _shared(model: torch.nn.Module) -> dict[str, float] | None:
    """What DDP has measured of its own last timed step; None for other strategies, and before the first one."""
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return None
    try:
        timed = model._get_ddp_logging_data()  # type: ignore[operator]
        seconds, hidden = (timed[f"backward_{name}_time"] / 1e9 for name in ("comm", "compute_comm_overlap"))
    except (AttributeError, KeyError, RuntimeError):  # torch's own affair, which may change
        return None
    return {"seconds": round(seconds, 6), "hidden": round(min(seconds, hidden), 6)} if seconds > 0 else None


def _bytes_gradient(parameters: list[torch.nn.Parameter], strategy: Strategy) -> int:
    if strategy.world_size == 1:
        return 0
    whole = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    return int(whole * SENT.get(strategy.settings.compress, 0.0))
