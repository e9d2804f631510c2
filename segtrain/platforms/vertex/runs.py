"""Table of the runs of a Vertex AI experiment (``vertex:EXPERIMENT``), from its metadata, without
files of the runs.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from shlex import quote
from typing import Any

from segtrain.errors import DataError, closest, some_of
from segtrain.insight.runs.remote import unknown_place
from segtrain.observe.run_row import COLUMNS, number
from segtrain.platforms.vertex.experiments import (
    EXPERIMENT,
    METRICS,
    PARAMS,
    RUN,
    STATE,
    STATES,
    Experiment,
)
from segtrain.platforms.vertex.google_api import NotFound

VERTEX = "vertex:"
_PATIENCE_S = 20.0  # seconds for which a failing request is repeated
# After this time without an update, a run counts as killed: a live run updates every 5 minutes.
_ALIVE_S = 900.0
_WHOLE = ("step", "steps", "classes", "classes_present", "best_step", "ranks", "batch")
_STATUS = {state: status for status, state in STATES.items()}


def experiment_rows(location: str) -> list[dict[str, Any]]:
    """One row per run of an experiment, the oldest first, with the keys of ``COLUMNS``; unknown
    values are None.

    Raises SegtrainError if there are no credentials or no such experiment, or if Vertex AI denies
    access or is unreachable.
    """
    experiment = Experiment(location.removeprefix(VERTEX), _PATIENCE_S)
    try:
        parent = experiment.context()["name"]
    except NotFound:
        raise _no_experiment(experiment) from None
    rows = [_row(context, experiment.name) for context in experiment.contexts(RUN, parent)]
    return sorted(rows, key=lambda row: (row["started"], row["out"]))


def no_folders(location: str) -> list[str]:
    """Raises ConfigError: an experiment has no files."""
    table = f"segtrain runs {quote(location)}"
    fix = f"an experiment has no files: `{table}` prints the folder of each run: name that folder"
    raise unknown_place(location, fix)


def _row(context: Mapping[str, Any], experiment: str) -> dict[str, Any]:
    """The row of one run. If another program wrote it, metrics with the same names and types are
    taken.
    """
    metadata = context.get("metadata", {})
    params, metrics = metadata.get(PARAMS) or {}, metadata.get(METRICS) or {}
    name = str(context.get("displayName") or context["name"].rpartition("/")[2])
    row: dict[str, Any] = {key: number(metrics.get(key)) for key in COLUMNS}
    row |= {key: int(row[key]) for key in _WHOLE if row[key] is not None}
    ours = isinstance(params.get("hash"), str) and isinstance(params.get("out"), str)
    return row | {
        "name": params["name"] if ours and isinstance(params.get("name"), str) else name,
        "hash": params["hash"] or None if ours else None,
        "strategy": metrics.get("strategy"),
        "status": _status(str(metadata.get(STATE, "")), context, ours),
        "started": row["started"]
        if row["started"] is not None
        else _seconds(context, "createTime"),
        "warnings": _warnings(metrics.get("warnings")),
        "out": params["out"] if ours else f"{VERTEX}{experiment}/{name}",
    }


def _status(state: str, context: Mapping[str, Any], ours: bool) -> str:
    """The status for the table of runs. A segtrain run in the state running without a recent update
    was killed.
    """
    if (
        ours
        and state == STATES["running"]
        and time.time() - _seconds(context, "updateTime") > _ALIVE_S
    ):
        return "killed"
    return _STATUS.get(state, state.lower() or "unknown")


def _seconds(context: Mapping[str, Any], key: str) -> float:
    """Unix time of a field such as 2026-11-23T04:51:58.469366Z, in whole seconds; 0 without it."""
    try:
        moment = datetime.strptime(str(context.get(key))[:19], "%Y-%m-%dT%H:%M:%S")
        return moment.replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return 0.0


def _warnings(text: Any) -> list[str]:
    """The warnings of a run of segtrain, as JSON; none of a run of another program."""
    with contextlib.suppress(ValueError, TypeError):
        return list(map(str, json.loads(text)))
    return []


def _no_experiment(experiment: Experiment) -> DataError:
    try:
        names = [context["name"].rpartition("/")[2] for context in experiment.contexts(EXPERIMENT)]
    except NotFound:  # A project without any experiment has no metadata store.
        names = []
    near = closest(experiment.name, names)
    hint = (
        f"did you mean {near}?"
        if near
        else f"there are {some_of(names)}"
        if names
        else "there are none yet"
    )
    problem = f"{experiment.name}: there is no such experiment in {experiment.parent}: {hint}"
    return DataError(
        problem, code="no-experiment", value=experiment.name, parent=experiment.parent, found=names
    )
