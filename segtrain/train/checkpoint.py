"""How a run's state reaches the disk whole or not at all, and how the newest whole one is found again."""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from segtrain.errors import CheckpointError

FORMAT = 1
SUFFIX = ".pt"
PARTS = ("model", "optimizer", "ema", "scaler", "state", "world_size")  # of a checkpoint; see Session.save


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside, flush to the disk, rename: a reader sees the old file or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {path}: {error.strerror}: free space or choose another `out`") from None


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


class Writer:
    """Saves state into ``folder/step-00000123.pt``; with ``background`` the disk works while training goes on.

    Rank 0 alone owns one. A failed write raises CheckpointError at the next call; the torn file is removed.
    """

    def __init__(self, folder: Path, keep: int, background: bool) -> None:
        self.folder, self.keep, self.background = folder, keep, background
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        self.best: str | None = best_name(folder.parent)
        folder.mkdir(parents=True, exist_ok=True)
        for torn in folder.glob(".*.part"):  # left by a run that was killed while it wrote
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
        partial = path.with_name(f".{path.name}.part")
        file = None
        try:
            with open(partial, "wb") as stream:
                file = _Remembering(stream)
                torch.save({"format": FORMAT, **state}, file)  # type: ignore[arg-type]  # it asks for write and flush
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, path)
            _sync_folder(self.folder)
            self._prune()
        except (OSError, RuntimeError) as error:  # torch makes a RuntimeError of a full disk
            partial.unlink(missing_ok=True)
            cause = file.error if file and file.error else error
            reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause).splitlines()[0]
            self._error = CheckpointError(
                f"cannot write the checkpoint {path}: {reason}; earlier checkpoints are untouched: "
                "free space or choose another `out`, and start the same command again"
            )

    def _prune(self) -> None:
        for path in checkpoints(self.folder.parent)[: -self.keep]:
            if path.name != self.best:
                path.unlink(missing_ok=True)

    def mark_best(self, step: int, miou: float) -> None:
        """Point best.json at the checkpoint of ``step``, which must be saved (or being saved) already."""
        self.wait()
        self.best = f"step-{step:08d}{SUFFIX}"
        content = {"checkpoint": self.best, "step": step, "miou": miou}
        write_atomically(self.folder.parent / "best.json", json.dumps(content).encode())

    def wait(self) -> None:
        """Until the disk is done. Raises CheckpointError of a write that failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
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


def checkpoints(run_dir: Path) -> list[Path]:
    """Whole checkpoints by step, oldest first (a file has its final name only when it is whole)."""
    return sorted(Path(run_dir, "checkpoints").glob(f"step-*{SUFFIX}"))


def step_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def fingerprint(path: Path) -> str:
    """Of a checkpoint's content, from the checksums in its archive's table: equal on two hosts whose files are equal.

    Raises CheckpointError when the file is not there, or torn.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            table = [(item.filename.partition("/")[2], item.CRC, item.file_size) for item in archive.infolist()]
    except (OSError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path} is no whole checkpoint ({error}): delete it, or take another") from None
    return hashlib.sha256(repr(table).encode()).hexdigest()


def best_name(run_dir: Path) -> str | None:
    try:
        return str(json.loads(Path(run_dir, "best.json").read_text())["checkpoint"])
    except (OSError, ValueError, KeyError):
        return None


def read(path: Path, content: bytes | None = None) -> dict[str, Any]:
    """One checkpoint on the CPU, by the safe loader (tensors and plain values; no code in it is run).

    ``content``: the file's, where it came from another host.

    Raises CheckpointError when the file is torn, foreign, or of another format.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = torch.load(path if content is None else io.BytesIO(content), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except Exception as error:  # zip, pickle and zlib each have their own
        raise CheckpointError(
            f"{path} is no whole checkpoint ({type(error).__name__}): delete it, or take another"
        ) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no checkpoint of this format ({FORMAT}): it was not written by this version")
    return state


def misfits(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """In which tensors ``weights`` differ from what a model has: one remark each."""

    def shape(tensor: Tensor) -> str:
        return "x".join(map(str, tensor.shape)) or "a number"

    return [
        *(f"{key} is missing" for key in own if key not in weights),
        *(f"{key} is unknown" for key in weights if key not in own),
        *(
            f"{key} is {shape(weights[key])} instead of {shape(value)}"
            for key, value in own.items()
            if key in weights and weights[key].shape != value.shape
        ),
    ]


def refuse_foreign(state: dict[str, Any], own: Mapping[str, Tensor], run_dir: str) -> None:
    """Raises CheckpointError where a checkpoint lacks a part, or is of another network than the one it shall go on with."""
    odd = [f"{part} is missing" for part in PARTS if part not in state] or misfits(own, state["model"])
    if odd:
        raise CheckpointError(
            f"the newest checkpoint of {run_dir} is of another run ({len(odd)} differences; {odd[0]}): "
            "take that file away, or choose another out=FOLDER"
        )


def newest(run_dir: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest checkpoint that loads, and a line about each one that does not."""
    _, state, remarks = newest_file(run_dir)
    return state, remarks


def newest_file(run_dir: Path) -> tuple[Path | None, dict[str, Any] | None, list[str]]:
    remarks: list[str] = []
    for path in reversed(checkpoints(run_dir)):
        try:
            return path, read(path), remarks
        except CheckpointError as error:
            remarks.append(f"skipped: {error}")
    return None, None, remarks


def load_weights(run_dir: Path, which: str = "best") -> dict[str, Tensor]:
    """State dict of the model (its moving average where the run has one) of the best or the last checkpoint.

    Raises CheckpointError when the run folder has none.
    """
    run_dir = Path(run_dir)
    if which not in ("best", "last"):
        raise CheckpointError(f"which={which!r}: choose best or last")
    name = best_name(run_dir) if which == "best" else None
    if name is not None:
        path = run_dir / "checkpoints" / name
        if not path.is_file():
            raise CheckpointError(f"{run_dir / 'best.json'} names {name}, which is not there: use --which last")
        state: dict[str, Any] | None = read(path)
    else:
        state, _ = newest(run_dir)
    if state is None:
        raise CheckpointError(f"{run_dir} holds no checkpoint: train it first (segtrain train ... out={run_dir})")
    weights = state.get("ema") or state.get("model")
    if not isinstance(weights, dict):
        raise CheckpointError(f"the checkpoint of {run_dir} holds no weights: delete it, or take another")
    return weights
