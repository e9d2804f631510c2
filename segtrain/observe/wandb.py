"""Weights & Biases as a tracker."""

from __future__ import annotations

import html
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segtrain.errors import ConfigError
from segtrain.observe.tracker import TrackedRun

if TYPE_CHECKING:
    import numpy as np

# Seconds that the end of a run waits for W&B to send what is left, unless WANDB_FINISH_TIMEOUT says otherwise.
LAST_WORDS_S = 60


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
                f"log.wandb={project}: cannot start a run: {' '.join(str(error).split())}: set WANDB_API_KEY or `wandb login`, "
                "check that the server can be reached, or set WANDB_MODE=offline and `wandb sync` later",
                code="tracker-not-reached", key="log.wandb", value=project, reason=str(error),
            ) from error  # fmt: skip
        self._wandb = wandb

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        # W&B ignores the steps that a resumed run repeats: it has them already.
        self._run.log(dict(values), step=step)

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        self._run.log({tag: self._wandb.Image(image)}, step=step)

    def text(self, tag: str, text: str) -> None:
        # It is sent with the numbers of the step.
        self._run.log({tag: self._wandb.Html(f"<pre>{html.escape(text)}</pre>")}, commit=False)

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


def make(project: str, run: TrackedRun) -> WandB:
    return WandB(project, run.folder, run.name, [run.hash] if run.hash else [], run.config)
