"""The page of the differences between runs, with their curves and heat maps side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from segtrain.insight.report import charts
from segtrain.insight.report.diff import Comparison, DiffRow, compare, console, names, sentences
from segtrain.insight.report.heat import read_maps
from segtrain.insight.report.html import esc, page, table, utc
from segtrain.insight.report.page import write
from segtrain.insight.report.timeline import axis
from segtrain.insight.runs.folder import RunFolder, load
from segtrain.observe.journal import Say, say_on_stderr

MARKS = {1: "up", -1: "down", 0: ""}
# Colors of the runs, from report.css; color-blind readers can tell the first ones apart.
COLORS = ("a", "b", "update", "sync", "eval", "checkpoint", "log", "forward")


def diff(
    folders: Sequence[str | Path],
    out: Path | None = None,
    say: Say = say_on_stderr,
) -> str:
    """The table for the console; the page goes to ``out`` if given. Raises DataError for a folder
    without a run.
    """
    comparison = compare([load(folder, say) for folder in folders])
    if out is not None:
        write(out, render(comparison, say))
    return console(comparison)


def render(comparison: Comparison, say: Say = say_on_stderr) -> str:
    runs, titles = comparison.runs, names(comparison.runs)
    # All charts zoom to the same steps, by the clock of the longest run.
    longest = max(runs, key=lambda run: run.steps[-1]["step"] if run.steps else 0)
    drawn: charts.Charts = {
        "clock": {**charts.clock(longest, axis(longest.events)), "steps_only": True}
    }

    def curves(points: Callable[[RunFolder], charts.Points]) -> list[charts.Curve]:
        return [
            (f"{letter} {title}", _color(number), points(run))
            for number, (letter, title, run) in enumerate(zip(comparison.letters, titles, runs))
        ]

    best_by = runs[0].best_by
    losses = curves(lambda run: charts.curve(run.steps, "loss"))
    learning = charts.lines(drawn, "loss", "Loss", losses, log=True)
    scores = curves(lambda run: charts.scores(run.evals, best_by))
    title = f"{best_by.words} on the validation split"
    learning += charts.lines(drawn, "miou", title, scores, unit=best_by.unit, points=True)
    rates = curves(lambda run: charts.curve(run.steps, "images_per_s"))
    prose = "".join(f"<p>{esc(sentence)}</p>" for sentence in sentences(comparison))
    tables = _rows("", comparison.figures) + _rows("mean in a step", comparison.stages)
    who = "".join(_who(number, run) for number, run in enumerate(runs))
    heading = " and ".join(titles) if len(runs) == 2 else f"{len(runs)} runs"
    sections = [
        ("", "", f"<h1>{esc(heading)}</h1>{who}"),
        ("summary", "Summary", f'<div class="prose">{prose}</div><div class="side">{tables}</div>'),
        ("config", "Config", _facts(comparison.config, "config")),
        ("learning", "Learning", learning),
        ("classes", "Classes", _rows("class", comparison.classes, "IoU, best evaluation of each")),
        ("speed", "Speed", charts.lines(drawn, "rate", "Images/s", rates)),
        ("when", "Over time", _heat_maps(drawn, comparison, say)),
        ("environment", "Environment", _facts(comparison.environment, "environment")),
        ("data", "Data", _facts(comparison.data, "data and protocol")),
    ]
    return page(f"{heading}: difference", sections, drawn)


def _color(number: int) -> str:
    return COLORS[number % len(COLORS)]


def _heat_maps(drawn: charts.Charts, comparison: Comparison, say: Say) -> str:
    """The maps of GPUs and cores, those of all runs side by side, on one scale of time."""
    times = [axis(run.events) for run in comparison.runs]
    end = max(time.length for time in times)
    by_title = [
        {grid.title: grid for grid in read_maps(run, time, say)}
        for run, time in zip(comparison.runs, times)
    ]
    html = ""
    for row, title in enumerate(dict.fromkeys(title for grids in by_title for title in grids)):
        figures = ""
        for letter, run, time, grids in zip(comparison.letters, comparison.runs, times, by_title):
            if title not in grids:
                figures += f"<p class=blank>{letter}: no readings of {esc(title)}</p>"
                continue
            key, grid = f"heat{row}{letter}", replace(grids[title], title=f"{letter}: {title}")
            figures += charts.heat_map(drawn, key, grid, "use")
            drawn[key]["clock"] = {**charts.clock(run, time), "end": end}
        html += f'<div class="beside">{figures}</div>'
    return html


def _who(number: int, run: RunFolder) -> str:
    hash_text = f"#{run.row['hash']} · " if run.row["hash"] else ""
    letter = chr(ord("A") + number)
    mark = f'<b class="letter" style="background:var(--{_color(number)})">{letter}</b>'
    return (
        f"<p class=quiet>{mark} {esc(hash_text)}{esc(run.folder)} · "
        f"{utc(run.row['started'] or 0)}</p>"
    )


def _rows(what: str, rows: Sequence[DiffRow], caption: str = "") -> str:
    if not rows:
        return ""
    letters = [chr(ord("A") + number) for number in range(len(rows[0].texts))]
    two = len(letters) == 2
    cells = [(row.what, *row.texts, *([row.change] if two else [])) for row in rows]
    return table(
        (what, *letters, *(["B to A"] if two else [])),
        cells,
        kind="pair",
        caption=caption,
        heads=True,
        marks=[MARKS[row.better] for row in rows],
    )


def _facts(rows: Sequence[DiffRow], what: str) -> str:
    if not rows:
        return f"<p class=quiet>No difference in {esc(what)}.</p>"
    letters = [chr(ord("A") + number) for number in range(len(rows[0].texts))]
    cells = [(row.what, *row.texts) for row in rows]
    left = range(len(letters) + 1)
    return table(("", *letters), cells, left=left, kind="facts two", heads=True)
