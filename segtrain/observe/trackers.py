"""Who else wants the numbers? TensorBoard and MLflow, each imported when its first number is written.

Both are conveniences beside the journal: one that is missing or fails while training says so once and stops no run. An MLflow
that was asked for and is not installed is an error at the start, with the extra to install.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from segtrain.config import Log
from segtrain.errors import ConfigError, MissingExtra
from segtrain.observe.journal import say_on_stderr


class Tracker(Protocol):
    name: str

    def scalars(self, values: Mapping[str, float], step: int) -> None: ...

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        """``image``: uint8 (H, W, 3) RGB."""

    def text(self, tag: str, text: str) -> None: ...

    def close(self, status: str) -> None: ...


class TensorBoard:
    """Event files under ``folder``; a resumed run goes on in a new file, which hides what is done again."""

    name = "TensorBoard"

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        self._folder, self._purge_step = folder, purge_step
        self._writer: Any = None

    def _open(self) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=self._purge_step, flush_secs=15)
        return self._writer

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for tag, value in values.items():
            self._open().add_scalar(tag, value, step)

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        self._open().add_image(tag, image, step, dataformats="HWC")

    def text(self, tag: str, text: str) -> None:
        self._open().add_text(tag, "    " + text.replace("\n", "\n    "))  # indented: Markdown shows it as it is

    def close(self, status: str) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """One MLflow run under the experiment ``segtrain`` of a tracking server or folder."""

    name = "MLflow"

    def __init__(self, uri: str, run_name: str, tags: Mapping[str, str]) -> None:
        import mlflow

        try:
            mlflow.set_tracking_uri(uri)
            mlflow.set_experiment("segtrain")
            self._run = mlflow.start_run(run_name=run_name, tags=dict(tags))
        except Exception as error:  # whatever its client raises: the address is what the user can mend
            raise ConfigError(f"log.mlflow={uri}: cannot start a run: {' '.join(str(error).split())}") from error
        self._mlflow = mlflow

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics({tag: float(value) for tag, value in values.items()}, step=step)

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        self._mlflow.log_image(image, f"{tag}-{step:08d}.png")

    def text(self, tag: str, text: str) -> None:
        self._mlflow.log_text(text, f"{tag}.txt")

    def close(self, status: str) -> None:
        self._mlflow.end_run({"done": "FINISHED", "stopped": "KILLED"}.get(status, "FAILED"))


class Trackers:
    """All trackers of a run as one. A tracker that raises is dropped with one line; the run goes on."""

    def __init__(self, trackers: list[Tracker], say: Callable[[str], None] = say_on_stderr) -> None:
        self._trackers = trackers
        self._say = say

    def _each(self, do: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                do(tracker)
            except Exception as error:  # third-party code at the side of a run must not end it
                self._trackers.remove(tracker)
                reason = " ".join(str(error).split()) or type(error).__name__
                self._say(f"{tracker.name} is off from here on: {reason}")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """``values``: tag -> number; what is not finite is left out, for charts choke on it."""
        finite = {tag: float(value) for tag, value in values.items() if value is not None and math.isfinite(value)}
        if finite:
            self._each(lambda tracker: tracker.scalars(finite, step))

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        self._each(lambda tracker: tracker.image(tag, image, step))

    def text(self, tag: str, text: str) -> None:
        self._each(lambda tracker: tracker.text(tag, text))

    def close(self, status: str = "done") -> None:
        self._each(lambda tracker: tracker.close(status))
        self._trackers = []


def refuse_trackers(log: Log) -> None:
    """Raises MissingExtra for a tracker that is asked for and not installed."""
    if log.mlflow and importlib.util.find_spec("mlflow") is None:
        raise MissingExtra("mlflow", "mlflow", f"log.mlflow={log.mlflow}")


def open_trackers(
    log: Log,
    run_dir: str | Path,
    *,
    name: str = "run",
    hash: str = "",
    rank: int = 0,
    resume_step: int | None = None,
    say: Callable[[str], None] = say_on_stderr,
) -> Trackers:
    """The trackers that the settings ask for; none on ranks other than 0. Cheap: nothing heavy is imported but MLflow.

    ``resume_step``: the step a resumed run goes on from. Raises MissingExtra, or ConfigError where MLflow cannot be reached.
    """
    trackers: list[Tracker] = []
    if rank == 0 and log.tensorboard:
        if importlib.util.find_spec("tensorboard") is None:
            say(
                "TensorBoard is not installed: going on without it (pip install tensorboard, or set log.tensorboard=false)"
            )
        else:
            trackers.append(
                TensorBoard(Path(run_dir) / "tensorboard", None if resume_step is None else resume_step + 1)
            )
    if rank == 0 and log.mlflow:
        refuse_trackers(log)
        trackers.append(MLflow(log.mlflow, name, {"segtrain.hash": hash, "segtrain.run_dir": str(run_dir)}))
    return Trackers(trackers, say)
