"""Writer of checkpoints: a file is written whole or not at all, while training goes on."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from segtrain.base.files import PARTIAL, replacing
from segtrain.errors import CheckpointError, SegtrainError
from segtrain.runfolder.checkpoint import (
    FORMAT,
    SUFFIX,
    Best,
    best_of,
    checkpoints,
    named_best,
    write_best,
)

Contents = dict[str, Any]


class _ErrorKeepingFile:
    """A file that keeps the error of a failed write, because torch.save reports only that bytes are
    missing.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.flush = file, file.flush
        self.error: OSError | None = None

    def write(self, content: bytes) -> int:
        try:
            return self._file.write(content)
        except OSError as error:
            self.error = error
            raise


class CheckpointWriter:
    """Saves state as ``folder/step-00000123.pt``; with ``background``, in a thread while training
    goes on.

    The state in a checkpoint names the best one so far (``best_step``, ``best_value``). When a
    checkpoint has its final name, best.json is written, and only then are older files removed. If
    the process is killed in between, no checkpoint that is needed is lost, and ``mend_best``
    repairs best.json.

    Only rank 0 has a writer. A failed write raises CheckpointError at the next call; the torn file
    is removed. ``guard`` is called before a file gets its name, and raises an error if this process
    must not write any more.
    """

    def __init__(
        self, folder: Path, keep: int, background: bool, guard: Callable[[], None] = lambda: None
    ) -> None:
        self.folder = folder
        self.keep = keep
        self.background = background
        self._guard = guard
        self.slowest_s = 0.0  # the longest time in which a file was written
        self._thread: threading.Thread | None = None
        self._error: SegtrainError | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for torn in folder.glob(PARTIAL):  # left by a run that was killed while it wrote
            torn.unlink(missing_ok=True)

    def save(
        self,
        step: int,
        state: Contents,
        complete: Callable[[Contents], Contents | None] = lambda state: state,
    ) -> Path:
        """Write a checkpoint, or begin to write it with ``background``. Returns its path.

        ``state`` must hold CPU tensors that do not change until the write has ended. ``complete``
        is called before the file is written, in the same thread. It may wait for values of these
        tensors, and returns what is written, or None if nothing is.
        """
        self.wait()
        path = self.folder / f"step-{step:08d}{SUFFIX}"
        if self.background:
            self._thread = threading.Thread(
                target=self._write, args=(path, state, complete), name="checkpoint"
            )
            self._thread.start()
        else:
            self._write(path, state, complete)
            self.wait()
        return path

    def _write(
        self, path: Path, begun: Contents, complete: Callable[[Contents], Contents | None]
    ) -> None:
        file, begin = None, time.perf_counter()
        try:
            state = complete(begun)
            if state is None:
                return
            with replacing(path) as partial:
                with open(partial, "wb") as stream:
                    file = _ErrorKeepingFile(stream)
                    # torch.save calls only write and flush.
                    torch.save({"format": FORMAT, **state}, file)  # type: ignore[arg-type]
                    stream.flush()
                    os.fsync(stream.fileno())
                self._guard()
            _sync_folder(self.folder)
            best = best_of(state)
            if best is not None and best != named_best(self.folder.parent):
                write_best(self.folder.parent, best)
            self._prune(best)
            self.slowest_s = max(self.slowest_s, time.perf_counter() - begin)
        except SegtrainError as error:
            self._error = error
        # The error is kept for ``wait``: in a thread it would be lost. On a full disk, torch raises
        # a RuntimeError.
        except Exception as error:
            cause = file.error if file and file.error else error
            reason = (
                (cause.strerror if isinstance(cause, OSError) else "")
                or str(cause)
                or type(cause).__name__
            )
            fix = (
                "free memory"
                if isinstance(cause, MemoryError)
                else "free space or choose another `out`"
            )
            self._error = CheckpointError(
                f"cannot write the checkpoint {path}: {reason.splitlines()[0]}; earlier "
                f"checkpoints are untouched: {fix}, and start the same command again",
                code="checkpoint-not-written",
                file=str(path),
                reason=reason,
            )

    def _prune(self, best: Best | None) -> None:
        for path in checkpoints(self.folder.parent)[: -self.keep]:
            if best is None or path.name != best.file:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise CheckpointError(
                        f"cannot remove the old checkpoint {path}: {error.strerror}: correct the "
                        "permissions of its folder or `out`, and start the same command again; "
                        "newer checkpoints are complete",
                        code="checkpoint-not-removed",
                        file=str(path),
                        reason=error.strerror,
                    ) from None

    def settle(self) -> SegtrainError | None:
        """Wait until the write has ended. Returns its error, which is also kept for ``wait``."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self._error

    def wait(self) -> None:
        """Wait until the write has ended. Raises CheckpointError if it failed."""
        self.settle()
        if self._error is not None:
            error, self._error = self._error, None
            raise error


def _sync_folder(folder: Path) -> None:
    """Flush the folder to the disk, and with it the rename."""
    # Some network file systems have no fsync for folders, or the folder is not readable. The rename
    # is still atomic.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
