"""Tracker for Vertex AI Experiments: parameters, metrics, and state of a run, and time series in a
Vertex TensorBoard.

A thread sends everything, so that the training never waits for the network.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from segtrain.base.json_text import read_json
from segtrain.errors import ConfigError, SegtrainError
from segtrain.observe.run_row import COLUMNS, run_row
from segtrain.observe.tracker import FINISH_S, TrackedRun, leaves, save_id, saved_id, short_text
from segtrain.platforms.vertex.experiments import METRICS, STATE, STATES, Experiment, ExperimentRun

if TYPE_CHECKING:
    import numpy as np

# These columns of the table of runs become parameters of the Vertex run. The other columns, except
# the status, become metrics.
ROW_PARAMS = ("name", "hash", "out")
# most characters that the SDK accepts in EXPERIMENT-RUN, the names of an experiment and a run with
# a hyphen
_ID = 120
_BYTES = 150_000  # limit for all parameters together: Vertex accepts 200 kB of metadata
_SEND_S = 10.0  # seconds between two requests
# seconds after which the metrics are saved again, which also shows that the run is alive
_SAVE_S = 300.0
_OUTAGE_S = 1800.0  # seconds for which the thread repeats a request that fails


class VertexExperiments:
    """One run of an experiment; a resumed run continues the Vertex run named in
    RUN/trackers/vertex. Raises ConfigError.

    Images and texts are not sent. The pictures stay in the run folder.
    """

    name = "Vertex Experiments"

    def __init__(self, experiment: str, run: TrackedRun) -> None:
        self._folder, self._config = run.folder, run.config
        out = str(run.config.get("out", ""))
        # For a run folder in a bucket, ``run.folder`` is only its copy on this host.
        out = out.rstrip("/") if "://" in out else str(run.folder)
        row_params = {"name": run.name, "hash": run.hash, "out": out}
        board = str(run.config.get("log", {}).get("vertex_tensorboard", ""))
        try:
            place = Experiment(experiment)
            name = _run_name(run, place.name)
            self._run = ExperimentRun(place, name, params(run.config) | row_params, board)
            save_id(run.id_file("vertex"), name)
            place.api.patience_s = _OUTAGE_S
        except (SegtrainError, OSError) as error:
            problem, reason = (
                f"log.vertex={experiment}: cannot start a run: {error}",
                getattr(error, "code", ""),
            )
            raise ConfigError(
                problem,
                code="tracker-not-reached",
                key="log.vertex",
                value=experiment,
                reason=reason,
            ) from error
        self._points: list[tuple[float, int, Mapping[str, float]]] = []
        self._latest: dict[str, float] = {}
        self._status, self._saved = "running", time.monotonic()
        self._error: Exception | None = None
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="vertex-experiments", daemon=True)
        self._thread.start()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        if self._error is not None:
            raise self._error
        with self._lock:
            self._points.append((time.time(), step, dict(values)))

    def image(self, tag: str, image: np.ndarray, step: int) -> None: ...

    def text(self, tag: str, text: str) -> None: ...

    def close(self, status: str) -> None:
        """Wait for the thread to send the rest. Raises TimeoutError after ``FINISH_S`` seconds."""
        self._status = status
        self._closing.set()
        self._thread.join(FINISH_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the end of the run did not reach Vertex AI within {FINISH_S} s")
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            while not self._closing.wait(_SEND_S):
                self._send()
            self._send()
        # An error ends the tracker, not the run: the next call raises the error.
        except Exception as error:
            self._error = error

    def _send(self) -> None:
        with self._lock:
            points, self._points = self._points, []
        if points:
            self._run.write(points)
        for _, _, values in points:
            self._latest.update(values)
        scored = any("val/miou" in values for _, _, values in points)
        if scored or self._closing.is_set() or time.monotonic() - self._saved > _SAVE_S:
            self._saved = time.monotonic()
            self._run.save({STATE: STATES[self._status], METRICS: self._metrics()})

    def _metrics(self) -> dict[str, Any]:
        """The row of this run in the table of runs, and the last value of each time series."""
        row = run_row(self._folder, self._config, read_json(self._folder / "best.json"))
        row["warnings"] = json.dumps(row["warnings"]) if row["warnings"] else None
        columns = {
            key: row[key]
            for key in COLUMNS
            if key not in (*ROW_PARAMS, "status") and row[key] is not None
        }
        return {key: value for key, value in {**columns, **self._latest}.items() if _in_json(value)}


def params(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as numbers, booleans, and texts of at most 500 characters, or 60 if all together
    are too long.
    """
    for most in (500, 60):
        values = {
            key: value
            if isinstance(value, (bool, int, float)) and _in_json(value)
            else short_text(value, most)
            for key, value in leaves(config).items()
        }
        if len(json.dumps(values)) <= _BYTES:
            break
    return values


def _in_json(value: Any) -> bool:
    """Whether JSON can represent the value: JSON has no infinity and no NaN."""
    return not isinstance(value, float) or math.isfinite(value)


def _run_name(run: TrackedRun, experiment: str) -> str:
    """The name of the run: the name given by the Vertex job, else the stored name, else a new
    one.
    """
    name = os.environ.get("AIP_EXPERIMENT_RUN_NAME", "")
    if name and os.environ.get("AIP_EXPERIMENT_NAME", experiment).rpartition("/")[2] == experiment:
        # The job may give the full resource name, whose last part begins with the name of the
        # experiment.
        return name.rpartition("/")[2].removeprefix(f"{experiment}-") if "/" in name else name
    if saved := saved_id(run.id_file("vertex")):
        return saved
    # All attempts of a job have the same id, also on new machines.
    unique = os.environ.get("CLOUD_ML_JOB_ID") or uuid.uuid4().hex[:6]
    end = f"-{run.hash}-{unique}".lower() if run.hash else f"-{unique}".lower()
    title = re.sub(r"[^a-z0-9]+", "-", run.name.lower()).strip("-") or "run"
    return title[: max(1, _ID - len(experiment) - len(end))].strip("-") + end
