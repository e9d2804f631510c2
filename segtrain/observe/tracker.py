"""Interface of an experiment tracker, and the trackers for TensorBoard, MLflow, and Weights &
Biases.
"""

from __future__ import annotations

import html
import json
import os
import re
import sys
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from segtrain.base.files import read_text
from segtrain.errors import ConfigError, one_line

if TYPE_CHECKING:
    import numpy as np

PARAMS = 100  # most parameters in one request to an MLflow server
# most characters in a parameter value that MLflow servers of all versions accept
PARAM_LENGTH = 500
# folder in the run folder with the run's id in each tracker; a copy in a bucket has it, too
IDS = "trackers/"
# seconds that the end of a run waits until all is sent; WANDB_FINISH_TIMEOUT replaces it for W&B
FINISH_S = 60


class Tracker(Protocol):
    name: str

    def scalars(self, values: Mapping[str, float], step: int) -> None: ...

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        """``image``: uint8 (H, W, 3) RGB."""

    def text(self, tag: str, text: str) -> None: ...

    def close(self, status: str) -> None: ...


@dataclass(frozen=True)
class TrackedRun:
    """Facts about a run for its trackers. ``config``: all settings, as nested mappings.

    ``resume_step``: the step that a resumed run continues from; None for a new run.
    """

    folder: Path
    name: str = "run"
    hash: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    resume_step: int | None = None

    def id_file(self, tracker: str) -> Path:
        """The file for the id that this run has in a tracker."""
        return self.folder / IDS / tracker


class TensorBoard:
    """Event files in RUN/tensorboard. TensorBoard hides the steps that a resumed run repeats."""

    name = "TensorBoard"

    def __init__(self, on: bool, run: TrackedRun) -> None:
        self._folder = run.folder / "tensorboard"
        self._purge_step = None if run.resume_step is None else run.resume_step + 1
        self._writer: Any = None

    def _open(self) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(
                str(self._folder), purge_step=self._purge_step, flush_secs=15
            )
        return self._writer

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for tag, value in values.items():
            self._open().add_scalar(tag, value, step)

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        self._open().add_image(tag, image, step, dataformats="HWC")

    def text(self, tag: str, text: str) -> None:
        # Markdown shows indented text unchanged.
        self._open().add_text(tag, "    " + text.replace("\n", "\n    "))

    def close(self, status: str) -> None:
        if self._writer is not None:
            self._writer.close()


def not_started(key: str, value: str, error: Exception, fix: str) -> ConfigError:
    return ConfigError(
        f"{key}={value}: cannot start a run: {one_line(error)}: {fix}",
        code="tracker-not-reached",
        key=key,
        value=value,
    )


def leaves(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"optim": {"lr": 0.1}}`` as ``{"optim.lr": 0.1}``."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        values |= (
            leaves(value, f"{prefix}{key}.")
            if isinstance(value, Mapping) and value
            else {f"{prefix}{key}": value}
        )
    return values


def short_text(value: Any, most: int = PARAM_LENGTH) -> str:
    """``value`` as text (JSON if it is not a string), cut to at most ``most`` characters."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """``{"optim": {"lr": 0.1}}`` as ``{"optim.lr": "0.1"}``, with texts that are short enough for
    MLflow.
    """
    return {key: short_text(value) for key, value in leaves(settings).items()}


def mlflow_name(tag: str) -> str:
    """``tag`` as a name that MLflow takes: letters, digits, and ``_-. /``, as a short relative
    path.

    A changed name ends with a checksum of ``tag``, so that names stay apart.
    """
    parts = re.sub(r"[^/\w.\- ]", "_", tag).split("/")
    name = "/".join(part for part in parts if part.strip("."))[:200]
    return name if name == tag else f"{name}-{zlib.crc32(tag.encode(errors='replace')):08x}"


class MLflow:
    """One MLflow run of a tracking server or folder; a resumed run continues the one in
    RUN/trackers/mlflow.

    MLFLOW_RUN_ID, MLFLOW_EXPERIMENT_ID, and MLFLOW_EXPERIMENT_NAME (default: ``segtrain``) choose
    others. Raises ConfigError.
    """

    name = "MLflow"

    def __init__(self, uri: str, run: TrackedRun) -> None:
        import mlflow

        file = run.id_file("mlflow")
        try:
            mlflow.set_tracking_uri(uri)
            run_id = os.environ.get("MLFLOW_RUN_ID") or saved_id(file)
            if not run_id and "MLFLOW_EXPERIMENT_ID" not in os.environ:
                mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "segtrain"))
            tags = {"segtrain.hash": run.hash, "segtrain.run_dir": str(run.folder)}
            self._run = mlflow.start_run(run_id or None, run_name=run.name, tags=tags)
            settings = [
                (name, value)
                for key, value in flat(run.config).items()
                # A run of MLflow takes each parameter once.
                if (name := mlflow_name(key)) not in self._run.data.params
            ]
            for at in range(0, len(settings), PARAMS):
                mlflow.log_params(dict(settings[at : at + PARAMS]))
            save_id(file, self._run.info.run_id)
        except Exception as error:  # The client of MLflow raises errors of many types.
            raise not_started(
                "log.mlflow", uri, error, f"check the address, and the run in {file}"
            ) from error
        self._mlflow = mlflow

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(
            {mlflow_name(tag): float(value) for tag, value in values.items()}, step=step
        )

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        self._mlflow.log_image(image, f"{tag}-{step:08d}.png")

    def text(self, tag: str, text: str) -> None:
        self._mlflow.log_text(text, f"{tag}.txt")

    def close(self, status: str) -> None:
        self._mlflow.end_run({"done": "FINISHED", "stopped": "KILLED"}.get(status, "FAILED"))


class WandB:
    """One run of a W&B project; a resumed run continues the W&B run named in RUN/trackers/wandb.
    Raises ConfigError.

    Environment variables of W&B choose the server and the account: WANDB_MODE, WANDB_BASE_URL,
    WANDB_ENTITY, WANDB_API_KEY. A separate process sends the data and waits for the network. W&B's
    files stay in RUN/wandb, for ``wandb sync``.
    """

    name = "W&B"

    def __init__(self, project: str, run: TrackedRun) -> None:
        import wandb

        file = run.id_file("wandb")
        try:
            run_id = os.environ.get("WANDB_RUN_ID") or saved_id(file) or uuid.uuid4().hex[:8]
            save_id(file, run_id)
            with _no_terminal():
                self._run = wandb.init(
                    project=project,
                    name=run.name,
                    dir=str(run.folder),
                    id=run_id,
                    resume="allow",
                    config=dict(run.config),
                    tags=[run.hash] if run.hash else [],
                    job_type="train",
                    settings=wandb.Settings(
                        console="off",  # The journal already keeps the log of the run.
                        finish_timeout=float(os.environ.get("WANDB_FINISH_TIMEOUT", FINISH_S)),
                        finish_timeout_raises=True,
                    ),
                )
        except Exception as error:  # The client of W&B raises errors of many types.
            raise not_started(
                "log.wandb",
                project,
                error,
                "set WANDB_API_KEY or `wandb login`, check that the server can be reached, or set "
                "WANDB_MODE=offline and `wandb sync` later",
            ) from error
        self._wandb = wandb

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        # W&B ignores the steps that a resumed run repeats.
        self._run.log(dict(values), step=step)

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        self._run.log({tag: self._wandb.Image(image)}, step=step)

    def text(self, tag: str, text: str) -> None:
        # The text is sent with the next scalars.
        self._run.log({tag: self._wandb.Html(f"<pre>{html.escape(text)}</pre>")}, commit=False)

    def close(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "done" else 1)


def saved_id(file: Path) -> str:
    """The id that an earlier process of this run has saved; "" if there is none. Raises OSError."""
    return read_text(file).strip() if file.is_file() else ""


def save_id(file: Path, run_id: str) -> None:
    """Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(run_id + "\n", encoding="utf-8")


@contextmanager
def _no_terminal() -> Iterator[None]:
    """Hide the terminal from the client of W&B, which would otherwise ask for a missing key there
    and wait.
    """
    real = sys.stdin
    with open(os.devnull, encoding="utf-8") as sys.stdin:
        try:
            yield
        finally:
            sys.stdin = real
