"""One rank of a run, from the start of the process group to the exit code."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from segtrain.config import Config, read_parts
from segtrain.errors import EXIT_RESUMABLE, SegtrainError
from segtrain.kernels import UnusedKernels
from segtrain.observe.profile import sampling
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import start
from segtrain.runfolder.upload import lock_of
from segtrain.training import loop
from segtrain.training.output import ended_early, further, write_end
from segtrain.training.provided import CORE, Provided
from segtrain.training.session import Session, open_session
from segtrain.training.start.automatic import settled
from segtrain.training.start.trial import try_parts
from segtrain.training.start.user_objects import UserObjects
from segtrain.training.state import stop_signals


def train(
    config: Config,
    cluster: Cluster,
    received: list[int] | None = None,
    objects: UserObjects | None = None,
    on_connected: Callable[[], None] = lambda: None,
    report: Callable[[Exception], int] | None = None,
    provided: Provided = CORE,
) -> int:
    """Train as one rank of ``cluster``. Returns the exit code: 0, or EXIT_RESUMABLE after a signal.

    ``received``: the signals that a caller has recorded since the process started; if one rank
    passes it, all must. ``objects``: a model, a loss, datasets and trackers that replace those of
    the config. ``on_connected``: called when all ranks are connected. ``report``: prints an error
    and returns the exit code, in place of segtrain's own report, if this process must end at once
    because of the error, and the caller would not get it (NCCL, several ranks). ``provided``: by
    packages above the core.
    """
    config = settled(
        config,
        own_model=objects is not None and objects.model is not None,
        quiet=cluster.rank > 0,
    )
    with (
        stop_signals(received) as signals,
        start(config.parallel, cluster, config.train.device, report) as strategy,
        lock_of(config, strategy.cluster) as lock,
    ):
        on_connected()
        if strategy.rank:
            warnings.simplefilter("ignore", UnusedKernels)
        try:
            count = torch.tensor([len(signals)], device=strategy.device)
            if received is not None and strategy.reduce(count).item():
                if strategy.rank == 0:
                    print("stopped by a signal before the first step: start the same command again")
                return EXIT_RESUMABLE
            return _run(open_session(config, strategy, lock, objects, provided), signals)
        except (RuntimeError, ValueError, MemoryError) as error:
            explained = _explained(error, config, cluster, str(strategy.device))
            if explained is None:
                raise
            raise explained from error


def _run(session: Session, signals: list[int]) -> int:
    config = session.config
    state = session.state
    output = session.output
    try:
        if state.step >= session.plan.steps or session.patience_ended:
            why = ended_early(session) or "train.extend=10ep would continue it for 10 epochs"
            output.screen.say(
                f"this run is finished: {why}\n"
                f"{further(config.run_dir, False, read_parts(config.run_dir))}"
            )
            # Write run_end again: the process may have been killed between the last checkpoint and
            # this event.
            write_end(session, "done")
            return 0
        try_parts(session)
        with sampling(config.run_dir, config.log.profile_ms, session.strategy.cluster):
            return loop.run(session, signals)
    except BaseException as error:
        output.journal.write(
            "run_end",
            status="failed",
            error=str(error),
            step=state.step,
            seconds=state.wall_s,
            cpu_s=state.cpu_s,
        )
        output.trackers.close("failed")
        raise
    finally:
        # The lock is released after this, so wait until no checkpoint is being written. If that
        # fails too, say so.
        if unsaved := session.saver.close():
            output.screen.say(f"warning: {unsaved}")
        output.close()


def _explained(
    error: Exception, config: Config, cluster: Cluster, device: str
) -> SegtrainError | None:
    """An error with advice for the two errors of torch that a setting can fix; None for any other
    error.
    """
    images = config.train.batch_size // config.train.accumulate // cluster.world_size
    reason = str(error).splitlines()[0] if str(error) else ""
    size = "x".join(map(str, config.data.crop))
    full = ("out of memory", "can't allocate memory", "not enough memory")
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in full):
        return SegtrainError(
            f"out of memory on {device} with {images} images of {size} at once: raise "
            "train.accumulate, or lower data.crop or train.batch_size; in an evaluation set "
            f"eval.tile, or lower eval.size, eval.scales or eval.batch_size ({reason})",
            code="out-of-memory",
            device=device,
            images=images,
        )
    if "the same" in reason and "type" in reason:
        return SegtrainError(
            f"the model computes in another type than float32 ({reason}): pass model.float(), "
            "and set train.precision",
            code="model-dtype",
            found=reason,
        )
    if "more than 1 value per channel" in reason:
        return SegtrainError(
            f"batch norm of model.arch={config.model.arch} gets a single value per channel from "
            f"{images} image of {size}: raise train.batch_size or data.crop, lower "
            "train.accumulate or the number of ranks, or set parallel.sync_bn=true",
            code="batch-norm-single-value",
            images=images,
        )
    return None
