"""Charts of a run as HTML: each with its description and its table.

Each function adds the data of its chart to the dict ``charts``, under the id of the figure.
report.js draws it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from segtrain.base.units import duration, percent, short_seconds
from segtrain.insight.report import heat
from segtrain.insight.report.html import figure, figures, table, thinned
from segtrain.insight.report.timeline import (
    PHASES,
    Lap,
    Stretch,
    TimeAxis,
    quantiles,
    steady,
    words,
)
from segtrain.insight.runs.folder import Event, RunFolder
from segtrain.observe.scores import Score

Chart = dict[str, Any]
Charts = dict[str, Chart]  # by the id of the figure
Points = Sequence[tuple[int, float]]  # step, value
Curve = tuple[str, str, Points]  # label, color, points
LOOP, STEPS = "What the loop did", "Time of a step"  # titles
KINDS = {"start": "start-up", "eval": "evaluation", "checkpoint": "checkpoint"}
# Phases that have their own color in report.css. Color-blind readers can tell these colors apart
# (Okabe and Ito).
COLORS = {*PHASES, *KINDS}


def clock(run: RunFolder, time: TimeAxis) -> Chart:
    """Maps seconds of the run to steps, so that charts over steps and charts over time zoom
    together.
    """
    points = [(at, step["step"]) for step in run.steps if (at := time.at(step["ts"])) is not None]
    shown = thinned(
        [*points[:1], *(point for before, point in pairwise(points) if point[0] > before[0])], 2000
    )
    return {
        "t": [round(at, 3) for at, _ in shown],
        "step": [step for _, step in shown],
        "end": round(time.length, 3),
    }


def loop(charts: Charts, parts: Sequence[Stretch], names: Sequence[str], time: TimeAxis) -> str:
    """Chart of the share of time that each phase of the loop took, over the time of the run."""
    stops = [kind for kind in KINDS if any(piece.kind == kind for piece in parts)]
    series = [(name, words(name)) for name in names] + [(kind, KINDS[kind]) for kind in stops]
    wall = Counter[str]()
    for piece in parts:
        wall.update(
            {name: (piece.end - piece.begin) * share for name, share in piece.shares.items()}
        )
    total = sum(wall.values()) or 1.0
    rows = [(label, duration(wall[name]), percent(wall[name] / total)) for name, label in series]
    percents = [{name: 100 * share for name, share in piece.shares.items()} for piece in parts]
    charts["loop"] = _stack(time, parts, percents, series, "%", 130, 100)
    numbers = table(("what", "time", "share"), rows)
    return figure("loop", LOOP, numbers, "share of the time, each stretch between two log lines")


def steps(
    charts: Charts,
    parts: Sequence[Stretch],
    laps: Sequence[Lap],
    names: Sequence[str],
    time: TimeAxis,
) -> str:
    """Milliseconds of each phase of a step, stacked over time."""
    series = [(name, words(name)) for name in names]
    rows = []
    for lap in thinned(laps):
        mean = lap.mean
        rows.append(
            (
                lap.step,
                *map(short_seconds, (sum(mean.values()), *(mean.get(name, 0.0) for name in names))),
            )
        )
    numbers = table(("until step", "step time", *(label for _, label in series)), rows)
    # A slow first lap would make all others look flat, so the axis ends just above the steady laps.
    longest = max(sum(lap.mean.values()) for lap in steady(laps))
    ms = [
        {name: 1000 * s for name, s in piece.lap.mean.items()} if piece.lap else {}
        for piece in parts
    ]
    charts["steptime"] = _stack(time, parts, ms, series, "ms", 240, 1150 * longest)
    return figure("steptime", STEPS, numbers, "milliseconds, the phases on top of each other")


def _stack(
    time: TimeAxis,
    parts: Sequence[Stretch],
    values: Sequence[Mapping[str, float]],
    series: Sequence[tuple[str, str]],
    unit: str,
    height: int,
    top: float,
) -> Chart:
    """Data of a stacked chart. Each stretch goes from ``x`` to ``ends``; a time without a stretch
    stays empty.
    """
    drawn = [(time.at(piece.begin), time.at(piece.end), row) for piece, row in zip(parts, values)]
    shown = [
        (begin, end, row) for begin, end, row in drawn if begin is not None and end is not None
    ]
    extra = [name for name, _ in series if name not in COLORS]
    return {
        "type": "stack",
        "axis": "time",
        "unit": unit,
        "height": height,
        "top": figures(top),
        "x": [round(begin, 3) for begin, _, _ in shown],
        "ends": [round(end, 3) for _, end, _ in shown],
        "series": [
            {
                "label": label,
                "color": f"extra{extra.index(name) % 3 + 1}" if name in extra else name,
                "y": [figures(row.get(name)) for _, _, row in shown],
            }
            for name, label in series
        ],
    }


def spread(charts: Charts, laps: Sequence[Lap], names: Sequence[str]) -> str:
    steady_laps = steady(laps)
    times = [lap.seconds / lap.steps for lap in steady_laps]
    columns = [
        ("whole step", times),
        *((words(name), [lap.mean.get(name, 0.0) for lap in steady_laps]) for name in names),
    ]
    rows = [
        (name, *map(short_seconds, quantiles(values, 0.1, 0.5, 0.9, 1.0)))
        for name, values in columns
    ]
    numbers = table(("phase", "10 %", "median", "90 %", "longest"), rows)
    # The last of at most 40 bins also has the largest hundredth of the times.
    low = 1000 * min(times)
    most = max(1000 * quantiles(times, 0.99)[0], 1010 * min(times))
    edges = np.linspace(low, most, max(1, min(40, len(times) // 2)) + 1)
    marks = [
        (1000 * value, label)
        for value, label in zip(quantiles(times, 0.5, 0.9), ("median", "90 %"))
    ]
    charts["spread"] = _histogram(
        [min(1000 * value, most) for value in times], edges, "ms", "stretches", marks
    )
    each = (
        ""
        if all(lap.steps == 1 for lap in steady_laps)
        else ", each the mean of the steps between two log lines"
    )
    return figure(
        "spread", "Distribution of step times", numbers, f"{len(steady_laps)} stretches{each}"
    )


def image_scores(charts: Charts, values: Sequence[float], note: str) -> str:
    """Histogram of the mIoU of single images: ``values`` in [0, 1], at least one."""
    shares = [100 * value for value in values]
    width = next((width for width in (1, 2) if (max(shares) - min(shares)) / width <= 30), 5)
    first, last = (
        min(int(share // width), 100 // width - 1) for share in (min(shares), max(shares))
    )
    names = ("worst", "10 %", "median", "90 %", "best")
    cuts = quantiles(shares, 0.0, 0.1, 0.5, 0.9, 1.0)
    numbers = table(names, [tuple(f"{value:.1f} %" for value in cuts)], left=())
    marks = [(cuts[1], "one in ten below"), (cuts[2], "median")]
    charts["imagescores"] = _histogram(
        shares, np.arange(first, last + 2) * width, "%", "images", marks
    )
    return figure("imagescores", "Distribution of the images' mIoU", numbers, note)


def _histogram(
    values: Sequence[float],
    edges: np.ndarray,
    unit: str,
    label: str,
    marks: Sequence[tuple[float, str]],
) -> Chart:
    counts, _ = np.histogram(values, edges)
    width = float(edges[1] - edges[0])
    return {
        "type": "bars",
        "axis": "value",
        "unit": unit,
        "height": 190,
        "width": figures(width),
        "x": [figures(float(edge) + width / 2) for edge in edges[:-1]],
        "marks": [{"x": figures(value), "label": text} for value, text in marks],
        "series": [{"label": label, "color": "forward", "y": counts.tolist()}],
    }


def lines(
    charts: Charts,
    key: str,
    title: str,
    series: Sequence[Curve],
    *,
    unit: str = "",
    height: int = 220,
    points: bool = False,
    log: bool = False,
) -> str:
    """Curves over steps. Empty if there are no values."""
    drawn: list[dict[str, Any]] = []
    rows: dict[int, dict[str, str]] = {}
    for label, color, curve in series:
        for step, y in curve:
            rows.setdefault(step, {})[label] = f"{y:.4g}"
        if curve:
            steps, values = zip(*thinned(curve, 1500))
            drawn.append(
                {"label": label, "color": color, "x": steps, "y": [figures(y, 5) for y in values]}
            )
    if not drawn:
        return ""
    labels = [item["label"] for item in drawn]
    cells = [
        (step, *(row.get(label, "") for label in labels))
        for step, row in thinned(sorted(rows.items()))
    ]
    # Only a logarithmic axis shows both the first fall of a loss and its small changes later. It
    # cannot show zero.
    log = log and all(y > 0 for item in drawn for y in item["y"])
    charts[key] = {
        "type": "lines",
        "axis": "step",
        "unit": unit,
        "height": height,
        "points": points,
        "log": log,
        "series": drawn,
    }
    note = "logarithmic axis" if log else "the axis is cut to the range of the values"
    return figure(key, title, table(("step", *labels), cells, left=()), note)


def curve(events: Sequence[Event], name: str) -> Points:
    """One of the numbers of these events over steps."""
    return [(event["step"], event[name]) for event in events if event.get(name) is not None]


def scores(evals: Sequence[Event], score: Score) -> Points:
    """A score over steps, in percent if it is a share."""
    return [
        (event["step"], score.scale * event["scores"][score.key])
        for event in evals
        if event["scores"].get(score.key) is not None
    ]


def heat_map(charts: Charts, key: str, grid: heat.Map, what: str) -> str:
    means = grid.means()
    numbers = table(
        ("", f"mean {what}"),
        [(row, percent(None if m is None else m / 100)) for row, m in zip(grid.rows, means)],
    )
    cell = (
        22
        if len(grid.rows) <= 10
        else 14
        if len(grid.rows) <= 24
        else 7
        if len(grid.rows) <= 64
        else 4
    )
    charts[key] = {
        "type": "heat",
        "axis": "time",
        "unit": "%",
        "height": cell * len(grid.rows) + 44,
        "rows": grid.rows,
        "width": grid.width,
        "columns": grid.cells.shape[1],
        "cells": grid.encoded(),
    }
    note = f"percent {what} of each over time" if what == "use" else f"{what} over time"
    return figure(key, grid.title, numbers, note)
