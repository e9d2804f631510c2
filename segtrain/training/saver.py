"""One rank's part in the checkpoints of a run: its state, the writer, and the check that all
weights are finite.
"""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from segtrain.config import Config
from segtrain.data.pixels import native
from segtrain.errors import SegtrainError
from segtrain.parallel.model import gathered, whole_cpu
from segtrain.parallel.strategy import Strategy
from segtrain.runfolder.upload import FolderLock
from segtrain.runfolder.writer import CheckpointWriter, Contents
from segtrain.training.host_copies import HostCopies, copy_to_host
from segtrain.training.learner import Learner, as_saved, learner_state
from segtrain.training.output import Output
from segtrain.training.state import State, nonfinite_weights, not_finite


def decoder() -> str:
    return "native" if native.available() else "packages"


class Saver:
    """Every rank has one, because a checkpoint needs collectives. Only that of rank 0 writes.

    ``records``: of the samples, see same_data.py.
    """

    def __init__(
        self,
        config: Config,
        strategy: Strategy,
        learner: Learner,
        state: State,
        lock: FolderLock,
        output: Output,
        records: dict[str, Any],
    ) -> None:
        self._config = config
        self._strategy = strategy
        self._learner = learner
        self._state = state
        self._lock = lock
        self._output = output
        self._records = records
        self._writer: CheckpointWriter | None = None
        self._copies: HostCopies | None = None  # of a GPU's state
        if strategy.rank == 0:
            folder = config.run_dir / "checkpoints"
            settings = config.checkpoint
            self._writer = CheckpointWriter(folder, settings.keep, settings.background, lock.check)
            if strategy.device.type == "cuda":
                self._copies = HostCopies(strategy.device, output.screen.say)
        # The last checkpoint's step, and whether a weight is not finite.
        self._unsettled: tuple[int, Tensor, Any] | None = None

    def save(self, reason: str) -> float:
        """Write a checkpoint of the current step. Returns the seconds that it took. A collective.

        Raises ConfigError if a weight is not finite: on a CPU now, on a GPU in ``settle``, so the
        host need not wait.
        """
        begin = time.perf_counter()
        strategy = self._strategy
        step = self._state.step
        copies = self._copies
        self.settle()
        bad, arrived = copy_to_host(nonfinite_weights(self._learner.parameters, strategy))
        self._unsettled = step, bad, arrived
        if arrived is None:
            self.settle()
        if self._writer is None:
            learner_state(self._learner, strategy, _gathered_and_dropped)  # for its collectives
            return time.perf_counter() - begin
        self._writer.wait()  # before the memory of its copies is used again
        content = learner_state(self._learner, strategy, copies.take if copies else whole_cpu)
        if copies:
            copies.start()
        self._lock.check()
        content |= {
            "state": self._state.to_dict(),
            "config_hash": self._config.hash,
            "decoder": decoder(),
            "data": self._records,
            "world_size": strategy.world_size,
            "precision": self._learner.precision.name,
            "exact": strategy.settings.exact,
            "origin": dict(vars(self._learner.plain.origin)),
        }

        def complete(content: Contents) -> Contents | None:
            if copies:
                copies.wait()
            if arrived is not None:
                arrived.synchronize()
            return None if bad else as_saved(content)

        path = self._writer.save(step, content, complete)
        seconds = time.perf_counter() - begin
        self._output.journal.write(
            "checkpoint", step=step, file=path.name, reason=reason, seconds=seconds
        )
        return seconds

    def before_update(self) -> None:
        """Let the GPU finish the copies before the weights change. The host does not wait."""
        if self._copies is not None:
            self._copies.before_update()

    def settle(self) -> None:
        """Raise ConfigError if a weight of the last checkpoint was not finite: it was not written.
        All ranks alike.

        On a GPU, this waits until the checkpoint has been copied.
        """
        if self._unsettled is None:
            return
        (step, bad, arrived), self._unsettled = self._unsettled, None
        if arrived is not None:
            arrived.synchronize()
        if bad:
            raise not_finite(step, "a weight", self._config)

    def wait(self) -> None:
        """Wait until the last checkpoint is written. Raises as ``settle`` does, or
        CheckpointError.
        """
        self.settle()
        if self._writer:
            self._writer.wait()

    def close(self) -> SegtrainError | None:
        """Wait until no checkpoint is being written. Returns the error of the last one, if it
        failed.
        """
        return self._writer.settle() if self._writer else None

    def written_s(self) -> float:
        """The most seconds so far that a checkpoint took to be written and uploaded while the loop
        went on.
        """
        return (self._writer.slowest_s if self._writer else 0.0) + self._lock.upload_s

    def refuse_lost_lock(self) -> None:
        """Raise SegtrainError if another process is known to have taken over the run folder."""
        if self._lock.lost:
            self._lock.check()


def _gathered_and_dropped(value: Any) -> None:
    gathered(value)
