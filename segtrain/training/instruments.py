"""One context for what runs beside the training loop: workers, spans, traces, stacks, and the
watchdog.
"""

from __future__ import annotations

import contextlib
import gc
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch

from segtrain.base.compat import ddp_times
from segtrain.base.cores import cores
from segtrain.bucket.tally import OF_PROCESS
from segtrain.config import Size
from segtrain.data.train_loader import TrainLoader
from segtrain.errors import ConfigError
from segtrain.insight.diagnose.live import Starving
from segtrain.losses.criterion import OwnLoss
from segtrain.observe.clock import Clock
from segtrain.observe.device_clock import DeviceClock
from segtrain.observe.hang import RankNotice, RankPosition, Watchdog
from segtrain.observe.spans import Begin, Spans, WorkerTotals, file_of
from segtrain.parallel.board import open_board
from segtrain.parallel.strategy import Strategy
from segtrain.training.gradient_times import UNSHARDED, GradientTimes
from segtrain.training.graphs import GAIN, StepGraphs, unfit
from segtrain.training.on_demand import Stacker, Tracer
from segtrain.training.session import Session
from segtrain.training.start.oversubscription import oversubscription_slowdown
from segtrain.training.start.warmup import compile_ahead, settle_buckets

# The share of a float32 gradient's bytes that parallel.compress sends; powersgd sends so little
# that it counts as 0.
SENT = {"none": 1.0, "fp16": 0.5, "bf16": 0.5}


def clock_of(device: torch.device) -> Clock:
    if device.type != "cuda":
        return Clock()
    return DeviceClock(lambda: torch.cuda.Event(enable_timing=True))


@contextlib.contextmanager
def instruments(
    session: Session, loader: TrainLoader, clock: Clock
) -> Iterator[Callable[[int], None]]:
    """Run everything beside the loop. Yields a function to call after each step, with the number of
    steps done.
    """
    with (
        session.pool,
        loader,
        _recording(session, clock, loader) as on_step_end,
        _watching(session, clock),
    ):
        yield on_step_end


def compile_first(session: Session, loader: TrainLoader) -> None:
    """With train.compile, compile the network for all image sizes of the steps to come."""
    config = session.config
    if not config.train.compile:
        return
    images = {part.stop - part.start for part in loader.parts}
    twice = config.train.accumulate > 1 and session.learner.criterion.needs_logits
    compile_ahead(
        session.learner, session.strategy, images, _sizes(session), _used_heads(session), twice
    )


def graphs_first(session: Session, loader: TrainLoader) -> StepGraphs | None:
    """With train.cuda_graph, the CUDA graphs for all image sizes of the steps to come; with auto
    only if they can be captured and are faster.

    Steps have the same bits either way, so a run that resumes may choose the other way.
    """
    config, learner, strategy = session.config, session.learner, session.strategy
    wanted = config.train.cuda_graph
    if not wanted:
        return None
    own = any(isinstance(term, OwnLoss) for term in learner.criterion.terms)
    why = unfit(config, strategy, own)
    graphs = None
    if not why:
        try:
            graphs = StepGraphs(learner, strategy, config.loss.aux_weight)
            for size in _sizes(session):
                images = max(part.stop - part.start for part in loader.parts)
                graphs.capture(images, size, loader.colors)
        except (ConfigError, torch.cuda.OutOfMemoryError) as error:
            if wanted is True or getattr(error, "code", "") not in ("", "cuda-graph-impossible"):
                raise
            why, graphs = str(error).splitlines()[0], None
    if graphs is not None and wanted == "auto":
        plain, graphed = graphs.milliseconds(loader.colors)
        why = f"forward and backward take {graphed:.3g} ms as CUDA graphs, {plain:.3g} ms without"
        graphs = graphs if graphed < GAIN * plain else None
    if wanted == "auto":
        state = "off" if graphs is None else "on"
        session.output.screen.say(f"  train.cuda_graph=auto: {state}, because {why}")
        if graphs is None and strategy.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()  # of the memory of the graphs
    return graphs


def _sizes(session: Session) -> list[Size]:
    """The sizes of the crops of the steps to come, without repetitions."""
    return list(
        dict.fromkeys(crop for until, crop, _ in session.plan.crops if until > session.state.step)
    )


def _used_heads(session: Session) -> int | None:
    return None if session.config.loss.aux_weight else 1


def first_batch(session: Session, loader: TrainLoader) -> None:
    """Wait until the first batch is ready. In a resumed run, DDP arranges its buckets meanwhile. A
    collective.
    """
    config = session.config
    plan = session.plan
    strategy = session.strategy
    step = session.state.step
    if step:
        images = config.train.batch_size // (strategy.world_size * config.train.accumulate)
        settle_buckets(
            session.learner, strategy, images, plan.crop_and_scale(step)[0], _used_heads(session)
        )
    loader.first()
    workers = plan.worker_count
    if config.data.helpers != "ray-data":  # whose workers only copy
        session.output.screen.say(f"  {session.pool.describe(workers.least, workers.most)}")


@contextlib.contextmanager
def _recording(
    session: Session, clock: Clock, loader: TrainLoader
) -> Iterator[Callable[[int], None]]:
    """Write this rank's spans, and traces and stacks on demand.

    With log.spans=false it writes none of them: `segtrain profile` requests traces and stacks, but
    it finds the ranks only by their spans.
    """
    config = session.config
    strategy = session.strategy
    learner = session.learner
    if not config.log.spans:
        yield lambda done: clock.sum_up()
        return
    cluster = strategy.cluster
    images = [part.stop - part.start for part in loader.parts]
    size = session.plan.crop_and_scale(session.state.step)[0]
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
        bytes_gradient=_bytes_gradient(learner.parameters, strategy),
        crowded=oversubscription_slowdown(
            learner, strategy, config, size, max(images), session.output.screen.say
        ),
        machine=cluster.machine,
        gpu=torch.cuda.get_device_name(strategy.device) if strategy.device.type == "cuda" else "",
    )
    spans = Spans(
        file_of(config.run_dir, strategy.rank),
        begin,
        clock,
        lambda: _work(session, loader),
        first=session.state.step,
        images=sum(images),
        threads=torch.get_num_threads(),
        shared=lambda: _shared(learner.model),
        bucket=_bucket(loader),
    )

    def slow(cause: str, text: str) -> None:
        session.output.screen.say(f"slow      {text}")
        session.output.journal.write("slow", step=session.state.step, cause=cause, text=text)

    starving = Starving(config.model_dump(mode="json"), slow, config.run_dir)
    gradients = _gradients(session)
    tracer = Tracer(config.run_dir, strategy.rank, clock, session.pool.tally)
    stacker = Stacker(config.run_dir, strategy.rank, session.pool)

    def step(done: int) -> None:
        gradients(done)
        if spans.step() and strategy.rank == 0:
            starving.check(spans.recent)
        tracer.step(done)
        stacker.step()

    try:
        yield step
    except BaseException:
        # A device that has failed raises at every call: the first error is the one to report.
        with contextlib.suppress(RuntimeError):
            spans.close()
        raise
    tracer.close()
    stacker.close()
    spans.close()


def _gradients(session: Session) -> Callable[[int], None]:
    """What to call after each step. Rank 0 of a new run measures its second step for the event
    ``gradients``.
    """
    strategy, learner = session.strategy, session.learner
    if (
        strategy.rank
        or strategy.name not in UNSHARDED
        or session.config.train.compile
        or session.state.step
    ):
        return lambda done: None
    ready: GradientTimes | None = None

    def step(done: int) -> None:
        nonlocal ready
        if done == 1:
            ready = GradientTimes(learner.plain, strategy.device)
        elif ready is not None:
            ready.remove()
            rows = ready.rows()
            if rows:
                session.output.journal.write("gradients", **rows)
            ready = ready if rows is None else None

    return step


def _work(session: Session, loader: TrainLoader) -> WorkerTotals:
    pool, tally, (requested, ready) = session.pool, session.pool.tally, loader.queue()
    made = pool.made()
    return WorkerTotals(
        pool.count,
        pool.kind,
        tally.samples,
        *tally.cost,
        requested=requested,
        ready=ready,
        process_cpu_s=pool.cpu_s(),
        helper_samples=made.helped if made else {},
        receive_s=made.received.seconds if made else 0.0,
    )


def _bucket(loader: TrainLoader) -> Callable[[], dict[str, Any] | None]:
    """A function that returns the bucket requests since its last call, and the state of the
    read-ahead.

    It returns None if the process has made no request so far.
    """
    counter = OF_PROCESS.counter()

    def requests_since() -> dict[str, Any] | None:
        more = counter().to_dict() | {"ahead": loader.reading()}
        return more if OF_PROCESS.sums.requests else None

    return requests_since


def _shared(model: torch.nn.Module) -> dict[str, float] | None:
    """Seconds of communication in DDP's last timed step, and those hidden by computation. None if
    DDP timed none.
    """
    seconds, hidden = ddp_times(model) or (0.0, 0.0)
    return (
        {"seconds": round(seconds, 6), "hidden": round(min(seconds, hidden), 6)}
        if seconds > 0
        else None
    )


def _bytes_gradient(parameters: list[torch.nn.Parameter], strategy: Strategy) -> int:
    share = SENT.get(strategy.settings.compress, 0.0)
    return int(
        share * sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    )


@contextlib.contextmanager
def _watching(session: Session, clock: Clock) -> Iterator[None]:
    """Run a watchdog that notices hangs of the ranks; none with log.hang_s=0."""
    config = session.config
    strategy = session.strategy
    state = session.state
    output = session.output
    limit = config.parallel.timeout_s
    hang_s = limit / 2 if config.log.hang_s == "auto" else float(config.log.hang_s)
    if not hang_s:
        yield
        return
    begun = state.step

    def position() -> RankPosition:
        progress = clock.turns + strategy.begun + strategy.ended
        return RankPosition(state.step + 1, clock.pending[0], progress, strategy.summing)

    def report(notices: list[RankNotice], sentence: str) -> None:
        output.screen.say(sentence)
        output.journal.write("hang", text=sentence, ranks=[asdict(notice) for notice in notices])

    watchdog = Watchdog(
        position,
        lambda: list(clock.recent),
        config.run_dir,
        rank=strategy.rank,
        world_size=strategy.world_size,
        hang_s=hang_s,
        limit_s=limit,
        board=open_board(strategy.cluster),
        report=report,
        patient=lambda: config.train.compile and state.step == begun,  # the first step compiles
    )
    try:
        yield
    finally:
        watchdog.close()
