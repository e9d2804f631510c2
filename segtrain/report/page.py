"""The report of a run, ``RUN/report.html``: one file that needs no network."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from segtrain import __version__
from segtrain.errors import DataError
from segtrain.files import writing
from segtrain.observe.journal import say_on_stderr
from segtrain.report import bound, charts, classes, facts, flame, summary
from segtrain.report.gallery import gallery
from segtrain.report.heat import Map, read_maps, read_waits
from segtrain.report.html import esc, page, utc
from segtrain.report.speed import phases, speed
from segtrain.report.timeline import axis, laps, merged, pauses, pieces
from segtrain.runs.folder import RunFolder, load
from segtrain.runs.table import number

FILE = "report.html"
_LAPS = 700  # stretches of a chart, more than a screen has columns
NO_PROFILE = "This run wrote no system profile: log.profile_ms=500 shows here how busy each core and each GPU was."
NO_READING = "There are no readings of a system profile: none were written yet, or they were not copied with the run."


def report(
    folder: str | Path,
    open_it: bool = False,
    say: Callable[[str], None] = say_on_stderr,
    *,
    out: Path | None = None,
    shown: str = "",
) -> Path:
    """Write the page into the run folder, or to ``out``. ``shown``: the place of the run of which ``folder`` is a copy.

    Raises DataError for a folder without a run, or one that cannot be written.
    """
    run = load(folder, say)
    path = write(out or run.folder / FILE, render(run, say, shown))
    if open_it:
        webbrowser.open(path.absolute().as_uri())
    return path


def write(path: Path, text: str) -> Path:
    """Whole or not at all: a page that is open in a browser is replaced, not torn."""
    try:
        with writing(path) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise DataError(
            f"cannot write the page {path}: {error.strerror or error}: check the permissions of the folder",
            code="page-unwritable", file=str(path),
        ) from None  # fmt: skip
    return path


def render(run: RunFolder, say: Callable[[str], None] = say_on_stderr, shown: str = "") -> str:
    time, whole = axis(run.events), laps(run.events)
    maps, waits = read_maps(run, time, say), read_waits(run, time)
    pace = speed(whole)
    diagnosis, why_none = bound.diagnosis_of(run)
    drawn: dict[str, Any] = {"clock": charts.clock(run, time)}
    places: dict[str, str] = {}  # title -> id

    def add(found: charts.Figure | None, key: str) -> str:
        if found is None:
            return ""
        html, drawn[key] = found
        return html

    few = merged(whole, _LAPS)
    names, stops = phases(whole), pauses(run.events, few)
    parts = pieces(few, stops)
    when = when_it_worked = ""
    if pace is not None:
        when = add(charts.loop(parts, names, time), "loop")
        when_it_worked = add(charts.steps(parts, few, names, time), "steptime") + add(
            charts.spread(whole, names), "spread"
        )
        places |= {charts.LOOP: "loop", charts.STEPS: "steptime"}
    for key, found, what in _maps(maps, waits):
        when += add(charts.heat_map(key, found, what), key)
        places[found.title] = key
    if when and not maps:
        when += facts.quiet(NO_READING if facts.mapping(run.config.get("log")).get("profile_ms") else NO_PROFILE)
    sample = bound.sample_cost(diagnosis)
    if sample:
        places[bound.COST] = bound.COST_ID
    held = bound.html(diagnosis, why_none, run, places)
    others = diagnosis.facts.get("cores_of_others") if diagnosis is not None else None
    said = summary.summary(run, pace, parts, maps, others)
    sections = [
        ("", "", f"<h1>{esc(run.name)}</h1><p class=quiet>{esc(_subtitle(run))}</p>"),
        ("summary", "Summary", summary.html(said, held, summary.tiles(run, pace))),
        ("when", "Over time", when),
        ("speed", "Time of a step", when_it_worked + sample),
        ("stacks", "Python stacks", flame.section(run.folder)),
        ("learning", "Learning", _learning(run, add)),
        ("classes", "Classes", classes.section(run)),
        ("pictures", "Pictures", gallery(run, add)),
        ("facts", "Facts", facts.config_table(run) + facts.pairs("Environment", facts.environment(run))
         + facts.pairs("Data and protocol", facts.data(run)) + facts.happenings(run)),
    ]  # fmt: skip
    return page(
        f"{run.name}: report", sections, drawn, f"segtrain {__version__}, made {utc()} from {esc(shown or run.folder)}"
    )


def _maps(busy: Sequence[Map], waits: Sequence[Map]) -> Iterator[tuple[str, Map, str]]:
    """The id of each map, the map, and what it shows."""
    for key, maps, what in (("heat", busy, "use"), ("wait", waits, "share of each second")):
        for place, found in enumerate(maps):
            yield f"{key}{place}", found, what


def _subtitle(run: RunFolder) -> str:
    derived = run.start.get("derived")
    parts = [f"#{run.row['hash']}" if run.row["hash"] else ""]
    if isinstance(derived, dict):
        parts += [str(derived[key]) for key in ("model", "data", "ranks") if key in derived]
    if run.row["started"]:
        parts.append(utc(run.row["started"]))
    return " · ".join(part for part in parts if part)


def _learning(run: RunFolder, add: Callable[[charts.Figure | None, str], str]) -> str:
    def field(name: str) -> Callable[[Any], float | None]:
        return lambda event: number(event.get(name))

    score = [
        ("mIoU", "a", run.evals, charts.score("miou")),
        ("pixel accuracy", "eval", run.evals, charts.score("accuracy")),
    ]
    return (
        add(charts.lines("loss", "Loss", [("loss", "a", run.steps, field("loss"))], log=True), "loss")
        + add(charts.lines("miou", "Scores on the validation split", score, unit="%", points=True), "miou")
        + add(charts.lines("lr", "Learning rate", [("lr", "a", run.steps, field("lr"))], height=140), "lr")
    )
