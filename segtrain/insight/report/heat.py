"""Heat maps over the time of a run: cores and GPUs from the system profile, and the waits of ranks
from their spans.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from segtrain.errors import DataError
from segtrain.insight.report.timeline import TimeAxis
from segtrain.insight.runs.folder import RunFolder
from segtrain.observe.journal import Say, say_on_stderr
from segtrain.observe.profile_format import Series, Track

# begin and end in seconds on the run's axis, and the phases
TimedPhases = tuple[float, float, Mapping[str, Any]]
Rows = list[tuple[str, list[Track]]]  # names, each with the tracks whose mean it shows
NONE = 255  # value of a cell without a reading; other cells hold percent times two, 0 to 200
GPUS = "GPUs"
_CELLS = 300_000  # of one map: 400 kB in the page
_WAIT_CELLS = 100_000
_COLUMNS = 1500
# Title of each map of the ranks' waits -> the phases that count as such a wait. A map shows their
# share of each window.
WAITS = {"Waiting for data": ("wait",), "Waiting for other ranks": ("sync", "gradient_sync")}


@dataclass(frozen=True)
class Map:
    """``cells`` uint8 (rows, columns); column k covers ``width`` seconds of the run from ``k *
    width`` on.
    """

    title: str
    rows: tuple[str, ...]
    width: float
    cells: np.ndarray

    def encoded(self) -> str:
        return base64.b64encode(self.cells.tobytes()).decode("ascii")

    def means(self) -> list[float | None]:
        """Mean percent of each row, over its readings; None for a row without readings."""
        means = np.ma.masked_equal(self.cells, NONE).astype(np.float64).mean(axis=1) / 2
        return [None if np.ma.is_masked(value) else float(value) for value in means]


def read_maps(run: RunFolder, time: TimeAxis, say: Say = say_on_stderr) -> list[Map]:
    """Maps of the GPUs of all hosts, of their memory, and of the cores of each host; empty without
    a profile.

    The profile may be anywhere in the folder: in the folder of a SageMaker job, it is beside the
    run.
    """
    if not time.parts:
        return []
    tracks = run.profile(time.parts[0][0] - 2, time.parts[-1][1] + 2, say)
    return [
        heat_map
        for title, rows in _groups(tracks)
        if (heat_map := _map(title, rows, time)) is not None
    ]


def _groups(tracks: Mapping[Series, Track]) -> list[tuple[str, Rows]]:
    """Title and rows of each map; a row is the mean of its tracks."""
    nodes = sorted({series.node for series in tracks}, key=_natural)
    several = len(nodes) > 1
    gpu_rows: dict[str, Rows] = {
        "GPUUtilization": [],
        "GPUMemoryUtilization": [],
    }
    cores = []
    for node in nodes:
        own = {series: track for series, track in tracks.items() if series.node == node}
        rows: Rows = []
        for series in sorted(own, key=lambda series: _natural(series.name)):
            if series.dimension in gpu_rows:
                # One map shows the GPUs of all hosts. Its row labels must be short, to fit beside
                # the map.
                name = f"{node.removeprefix('algo-')}: {series.name}" if several else series.name
                gpu_rows[series.dimension].append((name, [own[series]]))
            elif series.dimension == "CPUUtilization":
                rows.append((series.name, [own[series]]))
        waits = [track for series, track in own.items() if series.dimension == "I/OWaitPercentage"]
        memory = [
            track
            for series, track in own.items()
            if series.name == "MemoryUsedPercent" and not series.dimension
        ]
        rows += [row for row in (("disk wait", waits), ("memory", memory)) if row[1]]
        cores.append((f"Cores of {node}" if several else "Cores", rows))
    return [
        group for group in [*zip((GPUS, "Memory of GPUs"), gpu_rows.values()), *cores] if group[1]
    ]


def _natural(text: str) -> list[tuple[int, str]]:
    """Sort key that puts cpu2 before cpu10."""
    return [
        (int(part), "") if part.isdigit() else (-1, part)
        for part in re.split(r"(\d+)", text)
        if part
    ]


def _map(title: str, rows: Rows, time: TimeAxis) -> Map | None:
    gaps = np.diff(np.asarray(rows[0][1][0].times))
    # A reading sometimes comes a little late: a column has two, so that none stays empty.
    width, columns = _grid(
        time, 2 * float(np.median(gaps)) if len(gaps) else 1.0, _CELLS // len(rows)
    )
    cells = np.stack([_row(tracks, time, width, columns) for _, tracks in rows])
    return (
        Map(title, tuple(name for name, _ in rows), width, cells) if (cells != NONE).any() else None
    )


def _grid(time: TimeAxis, least: float, most: int) -> tuple[float, int]:
    """Seconds per column, at least ``least``, and the number of columns, at most about ``most``."""
    width = max(least, time.length / min(_COLUMNS, max(1, most)), 1e-3)
    return width, int(time.length / width) + 1


def _row(tracks: Sequence[Track], time: TimeAxis, width: float, columns: int) -> np.ndarray:
    sums, counts = np.zeros(columns), np.zeros(columns)
    for track in tracks:
        times, values = np.asarray(track.times), np.asarray(track.values)
        before = 0.0
        for begin, end in time.parts:
            inside = (times >= begin) & (times <= end)
            column = np.minimum(
                ((times[inside] - begin + before) / width).astype(np.int64), columns - 1
            )
            sums += np.bincount(column, values[inside], columns)
            counts += np.bincount(column, minlength=columns)
            before += end - begin
    percent = sums / np.maximum(counts, 1)
    return np.where(counts > 0, np.clip(np.rint(2 * percent), 0, 200), NONE).astype(np.uint8)


def read_waits(run: RunFolder, time: TimeAxis) -> list[Map]:
    """Maps of waits, with one row per rank; empty for a run without spans.

    A run with only one rank has no map of waits for other ranks.
    """
    try:
        records = run.spans()
    except DataError:  # log.spans=false, or a run of an earlier version
        return []
    rows: dict[str, list[TimedPhases]] = {}
    for record in records:
        begins = [(time.at(window["ts"]), window) for window in record.windows if window["seconds"]]
        windows = [
            (begin, begin + w["seconds"], w["phases"]) for begin, w in begins if begin is not None
        ]
        if windows:
            rows[f"rank {record.rank}"] = windows
    if not rows:
        return []
    shortest = float(np.median([end - begin for begin, end, _ in next(iter(rows.values()))]))
    width, columns = _grid(time, shortest, _WAIT_CELLS // len(rows))
    maps = []
    for title, phases in list(WAITS.items())[: len(rows)]:  # A single rank waits for no other.
        cells = [_waits(windows, phases, width, columns) for windows in rows.values()]
        maps.append(Map(title, tuple(rows), width, np.stack(cells)))
    return maps


def _waits(
    windows: Sequence[TimedPhases], phases: Sequence[str], width: float, columns: int
) -> np.ndarray:
    """The cells of a row. Each column is the mean of the windows that overlap it, weighted by the
    overlap.
    """
    waited, covered = np.zeros(columns), np.zeros(columns)
    for begin, end, spent in windows:
        share = min(1.0, sum(spent.get(phase, 0.0) for phase in phases) / (end - begin))
        for column in range(int(begin / width), min(columns - 1, int(end / width)) + 1):
            part = min(end, (column + 1) * width) - max(begin, column * width)
            waited[column] += share * part
            covered[column] += part
    measured = covered > 0.01 * width
    return np.where(measured, np.rint(200 * waited / np.where(measured, covered, 1)), NONE).astype(
        np.uint8
    )
