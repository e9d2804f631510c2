"""One rank of a run, from the meeting of the ranks to the exit code."""

from __future__ import annotations

import torch

from segtrain.compat import skip_dynamo_import
from segtrain.config import Config, read_parts
from segtrain.errors import EXIT_RESUMABLE, SegtrainError
from segtrain.observe.profile import sampling
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import start
from segtrain.train import loop
from segtrain.train.lock import RunLock
from segtrain.train.output import further, write_end
from segtrain.train.parts import Parts
from segtrain.train.session import Session, open_session
from segtrain.train.state import stop_signals


def train(config: Config, cluster: Cluster, received: list[int] | None = None, parts: Parts | None = None) -> int:
    """Train as one rank of ``cluster``. Returns the exit code: 0, or EXIT_RESUMABLE after a signal.

    ``received``: the signals so far, from a caller that has listened on every rank since its start. ``parts``: a model,
    a loss, datasets and trackers in place of what the config describes.
    """
    with (
        stop_signals(received) as signals,
        start(config.parallel, cluster, config.train.device) as strategy,
        RunLock(config.run_dir) as lock,
        # Deterministic kernels need the compiler too, for its settings.
        skip_dynamo_import(not config.train.compile and not config.train.deterministic),
    ):
        try:
            count = torch.tensor([len(signals)], device=strategy.device)
            if received is not None and strategy.reduce(count).item():
                if strategy.rank == 0:
                    print("stopped by a signal before the first step: start the same command again")
                return EXIT_RESUMABLE
            return _run(open_session(config, strategy, lock, parts), signals)
        except (RuntimeError, ValueError, MemoryError) as error:
            explained = _explained(error, config, cluster, str(strategy.device))
            if explained is None:
                raise
            raise explained from error


def _run(session: Session, signals: list[int]) -> int:
    config, state, output = session.config, session.state, session.output
    try:
        if state.step >= session.plan.steps:
            output.screen.say(f"this run is finished\n{further(config.run_dir, False, read_parts(config.run_dir))}")
            # Once more: a kill may have come between the last checkpoint and this event.
            write_end(session, "done")
            return 0
        with sampling(config.run_dir, config.log.profile_ms, session.strategy.cluster):
            return loop.run(session, signals)
    except BaseException as error:
        output.journal.write(
            "run_end", status="failed", error=str(error), step=state.step, seconds=state.wall_s, cpu_s=state.cpu_s
        )
        output.trackers.close("failed")
        raise
    finally:
        # The lock is released next.
        if session.writer:
            session.writer.settle()
        output.close()


def _explained(error: Exception, config: Config, cluster: Cluster, device: str) -> SegtrainError | None:
    """The two errors of torch that a setting fixes, in words; None for any other."""
    images = config.train.batch_size // config.train.accumulate // cluster.world_size
    reason, size = str(error).splitlines()[0] if str(error) else "", "x".join(map(str, config.data.crop))
    full = ("out of memory", "can't allocate memory", "not enough memory")
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in full):
        return SegtrainError(
            f"out of memory on {device} with {images} images of {size} at once: raise train.accumulate, or lower "
            "data.crop or train.batch_size; in an evaluation set eval.tile, or lower eval.size, eval.scales or "
            f"eval.batch_size ({reason})",
            code="out-of-memory", device=device, images=images,
        )  # fmt: skip
    if "more than 1 value per channel" in reason:
        return SegtrainError(
            f"batch norm of model.arch={config.model.arch} gets a single value per channel from {images} image of "
            f"{size}: raise train.batch_size or data.crop, lower train.accumulate or the number of ranks, or set "
            "parallel.sync_bn=true",
            code="batch-norm-single-value", images=images,
        )  # fmt: skip
    return None
