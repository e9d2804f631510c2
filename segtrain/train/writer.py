"""Writes a run's state to the disk, whole or not at all, while training goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from segtrain.checkpoint import FORMAT, SUFFIX, Best, best_of, checkpoints, named_best, write_best
from segtrain.errors import CheckpointError, SegtrainError
from segtrain.files import PARTIAL, replacing


class _Remembering:
    """A file that keeps the error of a write, of which torch.save says only that some bytes are missing."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.error = file, None
        self.flush = file.flush

    error: OSError | None

    def write(self, content: bytes) -> int:
        try:
            return self._file.write(content)
        except OSError as error:
            self.error = error
            raise


class CheckpointWriter:
    """Saves state into ``folder/step-00000123.pt``; with ``background`` the disk works while training goes on.

    Each checkpoint says in its state which one is the best so far (``best_step``, ``best_miou``), so its rename decides
    that too: best.json follows, and only then are older files removed. A kill anywhere in between loses neither; see
    ``mend_best``.

    Rank 0 alone owns one. A failed write raises CheckpointError at the next call; the torn file is removed. ``guard``
    is called before a file gets its name, and raises where this process must not write any more.
    """

    def __init__(self, folder: Path, keep: int, background: bool, guard: Callable[[], None] = lambda: None) -> None:
        self.folder, self.keep, self.background, self._guard = folder, keep, background, guard
        self._thread: threading.Thread | None = None
        self._error: SegtrainError | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for torn in folder.glob(PARTIAL):  # left by a run that was killed while it wrote
            torn.unlink(missing_ok=True)

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """``state`` must hold CPU tensors that nobody changes any more."""
        self.wait()
        path = self.folder / f"step-{step:08d}{SUFFIX}"
        if self.background:
            self._thread = threading.Thread(target=self._write, args=(path, state), name="checkpoint")
            self._thread.start()
        else:
            self._write(path, state)
            self.wait()
        return path

    def _write(self, path: Path, state: dict[str, Any]) -> None:
        file = None
        try:
            with replacing(path) as partial:
                with open(partial, "wb") as stream:
                    file = _Remembering(stream)
                    # It asks for write and flush alone.
                    torch.save({"format": FORMAT, **state}, file)  # type: ignore[arg-type]
                    stream.flush()
                    os.fsync(stream.fileno())
                self._guard()
            _sync_folder(self.folder)
            best = best_of(state["state"])
            if best is not None and best != named_best(self.folder.parent):
                write_best(self.folder.parent, best)
            self._prune(best)
        except SegtrainError as error:
            self._error = error
        # An error of this thread would be lost. torch turns that of a full disk into a RuntimeError.
        except Exception as error:
            cause = file.error if file and file.error else error
            words = (cause.strerror if isinstance(cause, OSError) else "") or str(cause) or type(cause).__name__
            fix = "free memory" if isinstance(cause, MemoryError) else "free space or choose another `out`"
            self._error = CheckpointError(
                f"cannot write the checkpoint {path}: {words.splitlines()[0]}; earlier checkpoints are untouched: "
                f"{fix}, and start the same command again",
                code="checkpoint-not-written", file=str(path), reason=words,
            )  # fmt: skip

    def _prune(self, best: Best | None) -> None:
        for path in checkpoints(self.folder.parent)[: -self.keep]:
            if best is None or path.name != best.file:
                path.unlink(missing_ok=True)

    def settle(self) -> None:
        """Wait until the disk is done, also where the write fails."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait(self) -> None:
        """Wait until the disk is done. Raises CheckpointError if the write has failed."""
        self.settle()
        if self._error is not None:
            error, self._error = self._error, None
            raise error


def _sync_folder(folder: Path) -> None:
    """The rename itself reaches the disk when the folder does."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems know no fsync of a folder; the rename is still atomic
    finally:
        os.close(descriptor)
