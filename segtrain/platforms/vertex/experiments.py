"""Client of Vertex AI Experiments (REST): experiments, their runs, and time series in a Vertex AI
TensorBoard.

It creates the same resources as google-cloud-aiplatform, so that get_experiment_df and the console
show them. An experiment and each of its runs are contexts in the metadata store. The metadata of a
run's context holds the parameters, metrics, and state of the run. An artifact links this context to
the run in the TensorBoard.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime, timezone
from typing import Any

from segtrain.errors import ConfigError, DataError
from segtrain.platforms.vertex.google_api import (
    AlreadyThere,
    GoogleApi,
    NotFound,
    known_project,
    known_region,
    vertex_url,
)

EXPERIMENT, RUN, VERSION = "system.Experiment", "system.ExperimentRun", "0.0.1"
PARAMS, METRICS, STATE = "_params", "_metrics", "_state"  # in the metadata of a run
STATES = {
    "new": "NEW",
    "running": "RUNNING",
    "done": "COMPLETE",
    "stopped": "CANCELLED",
    "failed": "FAILED",
}
NO_TENSORBOARD = "none"
_TENSORBOARD = "backing_tensorboard_resource"
_TENSORBOARD_LABELS = {"vertex_tensorboard_experiment_source": "vertex_experiment"}
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{3,127}")
_PLACE = re.compile(
    r"(?:projects/)?([^/]+)/(?:locations/)?([^/]+)/(?:metadataStores/default/contexts/)?([^/]+)"
)
_MOST_POINTS = 5000  # in one request
_POLL_S, _MADE_S = 1.0, 120.0  # seconds between two polls of an operation, and until it times out

Points = Sequence[tuple[float, int, Mapping[str, float]]]  # (Unix time, step, tag -> value)


class Experiment:
    """An experiment, given as ``NAME``, ``PROJECT/REGION/NAME``, or its full resource name.

    If ``text`` lacks project and region, they come from gcloud's environment variables, the Vertex
    job, or the credentials. No request goes to Vertex AI before a method is called. Raises
    ConfigError.
    """

    def __init__(self, text: str, patience_s: float = 60.0) -> None:
        match = _PLACE.fullmatch(text)
        project, region, self.name = match.groups() if match else ("", "", text)
        if not _NAME.fullmatch(self.name):
            fix = (
                "use 4 to 128 lowercase letters, digits, and hyphens, as in streets-2026, or "
                "PROJECT/REGION/NAME"
            )
            problem = f"{text!r} cannot be the name of a Vertex AI experiment: {fix}"
            raise ConfigError(problem, code="bad-experiment-name", value=text)
        jobs = os.environ.get("AIP_TENSORBOARD_RESOURCE_NAME", "").split("/")
        region = region or known_region() or (jobs[3] if len(jobs) > 3 else "")
        if not region:
            fix = f"set GOOGLE_CLOUD_REGION=us-central1, or name PROJECT/REGION/{self.name}"
            raise ConfigError(
                f"{text}: the region is not known: {fix}", code="no-google-region", value=text
            )
        self.api = GoogleApi(vertex_url(region), patience_s)
        project = project or known_project() or self.api.project or ""
        if not project:
            fix = f"set GOOGLE_CLOUD_PROJECT, or name PROJECT/REGION/{self.name}"
            raise ConfigError(
                f"{text}: the project is not known: {fix}", code="no-google-project", value=text
            )
        self.parent = f"projects/{project}/locations/{region}"
        self.store = f"{self.parent}/metadataStores/default"

    def context(self) -> dict[str, Any]:
        """The context of the experiment. Raises NotFound, or DataError if a context of another kind
        has its name.
        """
        context = self.api.get(f"{self.store}/contexts/{self.name}")
        if context.get("schemaTitle") != EXPERIMENT:
            problem = (
                f"{self.name} is a {context.get('schemaTitle')} in {self.store}, not an "
                "experiment: choose another"
            )
            raise DataError(problem, code="not-an-experiment", value=self.name)
        return context

    def contexts(self, schema: str, parent: str = "") -> Iterator[dict[str, Any]]:
        """All contexts with the schema title ``schema``; with ``parent``, only its children."""
        below = f' AND parent_contexts:"{parent}"' if parent else ""
        wanted = f'schema_title="{schema}"{below}'
        return self.api.pages(f"{self.store}/contexts", "contexts", filter=wanted, pageSize=1000)

    def ensure(self) -> dict[str, Any]:
        """The context of the experiment, which is created if it does not exist."""
        with contextlib.suppress(NotFound):
            return self.context()
        try:
            self.api.get(self.store)
        except NotFound:
            with contextlib.suppress(AlreadyThere):
                self._wait(
                    self.api.post(f"{self.parent}/metadataStores", {}, metadataStoreId="default")
                )
        body = {
            "displayName": self.name,
            "schemaTitle": EXPERIMENT,
            "schemaVersion": VERSION,
            "metadata": {"experiment_deleted": False},
        }
        with contextlib.suppress(AlreadyThere):
            self.api.post(f"{self.store}/contexts", body, contextId=self.name)
        return self.context()

    def tensorboard(self, wanted: str, context: Mapping[str, Any]) -> str:
        """The full name of the TensorBoard for time series; "" if ``wanted`` is ``none``.

        The choices, in this order, are ``wanted``, the TensorBoard of the Vertex job, the
        experiment's TensorBoard, and the region's default TensorBoard, which is created if there is
        none. Raises ConfigError if one of the first two is set but does not exist.
        """
        if wanted == NO_TENSORBOARD:
            return ""
        requested = wanted or os.environ.get("AIP_TENSORBOARD_RESOURCE_NAME", "")
        configured = requested or context.get("metadata", {}).get(_TENSORBOARD) or ""
        if configured:
            name = configured if "/" in configured else f"{self.parent}/tensorboards/{configured}"
            try:
                return str(self.api.get(name)["name"])
            except NotFound as error:
                if requested:
                    fix = (
                        "`gcloud ai tensorboards list` lists them; it must be in the region of "
                        "the experiment"
                    )
                    problem = f"there is no TensorBoard {name} ({error}): {fix}"
                    raise ConfigError(problem, code="no-tensorboard", value=configured) from None
        default = next(
            self.api.pages(f"{self.parent}/tensorboards", "tensorboards", filter="is_default=true"),
            None,
        )
        if default is None:
            body = {"displayName": "Default Tensorboard", "isDefault": True}
            default = self._wait(self.api.post(f"{self.parent}/tensorboards", body))
        return str(default["name"])

    def _wait(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Wait for the result of a long-running operation. Raises DataError if it fails or takes
        too long.
        """
        first = time.monotonic()
        while not operation.get("done"):
            if time.monotonic() - first > _MADE_S:
                problem = (
                    f"{operation['name']} has not ended after {_MADE_S:.0f} s: try again later"
                )
                raise DataError(problem, code="google-too-slow", value=operation["name"])
            time.sleep(_POLL_S)
            operation = self.api.get(operation["name"])
        if "error" in operation:
            said = operation["error"].get("message", "")
            raise DataError(
                f"{operation['name']} failed: {said}",
                code="google-refused",
                value=operation["name"],
            )
        return dict(operation.get("response", {}))


class ExperimentRun:
    """A run of an experiment. The run is created, or continued if it exists.

    ``tensorboard`` is the argument ``wanted`` of Experiment.tensorboard.
    """

    def __init__(
        self, experiment: Experiment, name: str, params: Mapping[str, Any], tensorboard: str = ""
    ) -> None:
        self._api, self._store = experiment.api, experiment.store
        parent = experiment.ensure()
        board = experiment.tensorboard(tensorboard, parent)
        if board and not parent.get("metadata", {}).get(_TENSORBOARD):
            # Another run has changed the experiment in the meantime.
            with contextlib.suppress(AlreadyThere):
                self._patch(parent, {_TENSORBOARD: board})
        metadata = {PARAMS: dict(params), METRICS: {}, STATE: STATES["running"]}
        body = {
            "displayName": name,
            "schemaTitle": RUN,
            "schemaVersion": VERSION,
            "metadata": metadata,
        }
        id = f"{experiment.name}-{name}"
        try:
            self._context = self._api.post(f"{self._store}/contexts", body, contextId=id)
        except AlreadyThere:
            self._context = self._api.get(f"{self._store}/contexts/{id}")
            if self._context.get("schemaTitle") != RUN:
                problem = f"{self._context['name']} exists and is not a run: set another name="
                raise DataError(problem, code="not-a-run", value=id) from None
            self.save(metadata)
        self._series: dict[str, str] = {}
        self._board = self._ensure_board(board, experiment.name, name) if board else ""
        if parent["name"] not in self._context.get("parentContexts", ()):
            self._api.post(
                f"{parent['name']}:addContextChildren", {"childContexts": [self._context["name"]]}
            )

    def _ensure_board(self, board: str, experiment: str, name: str) -> str:
        """Create the TensorBoard run and the artifact that links it to this run. Returns the
        TensorBoard run's name.
        """
        body = {"displayName": experiment, "labels": _TENSORBOARD_LABELS}
        with contextlib.suppress(AlreadyThere):
            self._api.post(f"{board}/experiments", body, tensorboardExperimentId=experiment)
        run = f"{board}/experiments/{experiment}/runs/{name}"
        try:
            self._api.post(
                f"{board}/experiments/{experiment}/runs",
                {"displayName": name},
                tensorboardRunId=name,
            )
        except AlreadyThere:
            self._list_series(run)
        artifact = {
            "uri": f"{self._api.url}/{run}",
            "schemaTitle": "google.VertexTensorboardRun",
            "schemaVersion": VERSION,
            "state": "LIVE",
            "metadata": {"resourceName": run, "vertex_experiment_tracking": True},
        }
        id = f"{experiment}-{name}-tb-run"
        try:
            made = self._api.post(f"{self._store}/artifacts", artifact, artifactId=id)
        except AlreadyThere:
            made = self._api.get(f"{self._store}/artifacts/{id}")
        # An artifact that already existed is linked too, because its creator may have been killed
        # before it linked it. Linking an artifact twice changes nothing.
        body = {"artifacts": [made["name"]]}
        self._api.post(f"{self._context['name']}:addContextArtifactsAndExecutions", body)
        return run

    def save(self, metadata: Mapping[str, Any]) -> None:
        """Merge ``metadata`` into the metadata of the run. Mappings inside it are merged, too."""
        try:
            self._context = self._patch(self._context, metadata)
        except AlreadyThere:  # Another process has changed it in the meantime.
            self._context = self._patch(self._api.get(self._context["name"]), metadata)

    def _patch(self, context: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
        merged = {**context.get("metadata", {})}
        for key, value in metadata.items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, Mapping) else value
        body = {key: value for key, value in context.items() if key != "name"} | {
            "metadata": merged
        }
        return self._api.patch(str(context["name"]), body)

    def write(self, points: Points) -> None:
        """Write points of time series. A point replaces an earlier point of its series at the same
        step.

        Does nothing if the run has no TensorBoard.
        """
        if not self._board:
            return
        values = []
        for moment, step, tags in points:
            at = datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="milliseconds")
            for tag, value in tags.items():
                point = {
                    "wallTime": at.replace("+00:00", "Z"),
                    "step": str(step),
                    "scalar": {"value": value},
                }
                values.append((tag, point))
        self._make_series({tag for tag, _ in values})
        for begin in range(0, len(values), _MOST_POINTS):
            series: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for tag, point in values[begin : begin + _MOST_POINTS]:
                series[tag].append(point)
            data = [
                {
                    "tensorboardTimeSeriesId": self._series[tag],
                    "valueType": "SCALAR",
                    "values": items,
                }
                for tag, items in series.items()
            ]
            self._api.post(f"{self._board}:write", {"timeSeriesData": data})

    def _make_series(self, tags: Set[str]) -> None:
        """Create the series that do not exist. Another process, or a request without an answer, may
        have done it.
        """
        missing = sorted(tags - self._series.keys())
        if not missing:
            return
        requests = [
            {
                "parent": self._board,
                "tensorboardTimeSeries": {
                    "displayName": tag,
                    "valueType": "SCALAR",
                    "pluginName": "scalars",
                },
            }
            for tag in missing
        ]
        try:
            made = self._api.post(
                f"{self._board.rpartition('/runs/')[0]}:batchCreate", {"requests": requests}
            )
            self._know(made.get("tensorboardTimeSeries", ()))
        except AlreadyThere:
            self._list_series(self._board)
            if not self._series.keys() & set(missing):
                raise
            self._make_series(tags)

    def _list_series(self, run: str) -> None:
        self._know(self._api.pages(f"{run}/timeSeries", "tensorboardTimeSeries", pageSize=1000))

    def _know(self, series: Iterable[Mapping[str, Any]]) -> None:
        self._series.update(
            {item["displayName"]: item["name"].rpartition("/")[2] for item in series}
        )
