"""MLflow as a tracker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from segtrain.errors import ConfigError
from segtrain.observe.tracker import TrackedRun

if TYPE_CHECKING:
    import numpy as np

PARAMS = 100  # maximum of parameters in one call of an MLflow server
PARAM_LENGTH = 500  # maximum of characters in a value, for servers of all versions


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """``{"optim": {"lr": 0.1}}`` as ``{"optim.lr": "0.1"}``, with texts that are short enough for MLflow."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            found[f"{prefix}{key}"] = text if len(text) <= PARAM_LENGTH else f"{text[: PARAM_LENGTH - 3]}..."
    return found


class MLflow:
    """One MLflow run in the experiment ``segtrain`` of a tracking server or folder. Raises ConfigError."""

    name = "MLflow"

    def __init__(self, uri: str, run: TrackedRun) -> None:
        import mlflow

        try:
            mlflow.set_tracking_uri(uri)
            mlflow.set_experiment("segtrain")
            tags = {"segtrain.hash": run.hash, "segtrain.run_dir": str(run.folder)}
            self._run = mlflow.start_run(run_name=run.name, tags=tags)
            settings = list(flat(run.config).items())
            for at in range(0, len(settings), PARAMS):
                mlflow.log_params(dict(settings[at : at + PARAMS]))
        except Exception as error:  # Its client raises errors of many types.
            raise ConfigError(
                f"log.mlflow={uri}: cannot start a run: {' '.join(str(error).split())}: check the address",
                code="tracker-not-reached", key="log.mlflow", value=uri, reason=str(error),
            ) from error  # fmt: skip
        self._mlflow = mlflow

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics({tag: float(value) for tag, value in values.items()}, step=step)

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        self._mlflow.log_image(image, f"{tag}-{step:08d}.png")

    def text(self, tag: str, text: str) -> None:
        self._mlflow.log_text(text, f"{tag}.txt")

    def close(self, status: str) -> None:
        self._mlflow.end_run({"done": "FINISHED", "stopped": "KILLED"}.get(status, "FAILED"))
