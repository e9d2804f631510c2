"""Differences between two runs: facts, figures, phase times, and classes, for the console and as a
page.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from segtrain.base.terminal import columns, counted
from segtrain.base.units import duration, percent, short_seconds
from segtrain.config.mistakes import fields
from segtrain.errors import DataError
from segtrain.insight.diagnose import verify
from segtrain.insight.diagnose.verify import Verification
from segtrain.insight.diagnose.verify_words import sentences as verified
from segtrain.insight.report import charts, classes, facts
from segtrain.insight.report.html import esc, page, table, utc
from segtrain.insight.report.page import write
from segtrain.insight.report.timeline import Speed, axis, laps, means, speed, words
from segtrain.insight.runs.folder import RunFolder, load
from segtrain.observe.journal import Say, say_on_stderr
from segtrain.observe.scores import SHOWN, Score

NOTHING = "-"
# Settings that differ between any two runs and have no effect on the results.
_IDLE = {"out", "run folder"}


@dataclass(frozen=True)
class DiffRow:
    """``change`` is in words; ``better``: +1 if B is better, -1 if it is worse, 0 if neither is
    better.
    """

    what: str
    a: str
    b: str
    change: str = ""
    better: int = 0


@dataclass(frozen=True)
class Comparison:
    a: RunFolder
    b: RunFolder
    figures: Sequence[DiffRow]
    stages: Sequence[DiffRow]
    moved: DiffRow | None  # the phase whose time differs most; None if steps cannot be compared
    classes: Sequence[DiffRow]
    config: Sequence[DiffRow]
    environment: Sequence[DiffRow]
    data: Sequence[DiffRow]
    # Predicted and measured gain, if one run repeats the other with its proposed fix. None if a run
    # has no spans.
    verification: Verification | None


def compare(a: RunFolder, b: RunFolder) -> Comparison:
    laps_a, laps_b = laps(a.events), laps(b.events)
    stages, moved = _stages(means(laps_a), means(laps_b))
    verification = None
    if a.folder.resolve() != b.folder.resolve():
        with contextlib.suppress(DataError):  # a run without spans, or without steps
            verification = verify.compare(verify.compared(a), verify.compared(b))
    return Comparison(
        a,
        b,
        _figures(a, b, speed(laps_a), speed(laps_b)),
        stages,
        moved,
        _classes(a, b),
        config=_by_page(differences(facts.settings(a.config), facts.settings(b.config))),
        environment=differences(facts.environment(a), facts.environment(b)),
        data=differences(facts.data(a), facts.data(b)),
        verification=verification,
    )


def differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[DiffRow]:
    keys = [key for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key) and key not in _IDLE]
    return [DiffRow(key, a.get(key, NOTHING), b.get(key, NOTHING)) for key in keys]


def _by_page(rows: list[DiffRow]) -> list[DiffRow]:
    """Settings in the order of docs/config.md."""
    return sorted(rows, key=lambda row: [*fields(), row.what].index(row.what))


def _figures(
    a: RunFolder, b: RunFolder, pace_a: Speed | None, pace_b: Speed | None
) -> list[DiffRow]:
    rows = [
        *(_score(score, a, b) for score in SHOWN),
        _plain("at step", a.best.get("step"), b.best.get("step")),
    ]
    if pace_a and pace_b:
        rows += [
            _ratio(
                "images/s",
                pace_a.images_per_s,
                pace_b.images_per_s,
                lambda v: f"{v:.3g}",
                more=True,
            ),
            _ratio("time of a step", pace_a.step_s, pace_b.step_s, short_seconds),
            _points("waiting for data", pace_a.wait, pace_b.wait, more=False),
            _ratio("cores busy", pace_a.cores, pace_b.cores, lambda v: f"{v:.2f}", judged=False),
        ]
    rows += [
        _ratio("time", a.row["time"], b.row["time"], duration),
        _ratio("CPU-s of training", a.row["cpu_s"], b.row["cpu_s"], lambda v: f"{v:,.0f}"),
        DiffRow("status", str(a.row["status"]), str(b.row["status"])),
        _plain("steps done", a.row["step"], b.row["step"]),
    ]
    return [row for row in rows if (row.a, row.b) != (NOTHING, NOTHING)]


def _score(score: Score, a: RunFolder, b: RunFolder) -> DiffRow:
    """A score of the best evaluations."""
    scores_a, scores_b = (run.best.get("scores", {}) for run in (a, b))
    what = "best " * (score == a.best_by) + score.words
    row = _points(what, scores_a.get(score.key), scores_b.get(score.key))
    return replace(row, a=score.percent(scores_a), b=score.percent(scores_b))


def _plain(what: str, a: object, b: object) -> DiffRow:
    return DiffRow(what, NOTHING if a is None else str(a), NOTHING if b is None else str(b))


def _points(
    what: str, a: float | None, b: float | None, more: bool = True, digits: int = 2
) -> DiffRow:
    change, better = "", 0
    if a is not None and b is not None:
        change = f"{100 * (b - a):+.{digits}f} points"
        # A share of time may vary by one percentage point from one day to the next; a score does
        # not.
        better = 0 if abs(b - a) < (5e-4 if more else 1e-2) else 1 if (b > a) == more else -1
    return DiffRow(what, percent(a, digits), percent(b, digits), change, better)


def _ratio(
    what: str,
    a: float | None,
    b: float | None,
    show: Callable[[float], str],
    more: bool = False,
    judged: bool = True,
) -> DiffRow:
    texts = [NOTHING if value is None else show(value) for value in (a, b)]
    change, better = "", 0
    if a and b:
        change = f"{b / a:.2f}x"
        # Times of the same run differ by some percent from one day to the next.
        better = 0 if not judged or abs(b / a - 1) < 0.03 else 1 if (b > a) == more else -1
    return DiffRow(what, texts[0], texts[1], change, better)


def _stages(a: dict[str, float], b: dict[str, float]) -> tuple[list[DiffRow], DiffRow | None]:
    """Rows with the times of all phases, and the row that differs most (None if steps cannot be
    compared).
    """
    rows = {
        name: _ratio(words(name), a.get(name), b.get(name), short_seconds) for name in {**a, **b}
    }
    if not a or not b:
        return list(rows.values()), None
    whole = _ratio("whole step, mean", sum(a.values()), sum(b.values()), short_seconds)
    return [*rows.values(), whole], rows[
        max(rows, key=lambda name: abs(b.get(name, 0.0) - a.get(name, 0.0)))
    ]


def _classes(a: RunFolder, b: RunFolder) -> list[DiffRow]:
    """IoU by class name, the largest change first. Classes that only one of the runs has come
    last.
    """
    tables = []
    for run in (a, b):
        values = classes.ious(run.best) if run.best else []
        tables.append(dict(zip(classes.names_of(run, len(values)), values)))
    names = dict.fromkeys([*tables[0], *tables[1]])
    rows = [(name, tables[0].get(name), tables[1].get(name)) for name in names]

    def order(row: tuple[str, float | None, float | None]) -> float:
        return -abs(row[2] - row[1]) if row[1] is not None and row[2] is not None else 1.0

    return [_points(name, x, y, digits=1) for name, x, y in sorted(rows, key=order)]


def sentences(comparison: Comparison) -> list[str]:
    texts, best = [], f"best {comparison.a.best_by.words}"
    by_name = {row.what: row for row in comparison.figures}
    score, step = by_name.get(best), by_name.get("time of a step")
    if score and score.change:
        word = {1: "higher than", -1: "lower than", 0: "the same as"}[score.better]
        texts.append(f"B's {best} is {word} A's: {score.b} against {score.a} ({score.change}).")
        if [row.what for row in comparison.config if row.what not in ("out", "name")] == [
            "train.seed"
        ]:
            texts.append(
                "Only the seed differs: this is the noise between two runs, and one pair cannot "
                "show its size."
            )
    protocol = [
        row.what.removeprefix("scored: ")
        for row in comparison.data
        if row.what.startswith("scored: ")
    ]
    if protocol and comparison.a.best and comparison.b.best:
        texts.append(
            f"The evaluation protocols differ ({', '.join(protocol)}), so these scores cannot be "
            "compared."
        )
    if step and step.change:
        texts.append(f"A step of B takes {step.b}, of A {step.a} ({step.change}).")
        if (moved := comparison.moved) is not None and step.better:
            texts.append(
                f"Most of the difference is in: {moved.what} ({moved.a} in A, {moved.b} in B)."
            )
    if comparison.verification is not None:
        texts += verified(
            comparison.verification, *("BA" if comparison.verification.swapped else "AB")
        )
    counts = (
        (comparison.config, "setting", ""),
        (comparison.environment, "fact", " of the environment"),
        (comparison.data, "fact", " of the data"),
    )
    differing = [counted(len(rows), what) + suffix for rows, what, suffix in counts if rows]
    texts.append(
        f"They differ in {', '.join(differing)}."
        if differing
        else "Config, environment, and data are equal."
    )
    return texts


CLASSES = 24  # most classes in the table for the console


def names(a: RunFolder, b: RunFolder) -> tuple[str, str]:
    """The names of both runs. If the names are equal, the names of the folders instead."""
    if a.name != b.name:
        return a.name, b.name
    return a.folder.absolute().name, b.folder.absolute().name


def console(comparison: Comparison) -> str:
    """A short table: figures, stages, what differs, the classes that changed most."""
    lines = [*sentences(comparison), ""]
    name_a, name_b = names(comparison.a, comparison.b)
    lines += _aligned(("", f"A {name_a}", f"B {name_b}", "B to A"), comparison.figures)
    for title, rows in (
        ("stage times", comparison.stages),
        ("config", comparison.config),
        ("environment", comparison.environment),
        ("data", comparison.data),
        ("IoU by class", comparison.classes[:CLASSES]),
    ):
        if rows:
            lines += ["", *_aligned((title, "A", "B", ""), rows)]
    if len(comparison.classes) > CLASSES:
        lines.append(
            f"and {len(comparison.classes) - CLASSES} more classes, which changed less: diff "
            "--out PAGE.html shows all"
        )
    return "\n".join(lines)


def _aligned(head: Sequence[str], rows: Sequence[DiffRow]) -> list[str]:
    return columns([head, *((row.what, _clip(row.a), _clip(row.b), row.change) for row in rows)])


def _clip(text: str, most: int = 44) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


MARKS = {1: "up", -1: "down", 0: ""}


def diff(
    a: str | Path,
    b: str | Path,
    out: Path | None = None,
    say: Say = say_on_stderr,
) -> str:
    """The table for the console; the page goes to ``out`` if given. Raises DataError for a folder
    without a run.
    """
    comparison = compare(load(a, say), load(b, say))
    if out is not None:
        write(out, render(comparison))
    return console(comparison)


def render(comparison: Comparison) -> str:
    a, b = comparison.a, comparison.b
    # The charts zoom together by the clock of the longer run. All of them are over steps, none over
    # time.
    longer = max((a, b), key=lambda run: run.steps[-1]["step"] if run.steps else 0)
    drawn: charts.Charts = {
        "clock": {**charts.clock(longer, axis(longer.events)), "steps_only": True}
    }
    name_a, name_b = names(a, b)

    def curves(points_a: charts.Points, points_b: charts.Points) -> list[charts.Curve]:
        return [(f"A {name_a}", "a", points_a), (f"B {name_b}", "b", points_b)]

    loss, speeds = (
        curves(*(charts.curve(run.steps, name) for run in (a, b)))
        for name in ("loss", "images_per_s")
    )
    learning = charts.lines(drawn, "loss", "Loss", loss, log=True)
    scores = curves(*(charts.scores(run.evals, a.best_by.key) for run in (a, b)))
    title = f"{a.best_by.words} on the validation split"
    learning += charts.lines(drawn, "miou", title, scores, unit="%", points=True)
    rate = charts.lines(drawn, "rate", "Images/s", speeds)
    prose = "".join(f"<p>{esc(sentence)}</p>" for sentence in sentences(comparison))
    ious = (
        _rows("class", comparison.classes, "IoU, best evaluation of each")
        if comparison.classes
        else ""
    )
    tables = _rows("", comparison.figures) + (
        _rows("mean in a step", comparison.stages) if comparison.stages else ""
    )
    sections = [
        ("", "", f"<h1>{esc(name_a)} and {esc(name_b)}</h1>{_who(a, b)}"),
        ("summary", "Summary", f'<div class="prose">{prose}</div><div class="side">{tables}</div>'),
        ("config", "Config", _facts(comparison.config, "config")),
        ("environment", "Environment", _facts(comparison.environment, "environment")),
        ("data", "Data", _facts(comparison.data, "data and protocol")),
        ("learning", "Learning", learning),
        ("speed", "Speed", rate),
        ("classes", "Classes", ious),
    ]
    return page(f"{name_a} and {name_b}: difference", sections, drawn)


def _who(a: RunFolder, b: RunFolder) -> str:
    def line(letter: str, run: RunFolder) -> str:
        name = f"#{run.row['hash']} · " if run.row["hash"] else ""
        mark = f'<b class="letter {letter.lower()}">{letter}</b>'
        return (
            f"<p class=quiet>{mark} {esc(name)}{esc(run.folder)} · "
            f"{utc(run.row['started'] or 0)}</p>"
        )

    return line("A", a) + line("B", b)


def _rows(what: str, rows: Sequence[DiffRow], caption: str = "") -> str:
    cells = [(row.what, row.a, row.b, row.change) for row in rows]
    marks = [MARKS[row.better] for row in rows]
    return table(
        (what, "A", "B", "B to A"), cells, kind="pair", caption=caption, heads=True, marks=marks
    )


def _facts(rows: Sequence[DiffRow], what: str) -> str:
    if not rows:
        return f"<p class=quiet>No difference in {esc(what)}.</p>"
    cells = [(row.what, row.a, row.b) for row in rows]
    return table(("", "A", "B"), cells, left=(0, 1, 2), kind="facts two", heads=True)
