"""Maps of when each rank waited for data and for the other ranks, from the spans that it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from segtrain.errors import DataError
from segtrain.report.heat import NONE, Map
from segtrain.report.timeline import Axis
from segtrain.runs.folder import RunFolder, number

# Title, and the phases whose share of each window is shown.
WAITS = {
    "Waiting for data": ("wait",),
    "Waiting for other ranks": ("sync", "gradient_sync"),
}
_CELLS = 100_000
_COLUMNS = 1500


def read_waits(run: RunFolder, time: Axis) -> list[Map]:
    """One row per rank; empty for a run without spans. Waiting for other ranks only where there are several."""
    try:
        records = run.spans()
    except DataError:  # log.spans=false, or a run of an earlier version
        return []
    rows = [(f"rank {record.rank}", _windows(record.windows, time)) for record in records]
    rows = [(name, windows) for name, windows in rows if windows]
    if not rows:
        return []
    shortest = float(np.median([end - begin for begin, end, _ in rows[0][1]]))
    width = max(shortest, time.length / min(_COLUMNS, max(1, _CELLS // len(rows))), 1e-3)
    columns = int(time.length / width) + 1
    names = tuple(name for name, _ in rows)
    titles = list(WAITS) if len(rows) > 1 else list(WAITS)[:1]
    return [
        Map(title, names, width, np.stack([_row(windows, WAITS[title], width, columns) for _, windows in rows]))
        for title in titles
    ]


Window = tuple[float, float, Mapping[str, Any]]


def _windows(found: Sequence[Mapping[str, Any]], time: Axis) -> list[Window]:
    """Begin and end on the run's axis, and the phases."""
    kept = []
    for window in found:
        ts, seconds = number(window.get("ts")), number(window.get("seconds"))
        begin = time.at(ts) if ts is not None else None
        if begin is not None and seconds:
            kept.append((begin, begin + seconds, window["phases"]))
    return sorted(kept, key=lambda window: window[0])


def _row(windows: Sequence[Window], phases: Sequence[str], width: float, columns: int) -> np.ndarray:
    """Each column is the mean of the windows over it, by how much of it each one covers."""
    waited, covered = np.zeros(columns), np.zeros(columns)
    for begin, end, spent in windows:
        share = min(1.0, sum(number(spent.get(phase)) or 0.0 for phase in phases) / (end - begin))
        for column in range(int(begin / width), min(columns - 1, int(end / width)) + 1):
            part = min(end, (column + 1) * width) - max(begin, column * width)
            waited[column] += share * part
            covered[column] += part
    there = covered > 0.01 * width
    return np.where(there, np.rint(200 * waited / np.where(there, covered, 1)), NONE).astype(np.uint8)
