"""The training loop, top to bottom."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from segtrain.data.device_feed import DeviceFeed
from segtrain.data.train_loader import Batch, TrainLoader, colors_on_device
from segtrain.data.workers.autoscaler import Autoscaler
from segtrain.observe.clock import Clock
from segtrain.optim import clip_, encoder_multiplier, multiplier, set_lr
from segtrain.parallel.collective import table
from segtrain.parallel.strategy import Strategy
from segtrain.training.instruments import (
    clock_of,
    compile_first,
    first_batch,
    graphs_first,
    instruments,
)
from segtrain.training.output import finish, stop
from segtrain.training.sentinel import Sentinel
from segtrain.training.session import Session
from segtrain.training.state import not_finite, on_rank_0
from segtrain.training.step import Votes, gradients


def run(session: Session, signals: list[int]) -> int:
    """Train from the session's step to the last one, or until a signal or a limit. Returns the exit
    code.
    """
    config = session.config
    plan = session.plan
    state = session.state
    strategy = session.strategy
    learner = session.learner
    model = learner.model
    optimizer = learner.optimizer
    scaler = learner.scaler
    ema = learner.ema
    parameters = learner.parameters
    begun = state.step
    logged = state.step
    clock = clock_of(strategy.device)
    votes = Votes(strategy)
    loader = _train_loader(session)
    sentinel = Sentinel(config, plan, strategy, learner, session.train, state.step)
    # With a limit, the time that a checkpoint takes must be known before the last one.
    limited = config.train.deadline or config.train.budget
    first_save = begun + config.log.every if limited else None
    model.train()
    with instruments(session, loader, clock) as on_step_end:
        with clock("forward"):
            compile_first(session, loader)
            graphs = graphs_first(session, loader)
        with clock("wait"):
            batches = DeviceFeed(loader, strategy.device)
            first_batch(session, loader)
        for step in range(state.step, plan.steps):
            # Every rank reads the sum of the votes of the same earlier step, so all ranks stop at
            # the same step.
            if votes.stop():
                return stop(session, signals, votes.signaled)

            with clock("wait"):
                loaded, placed = next(batches)
            with clock("device"):
                micros = [learner.micro(batch) for batch in placed] if graphs is None else []
            schedule = (config.optim, step, plan.schedule_ends(step), plan.warmup)
            lr = config.optim.lr * multiplier(*schedule)
            set_lr(
                optimizer, lr, config.optim.lr * encoder_multiplier(*schedule, plan.encoder_start)
            )
            for parameter in parameters:
                parameter.grad = None
            over = session.guard is not None and session.guard.over(step, votes.delay)
            own = votes.pack(len(signals), over, _digest(loaded) if config.log.digest else 0)
            # the outputs of the last step may be overwritten now
            if config.train.compile == "reduce-overhead":
                torch.compiler.cudagraph_mark_step_begin()
            # Forward, loss, and backward of each micro-batch, with one collective for the
            # denominators of the loss.
            if graphs is None:
                share, summed = gradients(
                    model,
                    micros,
                    learner.criterion,
                    strategy,
                    learner.precision,
                    seed=config.train.seed + step,
                    votes=own,
                    aux_weight=config.loss.aux_weight,
                    loss_scale=scaler.factor,
                    clock=clock,
                )
            else:
                share, summed = graphs.gradients(
                    placed[0], seed=config.train.seed + step, votes=own, clock=clock
                )
            votes.copy_to_host(summed)
            with clock("update"):
                scaler.unscale_(parameters)
                norm = (
                    clip_(parameters, config.optim.clip)
                    if config.optim.clip or scaler.enabled
                    else None
                )
                session.saver.before_update()
                skipped = scaler.step(optimizer, norm)
                if ema is not None:
                    ema.update(step, skipped)
            with clock("device"):
                batches.ahead()
            state.step = step + 1

            last = state.step == plan.steps
            # the first step of a process apart
            if last or step == begun or state.step % config.log.every == 0:
                with clock("log"):
                    _log(session, clock, share, summed, lr, state.step - logged)
                logged = state.step
            sentinel.step(state.step, loaded, clock)

            _score_and_save(session, clock, last, first_save)
            on_step_end(state.step)
            if session.patience_ended:
                break
    return finish(session)


def _score_and_save(session: Session, clock: Clock, last: bool, first_save: int | None) -> None:
    """Evaluate, and write a checkpoint, when they are due.

    Both are due at their intervals and after the last step. A checkpoint is also due at a new best
    score, and after the step ``first_save``.
    """
    step = session.state.step
    plan = session.plan
    best = False
    if last or step % plan.eval_every == 0:
        with clock("eval"):
            best = session.score()
        session.learner.model.train()
    last = last or session.patience_ended
    if last or best or step % plan.save_every == 0 or step == first_save:
        with clock("checkpoint"):
            session.save("end" if last else "best" if best else "periodic")


def _train_loader(session: Session) -> TrainLoader:
    """This rank's batches from the session's step on."""
    config = session.config
    plan = session.plan
    strategy = session.strategy
    workers = session.plan.worker_count
    make: Callable[..., TrainLoader] = TrainLoader
    if session.helpers is not None:
        make = partial(
            session.helpers.loader, session.output.screen.say, partial(on_rank_0, strategy)
        )
    return make(
        session.train,
        config.data,
        seed=config.train.seed,
        batch_size=config.train.batch_size,
        accumulate=config.train.accumulate,
        rank=strategy.rank,
        world=strategy.world_size,
        first_step=session.state.step,
        last_step=plan.steps,
        crop_and_scale=plan.crop_and_scale,
        pin_memory=strategy.device.type == "cuda",
        colors=colors_on_device(config.data, strategy.device.type),
        prefetch=config.data.prefetch,
        pool=session.pool,
        autoscaler=Autoscaler(workers.start, workers.most, workers.least),
    )


def _digest(batches: list[Batch]) -> int:
    """Checksum of the ids, epochs and pixels of these samples.

    It is a sum over samples, so the total of all ranks does not depend on which rank has which
    sample.
    """
    total = 0
    for batch in batches:
        for *sample, image, mask in zip(batch.indices, batch.epochs, batch.images, batch.masks):
            crc = zlib.crc32(image.numpy().data, zlib.crc32(np.array(sample).tobytes()))
            total += zlib.crc32(mask.numpy().data, crc)
    return total


def _late(strategy: Strategy, spans: dict[str, float]) -> dict[str, float]:
    """This rank's "wait" and "sync", if its wait for a rank that waits longer for samples counts as
    a wait for data.
    """
    own, sync = spans.get("wait", 0.0), spans.get("sync", 0.0)
    waits = table(strategy, torch.full((1,), int(1e9 * own), device=strategy.device))
    late = min(sync, max(0.0, int(waits.max()) / 1e9 - own))
    return {"wait": own + late, "sync": sync - late} if late else {}


def _log(
    session: Session, clock: Clock, share: Tensor, votes: Tensor, lr: float, steps: int
) -> None:
    """Log the last ``steps`` steps. The loss is read only here, because reading waits for the
    device (docs/gpu.md).
    """
    config = session.config
    plan = session.plan
    state = session.state
    output = session.output
    loss = float(session.strategy.reduce(share))
    if not math.isfinite(loss):
        raise not_finite(state.step, f"the loss ({loss})", config, updated=state.step > 1)
    session.saver.settle()
    session.watch.lap(state)
    session.saver.refuse_lost_lock()
    # Evaluation and checkpoints are not phases of a step.
    spans = {
        phase: seconds
        for phase, seconds in clock.take().items()
        if phase not in ("eval", "checkpoint")
    }
    whole = sum(spans.values()) or 1e-9
    if session.strategy.world_size > 1:
        spans |= _late(session.strategy, spans)
    rate = steps * plan.batch_size / whole
    wait = spans.get("wait", 0.0) / whole
    epoch = plan.epoch(state.step)
    output.screen.step(state.step, epoch, loss, lr, rate, wait)
    if session.guard:
        session.guard.logged(state.step)
    digest = {"digest": int(votes[2])} if config.log.digest else {}
    output.journal.write(
        "step",
        step=state.step,
        epoch=epoch,
        loss=loss,
        lr=lr,
        images_per_s=rate,
        spans=spans,
        cpu_s=state.cpu_s,
        **digest,
    )
    rates = {
        "train/images_per_s": rate,
        "train/wait": wait,
        "train/epoch_s": whole / plan.epoch(steps),
    }
    output.trackers.scalars({"train/loss": loss, "train/lr": lr, **rates}, state.step)
