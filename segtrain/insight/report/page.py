"""The report of a run, ``RUN/report.html``: one file that needs no network."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from segtrain.base.files import writing
from segtrain.errors import file_error
from segtrain.insight.report import bound, charts, classes, facts, flame, summary
from segtrain.insight.report.gallery import gallery
from segtrain.insight.report.heat import read_maps, read_waits
from segtrain.insight.report.html import esc, page, utc
from segtrain.insight.report.timeline import axis, laps, merged, pauses, phases, pieces, speed
from segtrain.insight.runs.folder import RunFolder, load
from segtrain.observe.journal import Say, say_on_stderr
from segtrain.observe.scores import LOSS, SHOWN

FILE = "report.html"
_LAPS = 700  # most laps in a chart: a screen could not show more
NO_PROFILE = (
    "This run wrote no system profile: log.profile_ms=500 shows here how busy each core "
    "and each GPU was."
)
NO_READING = (
    "There are no readings of a system profile: none were written yet, or they were not "
    "copied with the run."
)


def report(
    folder: str | Path,
    open_it: bool = False,
    say: Say = say_on_stderr,
    *,
    out: Path | None = None,
    shown: str = "",
    refresh_s: int = 0,
) -> Path:
    """Write the page into the run folder, or to ``out``. ``shown``: the place of the run if
    ``folder`` is a copy. ``refresh_s``: see ``html.page``.

    Raises DataError for a folder without a run, or one that cannot be written.
    """
    run = load(folder, say)
    path = write(out or run.folder / FILE, render(run, say, shown, refresh_s))
    if open_it:
        webbrowser.open(path.absolute().as_uri())
    return path


def write(path: Path, text: str) -> Path:
    """Write a page whole or not at all, so that a browser never loads half of it."""
    try:
        with writing(path) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise file_error(
            str(path),
            f"the page cannot be written: {error.strerror or error}: check the permissions "
            "of the folder",
            code="page-unwritable",
        ) from None
    return path


def render(run: RunFolder, say: Say = say_on_stderr, shown: str = "", refresh_s: int = 0) -> str:
    time, all_laps = axis(run.events), laps(run.events)
    maps, waits = read_maps(run, time, say), read_waits(run, time)
    pace = speed(all_laps)
    diagnosis, why_none = bound.diagnosis_of(run)
    drawn: charts.Charts = {"clock": charts.clock(run, time)}
    places: dict[str, str] = {}  # title of a chart -> id of its figure
    merged_laps = merged(all_laps, _LAPS)
    names, stops = phases(all_laps), pauses(run.events, merged_laps)
    stretches = pieces(merged_laps, stops)
    when = when_it_worked = ""
    if pace is not None:
        when = charts.loop(drawn, stretches, names, time)
        when_it_worked = charts.steps(drawn, stretches, merged_laps, names, time)
        when_it_worked += charts.spread(drawn, all_laps, names)
        places |= {charts.LOOP: "loop", charts.STEPS: "steptime"}
    for kind, grids, what in (("heat", maps, "use"), ("wait", waits, "share of each second")):
        for number, heat_map in enumerate(grids):
            places[heat_map.title] = f"{kind}{number}"
            when += charts.heat_map(drawn, places[heat_map.title], heat_map, what)
    if when and not maps:
        missing = NO_READING if run.setting("log.profile_ms") else NO_PROFILE
        when += f"<p class=quiet>{missing}</p>"
    sample = bound.sample_cost(diagnosis)
    if sample:
        places[bound.COST] = bound.COST_ID
    bound_html = bound.html(diagnosis, why_none, run, places)
    sections = [
        ("", "", f"<h1>{esc(run.name)}</h1><p class=quiet>{esc(_subtitle(run))}</p>"),
        ("summary", "Summary", summary.section(run)),
        ("classes", "Classes", classes.section(run)),
        ("learning", "Learning", _learning(drawn, run)),
        ("pictures", "Pictures", gallery(drawn, run)),
        ("bound", "Speed", summary.speed(run, pace, bound_html)),
        ("when", "Over time", when),
        ("speed", "Time of a step", when_it_worked + sample),
        ("stacks", "Python stacks", flame.section(run.folder)),
        (
            "facts",
            "Facts",
            facts.config_table(run)
            + facts.pairs("Environment", facts.environment(run))
            + facts.pairs("Data and protocol", facts.data(run))
            + facts.happenings(run),
        ),
    ]
    return page(
        f"{run.name}: report",
        sections,
        drawn,
        f" from {shown or run.folder}",
        refresh_s,
    )


def _subtitle(run: RunFolder) -> str:
    derived = run.start.get("derived", {})
    parts = [f"#{run.row['hash']}" if run.row["hash"] else ""]
    parts += [str(derived[key]) for key in ("model", "data", "ranks") if key in derived]
    if run.row["started"]:
        parts.append(utc(run.row["started"]))
    return " · ".join(part for part in parts if part)


def _learning(drawn: charts.Charts, run: RunFolder) -> str:
    shown = dict.fromkeys([*SHOWN, *([run.best_by] if run.best_by.unit == "%" else [])])
    scores = [(score.words, score.color, charts.scores(run.evals, score)) for score in shown]
    losses = [
        ("training loss", "a", charts.curve(run.steps, "loss")),
        ("validation loss", "eval", charts.scores(run.evals, LOSS)),
    ]
    return (
        charts.lines(drawn, "loss", "Loss", losses, log=True)
        + charts.lines(
            drawn, "miou", "Scores on the validation split", scores, unit="%", points=True
        )
        + charts.lines(
            drawn, "lr", "Learning rate", [("lr", "a", charts.curve(run.steps, "lr"))], height=140
        )
    )
