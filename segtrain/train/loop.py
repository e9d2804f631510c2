"""The training loop, top to bottom."""

from __future__ import annotations

import math
import signal
import zlib
from pathlib import Path
from shlex import quote

import numpy as np
import torch
from torch import Tensor

from segtrain.config import Config
from segtrain.data.device_feed import DeviceFeed
from segtrain.data.loader import Batch, TrainLoader, colors_on_device, normalize
from segtrain.data.workers.autoscaler import Autoscaler
from segtrain.errors import EXIT_RESUMABLE, SegtrainError
from segtrain.observe.clock import Clock
from segtrain.observe.profile import sampling
from segtrain.optim import clip_, multiplier, set_lr
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.startup import compiler_kept_out
from segtrain.parallel.strategy import start
from segtrain.train.exact import settle_buckets
from segtrain.train.lock import RunLock
from segtrain.train.record import clock_of, recording
from segtrain.train.sentinel import Sentinel
from segtrain.train.session import Session, open_session
from segtrain.train.state import not_finite, stop_signals
from segtrain.train.step import Micro, gradients
from segtrain.train.votes import Votes
from segtrain.train.watch import watching


def train(config: Config, cluster: Cluster, received: list[int] | None = None) -> int:
    """Train as one rank of ``cluster``. Returns the exit code: 0, or EXIT_RESUMABLE after a signal that all ranks obeyed.

    ``received``: of a caller on every rank that has listened for signals since its start.
    """
    with (
        stop_signals(received) as signals,
        start(config.parallel, cluster, config.train.device) as strategy,
        RunLock(config.run_dir) as lock,
    ):
        try:
            if received is not None and strategy.reduce(torch.tensor([len(signals)], device=strategy.device)).item():
                if strategy.rank == 0:
                    print(
                        "stopped by a signal before the first step: the same command begins, or goes on, as it would have now"
                    )
                return EXIT_RESUMABLE
            session = open_session(config, strategy, lock)
            if session.state.step >= session.plan.steps:
                session.screen.say(f"this run is finished: score it with `segtrain eval {quote(str(config.run_dir))}`")
                _end(session, "done")  # once more: a kill may have come between the last checkpoint and the word of it
                session.screen.close()
                session.journal.close()
                return 0
            try:
                with sampling(config.run_dir, config.log.profile_ms, cluster):
                    return run(session, signals)
            except BaseException as error:
                state = session.state
                session.journal.write(
                    "run_end",
                    status="failed",
                    error=str(error),
                    step=state.step,
                    seconds=state.wall_s,
                    cpu_s=state.cpu_s,
                )
                session.trackers.close("failed")
                raise
            finally:
                if session.writer:
                    session.writer.settle()  # the lock is let go next
                session.screen.close()
                session.journal.close()
        except (RuntimeError, ValueError, MemoryError) as error:
            explained = _explained(error, config, cluster, str(strategy.device))
            if explained is None:
                raise
            raise explained from error


def _explained(error: Exception, config: Config, cluster: Cluster, device: str) -> SegtrainError | None:
    """torch's two complaints that a setting cures, in words; None for any other."""
    images = config.train.batch_size // config.train.accumulate // cluster.world_size
    reason, size = str(error).splitlines()[0] if str(error) else "", "x".join(map(str, config.data.crop))
    gone = ("out of memory", "can't allocate memory", "not enough memory")
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in gone):
        return SegtrainError(
            f"out of memory on {device} with {images} images of {size} at once: raise train.accumulate, or lower data.crop "
            f"or train.batch_size; in an evaluation set eval.tile, or lower eval.size, eval.scales or eval.batch_size ({reason})"
        )
    if "more than 1 value per channel" in reason:
        return SegtrainError(
            f"batch norm of model.arch={config.model.arch} gets a single value a channel from {images} image of {size}: raise "
            "train.batch_size or data.crop, lower train.accumulate or the number of ranks, or set parallel.sync_bn=true"
        )
    return None


def run(session: Session, signals: list[int]) -> int:
    """From the session's step to the end, or to a signal."""
    config, plan, state, strategy = session.config, session.plan, session.state, session.strategy
    model, optimizer, scaler = session.model, session.optimizer, session.scaler
    ema, screen = session.ema, session.screen
    parameters, device = session.parameters, strategy.device
    loader = TrainLoader(
        session.dataset,
        config.data,
        seed=config.train.seed,
        batch_size=config.train.batch_size,
        accumulate=config.train.accumulate,
        rank=strategy.rank,
        world=strategy.world_size,
        first_step=state.step,
        last_step=plan.steps,
        size_at=plan.size_at,
        pin_memory=device.type == "cuda",
        colors=colors_on_device(config.data, device.type),
        prefetch=config.data.prefetch,
        pool=session.pool,
        autoscaler=Autoscaler(plan.worker_count.start, plan.worker_count.most, plan.worker_count.least),
    )
    clock, sentinel, votes = clock_of(device), Sentinel(session), Votes(strategy)
    logged = state.step
    model.train()
    screen.started(state.step)
    with session.pool, loader, recording(session, clock, loader) as told, watching(session, clock):
        with clock("wait"):
            batches = DeviceFeed(loader, device)
            settle_buckets(session)
            loader.first()
        screen.say(f"  {session.pool.describe(plan.worker_count.least, plan.worker_count.most)}")
        for step in range(state.step, plan.steps):
            # Every rank reads the same sum of the same earlier step, so all stop at the same step.
            if votes.stop():
                return _stop(session, signals)

            with clock("wait"):
                loaded, placed = next(batches)
            with clock("device"):
                micros = [_ready(batch, session) for batch in placed]
            lr = config.optim.lr * multiplier(config.optim, step, plan.steps, plan.warmup)
            set_lr(optimizer, lr)
            for parameter in parameters:
                parameter.grad = None
            own = votes.own(len(signals), _digest(loaded, config.log.digest))
            with compiler_kept_out(not config.train.compile):
                share, summed = gradients(
                    model,
                    micros,
                    session.criterion,
                    strategy,
                    session.precision,
                    seed=config.train.seed + step,
                    votes=own,
                    aux_weight=config.loss.aux_weight,
                    loss_scale=scaler.scale,
                    clock=clock,
                )
            votes.send_home(summed)
            with clock("update"):
                scaler.unscale_(parameters)
                norm = clip_(parameters, config.optim.clip) if config.optim.clip or scaler.enabled else None
                finite = not scaler.enabled or math.isfinite(float(norm))  # type: ignore[arg-type]  # fp16 alone waits here
                if finite:
                    with compiler_kept_out(not config.train.compile):
                        optimizer.step()
                    if ema is not None:
                        ema.update(session.plain, step)
                scaler.update(finite)
            with clock("device"):
                batches.ahead()
            state.step = step + 1

            last = state.step == plan.steps
            if last or step == 0 or state.step % config.log.every == 0:
                with clock("log"):
                    _log(session, clock, share, summed, lr, state.step - logged)
                logged = state.step
            sentinel.step(loaded, clock)

            miou = -1.0
            if last or state.step % plan.eval_every == 0:
                with clock("eval"):
                    miou = session.score()
                model.train()
            better = miou > state.best_miou
            if better:
                state.best_miou, state.best_step = miou, state.step
            if last or better or state.step % plan.save_every == 0:
                with clock("checkpoint"):
                    session.save("end" if last else "best" if better else "periodic")
            told(state.step)
    return _finish(session)


def _ready(batch: Batch, session: Session) -> Micro:
    """uint8 has crossed to the device; floats are made there."""
    images = normalize(batch.images, channels_last=session.channels_last, colors=batch.colors, covered=batch.covered)
    return Micro(images, batch.masks)


def _digest(batches: list[Batch], wanted: bool) -> int:
    """Checksum of ids, epochs and pixels: a sum over samples, so that the sum over ranks does not know how they were dealt."""
    if not wanted:
        return 0
    total = 0
    for batch in batches:
        for k in range(len(batch.ids)):
            who = zlib.crc32(np.array([batch.ids[k], batch.epochs[k]]).tobytes())
            total += zlib.crc32(batch.masks[k].numpy().data, zlib.crc32(batch.images[k].numpy().data, who))
    return total


def _log(session: Session, clock: Clock, share: Tensor, votes: Tensor, lr: float, steps: int) -> None:
    """One line. The loss is read here, and here alone: reading it waits for the device (docs/gpu.md lists each such place)."""
    config, plan, state = session.config, session.plan, session.state
    loss = float(session.strategy.reduce(share))
    if not math.isfinite(loss):
        raise not_finite(state.step, f"the loss ({loss})", config)
    session.watch.lap(state)
    if session.lock.lost:
        session.lock.check()
    spans = clock.take()
    for other in ("eval", "checkpoint"):  # no phases of a step
        spans.pop(other, None)
    whole = sum(spans.values()) or 1e-9
    rate, wait, epoch = steps * plan.batch_size / whole, spans.get("wait", 0.0) / whole, plan.epoch(state.step)
    session.screen.step(state.step, epoch, loss, lr, rate, wait)
    digest = {"digest": int(votes[1])} if config.log.digest else {}
    session.journal.write(
        "step", step=state.step, epoch=epoch, loss=loss, lr=lr, images_per_s=rate, spans=spans, cpu_s=state.cpu_s, **digest
    )  # fmt: skip
    session.trackers.scalars(
        {"train/loss": loss, "train/lr": lr, "train/images_per_s": rate, "train/wait": wait}, state.step
    )


def _stop(session: Session, signals: list[int]) -> int:
    state = session.state
    name = signal.Signals(signals[0]).name if signals else "a signal on another rank"
    session.journal.write("signal", signal=name, step=state.step)
    session.save("signal")
    if session.writer:
        session.writer.wait()
    _end(session, "stopped")
    session.screen.say(
        f"stopped by {name} after step {state.step} of {session.plan.steps}: the state is saved, and the same command goes on "
        f"from there (exit code {EXIT_RESUMABLE})"
    )
    return EXIT_RESUMABLE


def _end(session: Session, status: str) -> None:
    state = session.state
    scored = {"miou": state.best_miou} if status == "done" else {}
    session.journal.write(
        "run_end", status=status, step=state.step, seconds=state.wall_s, cpu_s=state.cpu_s, workers=session.pool.count, **scored
    )  # fmt: skip
    session.trackers.close(status)


def _finish(session: Session) -> int:
    from segtrain.diagnose.live import closing_line
    from segtrain.observe.console import class_table, of_classes

    state, run_dir, labels = session.state, session.config.run_dir, session.validation.labels
    if session.writer:
        session.writer.wait()
    _end(session, "done")
    pixels = state.scores["pixels"]
    session.screen.say(class_table(labels.names, state.scores["iou"], [n / max(1, sum(pixels)) for n in pixels]))
    speed = closing_line(run_dir) if session.strategy.rank == 0 else None
    session.screen.say(
        f"best mIoU {100 * state.best_miou:.2f}%{of_classes(pixels)}   {state.wall_s:.0f} s of training, {state.cpu_s:.0f} CPU-s, evaluation left out\n"
        + "".join(f"warning: {text}\n" for text in session.caveats)
        + (f"{speed}\n" if speed else "")
        + (f"pictures  {run_dir}/pictures: val.png, worst.png, best.png\n" if session.config.log.pictures else "")
        + further(run_dir, session.config.log.tensorboard)
    )
    return 0


def further(run_dir: Path, tensorboard: bool) -> str:
    """Commands that go on from a finished run, ready to paste."""
    run, curves = quote(str(run_dir)), quote(f"{run_dir}/tensorboard")
    return (
        (f"curves    tensorboard --logdir {curves}\n" if tensorboard else "") + f"report    segtrain report {run}\n"
        f"next      segtrain eval {run}   segtrain predict {run} IMAGES   segtrain export {run}"
    )
