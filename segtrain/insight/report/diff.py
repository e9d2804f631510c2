"""The page of the differences between two runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from segtrain import __version__
from segtrain.insight.report import charts
from segtrain.insight.report.compare import Comparison, DiffRow, compare, console, names, sentences
from segtrain.insight.report.html import esc, page, table, utc
from segtrain.insight.report.page import write
from segtrain.insight.report.timeline import axis
from segtrain.insight.runs.folder import Event, RunFolder, load
from segtrain.observe.journal import say_on_stderr

MARKS = {1: "up", -1: "down", 0: ""}


def diff(a: str | Path, b: str | Path, out: Path | None = None, say: Callable[[str], None] = say_on_stderr) -> str:
    """The table for the console; the page goes to ``out`` if given. Raises DataError for a folder without a run."""
    found = compare(load(a, say), load(b, say))
    if out is not None:
        write(out, render(found))
    return console(found)


def render(found: Comparison) -> str:
    a, b = found.a, found.b
    # The charts zoom together by the clock of the longer run. All of them are over steps, none over time.
    longer = max((a, b), key=lambda run: run.steps[-1]["step"] if run.steps else 0)
    drawn: charts.Charts = {"clock": {**charts.clock(longer, axis(longer.events)), "steps_only": True}}
    name_a, name_b = names(a, b)

    def of_both(events: str, value: Callable[[Event], float | None]) -> list[charts.Curve]:
        return [(f"A {name_a}", "a", getattr(a, events), value), (f"B {name_b}", "b", getattr(b, events), value)]

    learning = charts.lines(drawn, "loss", "Loss", of_both("steps", charts.field("loss")), log=True)
    scores = of_both("evals", charts.score("miou"))
    learning += charts.lines(drawn, "miou", "mIoU on the validation split", scores, unit="%", points=True)
    rate = charts.lines(drawn, "rate", "Images/s", of_both("steps", charts.field("images_per_s")))
    said = "".join(f"<p>{esc(sentence)}</p>" for sentence in sentences(found))
    tables = _rows("", found.figures) + (_rows("mean in a step", found.stages) if found.stages else "")
    sections = [
        ("", "", f"<h1>{esc(name_a)} and {esc(name_b)}</h1>{_who(a, b)}"),
        ("summary", "Summary", f'<div class="prose">{said}</div><div class="side">{tables}</div>'),
        ("config", "Config", _facts(found.config, "config")),
        ("environment", "Environment", _facts(found.environment, "environment")),
        ("data", "Data", _facts(found.data, "data and protocol")),
        ("learning", "Learning", learning),
        ("speed", "Speed", rate),
        ("classes", "Classes", _rows("class", found.classes, "IoU, best evaluation of each") if found.classes else ""),
    ]
    return page(f"{name_a} and {name_b}: difference", sections, drawn, f"segtrain {__version__}, made {utc()}")


def _who(a: RunFolder, b: RunFolder) -> str:
    def line(letter: str, run: RunFolder) -> str:
        name = f"#{run.row['hash']} · " if run.row["hash"] else ""
        mark = f'<b class="letter {letter.lower()}">{letter}</b>'
        return f"<p class=quiet>{mark} {esc(name)}{esc(run.folder)} · {utc(run.row['started'] or 0)}</p>"

    return line("A", a) + line("B", b)


def _rows(what: str, rows: Sequence[DiffRow], caption: str = "") -> str:
    cells = [(row.what, row.a, row.b, row.change) for row in rows]
    marks = [MARKS[row.better] for row in rows]
    return table((what, "A", "B", "B to A"), cells, kind="pair", caption=caption, heads=True, marks=marks)


def _facts(rows: Sequence[DiffRow], what: str) -> str:
    if not rows:
        return f"<p class=quiet>No difference in {esc(what)}.</p>"
    cells = [(row.what, row.a, row.b) for row in rows]
    return table(("", "A", "B"), cells, left=(0, 1, 2), kind="facts two", heads=True)
