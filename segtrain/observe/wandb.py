"""Weights & Biases as a tracker."""

from __future__ import annotations

import html
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from segtrain.errors import ConfigError
from segtrain.observe.tracker import TrackedRun

if TYPE_CHECKING:
    import numpy as np

# Default of WANDB_FINISH_TIMEOUT: seconds that the end of a run waits for W&B to send the rest.
LAST_WORDS_S = 60


class WandB:
    """One run of a W&B project; a resumed run continues the one whose id is in RUN/wandb/run-id. Raises ConfigError.

    W&B's own variables say where it goes: WANDB_MODE, WANDB_BASE_URL, WANDB_ENTITY, WANDB_API_KEY. A separate process
    sends the data and waits for the network. Its files stay in RUN/wandb, for ``wandb sync``.
    """

    name = "W&B"

    def __init__(self, project: str, run: TrackedRun) -> None:
        import wandb

        try:
            with no_terminal():
                self._run = wandb.init(
                    project=project, name=run.name, dir=str(run.folder), id=_wandb_id(run.folder / "wandb/run-id"),
                    resume="allow", config=dict(run.config), tags=[run.hash] if run.hash else [], job_type="train",
                    settings=wandb.Settings(
                        console="off",  # The journal has the lines of the run.
                        finish_timeout=float(os.environ.get("WANDB_FINISH_TIMEOUT", LAST_WORDS_S)),
                        finish_timeout_raises=True,
                    ),
                )  # fmt: skip
        except Exception as error:  # Its client raises errors of many types.
            raise ConfigError(
                f"log.wandb={project}: cannot start a run: {' '.join(str(error).split())}: set WANDB_API_KEY or "
                "`wandb login`, check that the server can be reached, or set WANDB_MODE=offline and `wandb sync` later",
                code="tracker-not-reached", key="log.wandb", value=project, reason=str(error),
            ) from error  # fmt: skip
        self._wandb = wandb

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        # W&B ignores the steps that a resumed run repeats.
        self._run.log(dict(values), step=step)

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        self._run.log({tag: self._wandb.Image(image)}, step=step)

    def text(self, tag: str, text: str) -> None:
        # It is sent with the scalars of the step.
        self._run.log({tag: self._wandb.Html(f"<pre>{html.escape(text)}</pre>")}, commit=False)

    def close(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "done" else 1)


def _wandb_id(file: Path) -> str:
    """The id of the W&B run, stored in ``file``: WANDB_RUN_ID, the stored one, or a new one. Raises OSError."""
    known = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    id = os.environ.get("WANDB_RUN_ID") or known or uuid.uuid4().hex[:8]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(id + "\n", encoding="utf-8")
    return id


@contextmanager
def no_terminal() -> Iterator[None]:
    """Close the terminal for the client, which would otherwise ask there for a missing key and wait."""
    real = sys.stdin
    with open(os.devnull, encoding="utf-8") as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = real
