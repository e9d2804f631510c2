"""Who else wants the numbers? TensorBoard, MLflow and W&B, each imported only where it is asked for.

They are conveniences beside the journal: one that is missing or fails while training says so once and stops no run. An MLflow or a
W&B that was asked for and is not installed, or cannot be reached, is an error at the start, with its cure.
"""

from __future__ import annotations

import html
import importlib.util
import json
import math
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from segtrain.config import Log
from segtrain.errors import ConfigError, MissingExtra
from segtrain.observe.journal import say_on_stderr

LAST_WORDS_S = 60  # that the end of a run waits for W&B to take what is left; WANDB_FINISH_TIMEOUT says otherwise


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


PARAMS = 100  # that an MLflow server takes in one call
PARAM_LENGTH = 500  # characters of a value that servers of every version keep


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """``{"optim": {"lr": 0.1}}`` as ``{"optim.lr": "0.1"}``: one text for each setting, cut where MLflow would refuse it."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            found[f"{prefix}{key}"] = text if len(text) <= PARAM_LENGTH else f"{text[: PARAM_LENGTH - 3]}..."
    return found


class MLflow:
    """One MLflow run under the experiment ``segtrain`` of a tracking server or folder."""

    name = "MLflow"

    def __init__(self, uri: str, run_name: str, tags: Mapping[str, str], config: Mapping[str, Any]) -> None:
        import mlflow

        try:
            mlflow.set_tracking_uri(uri)
            mlflow.set_experiment("segtrain")
            self._run = mlflow.start_run(run_name=run_name, tags=dict(tags))
            settings = list(flat(config).items())
            for at in range(0, len(settings), PARAMS):
                mlflow.log_params(dict(settings[at : at + PARAMS]))
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


class WandB:
    """One run of a project of Weights & Biases; a resumed run goes on in the same one, whose id lies in RUN/wandb/run-id.

    Where it goes is for W&B's own variables to say: WANDB_MODE, WANDB_BASE_URL, WANDB_ENTITY, WANDB_API_KEY. What is sent goes through
    a process of its own that waits for the network; its files stay in RUN/wandb, for ``wandb sync``.
    """

    name = "W&B"

    def __init__(self, project: str, run_dir: Path, run_name: str, tags: list[str], config: Mapping[str, Any]) -> None:
        import wandb

        try:
            with nobody_to_ask():
                self._run = wandb.init(
                    project=project, name=run_name, dir=str(run_dir), id=_wandb_id(run_dir / "wandb/run-id"),
                    resume="allow", config=dict(config), tags=tags, job_type="train",
                    settings=wandb.Settings(
                        console="off",  # the run's own lines are its journal's
                        finish_timeout=float(os.environ.get("WANDB_FINISH_TIMEOUT", LAST_WORDS_S)),
                        finish_timeout_raises=True,
                    ),
                )  # fmt: skip
        except Exception as error:  # whatever its client raises: key and address are what the user can mend
            raise ConfigError(
                f"log.wandb={project}: cannot start a run: {' '.join(str(error).split())}: set WANDB_API_KEY or `wandb login`, look "
                "whether the server can be reached, or set WANDB_MODE=offline and `wandb sync` later"
            ) from error
        self._wandb = wandb

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(
            dict(values), step=step
        )  # steps that a resumed run does again are known already: W&B leaves them out

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        self._run.log({tag: self._wandb.Image(image)}, step=step)

    def text(self, tag: str, text: str) -> None:
        self._run.log(
            {tag: self._wandb.Html(f"<pre>{html.escape(text)}</pre>")}, commit=False
        )  # it goes with the numbers of the step

    def close(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "done" else 1)


def _wandb_id(file: Path) -> str:
    """Of the W&B run that this run is: WANDB_RUN_ID, what lies in ``file``, or a new one; it is kept there. Raises OSError."""
    known = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    id = os.environ.get("WANDB_RUN_ID") or known or uuid.uuid4().hex[:8]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(id + "\n", encoding="utf-8")
    return id


@contextmanager
def nobody_to_ask() -> Iterator[None]:
    """No terminal meanwhile: a client without its key would ask there and wait for an answer, in a run that nobody watches."""
    real = sys.stdin
    with open(os.devnull, encoding="utf-8") as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = real


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
                name = getattr(tracker, "name", type(tracker).__name__)
                self._say(f"{name} is off from here on: {reason}")

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
    for package, asked in (("mlflow", log.mlflow), ("wandb", log.wandb)):
        if asked and importlib.util.find_spec(package) is None:
            raise MissingExtra(package, package, f"log.{package}={asked}")


def open_trackers(
    log: Log,
    run_dir: str | Path,
    *,
    name: str = "run",
    hash: str = "",
    config: Mapping[str, Any] | None = None,
    rank: int = 0,
    resume_step: int | None = None,
    say: Callable[[str], None] = say_on_stderr,
    own: Sequence[Tracker] = (),
) -> Trackers:
    """The trackers that the settings ask for and the user's ``own``; none on ranks other than 0. Cheap: nothing heavy is imported but MLflow and W&B.

    ``config``: all settings, as nested values. ``resume_step``: the step a resumed run goes on from. Raises MissingExtra, or
    ConfigError where MLflow or W&B cannot be reached.
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
    if rank == 0:
        refuse_trackers(log)
    if rank == 0 and log.mlflow:
        trackers.append(
            MLflow(log.mlflow, name, {"segtrain.hash": hash, "segtrain.run_dir": str(run_dir)}, config or {})
        )
    if rank == 0 and log.wandb:
        trackers.append(WandB(log.wandb, Path(run_dir), name, [hash] if hash else [], config or {}))
    if rank == 0:
        trackers += own
    return Trackers(trackers, say)
