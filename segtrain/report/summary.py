"""Summary of a run: a headline, a few sentences, and the figures that matter most."""

from __future__ import annotations

from dataclasses import dataclass

from segtrain.diagnose.data_rules import STARVED
from segtrain.observe.console import duration, percent
from segtrain.report.heat import GPUS, Map
from segtrain.report.html import esc, short_seconds
from segtrain.report.speed import Speed, words
from segtrain.report.timeline import Stretch
from segtrain.runs.folder import RunFolder, few
from segtrain.runs.table import number

_FULL = 90.0  # percent of the cores


@dataclass(frozen=True)
class RunSummary:
    """``mood``: good, bad, or open (the run goes on, or can be continued)."""

    mood: str
    headline: str
    sentences: tuple[str, ...]


def summary(
    run: RunFolder, pace: Speed | None, parts: list[Stretch], maps: list[Map], others: float | None
) -> RunSummary:
    """What held the run up is left to the diagnosis. ``others``: cores that it saw other programs use."""
    mood, headline = _state(run)
    said = [_scores(run), *(f"Warning: {text}" for text in run.row["warnings"])]
    if pace is not None:
        said += [
            where_time_went(pace, str(run.start.get("device", "cpu"))),
            _worst_tenth(pace),
            _pauses(parts),
            _cores(pace, maps, others),
        ]
    return RunSummary(mood, headline, tuple(sentence for sentence in said if sentence))


def _state(run: RunFolder) -> tuple[str, str]:
    status, step, steps = run.row["status"], run.row["step"], run.row["steps"]
    place = f"step {step or 0} of {steps or '?'}"
    if status == "done":
        return "good", f"Finished: {place}, {duration(run.row['time'] or 0)}"
    if status == "failed":
        return "bad", f"Failed at {place}: {run.end.get('error') or 'no error was recorded'}"
    if status == "stopped":
        signal = next((event.get("signal") for event in reversed(run.events) if event["event"] == "signal"), "a signal")
        return "open", f"Stopped by {signal} at {place}: the same command continues it"
    if status == "killed":
        return (
            "bad",
            f"Ended without a message at {place}: its process is gone; the same command continues from the last "
            "checkpoint",
        )
    if status == "running":
        return "open", f"Running: {place} when this page was made"
    return "open", "No process of this run has written anything yet"


def _scores(run: RunFolder) -> str:
    best = run.best
    if not best:
        return "It has not been evaluated yet."
    last = run.evals[-1]
    text = f"Best mIoU {percent(best['scores']['miou'], 2)}{few(best)} at step {best['step']}"
    if last["step"] != best["step"]:
        text += (
            f", {percent(number(last['scores'].get('miou')), 2)}{few(last)} at the last evaluation (step "
            f"{last['step']})"
        )
    return text + "."


def where_time_went(pace: Speed, device: str) -> str:
    """The sentence about a step: the largest phases, up to 95 % of the time."""
    told = 0.0
    parts: list[str] = []
    for phase, share in sorted(pace.shares.items(), key=lambda item: -item[1]):
        if told > 0.95 and parts:
            break
        parts.append(f"{percent(share, 0)} {words(phase)}")
        told += share
    text = f"A step took {short_seconds(pace.step_s)}: {', '.join(parts)}."
    if device.startswith("cuda"):
        text += " These are GPU times: a wait for data that is hidden behind GPU work counts as that work."
    return text


def _worst_tenth(pace: Speed) -> str:
    """The tenth of the run that waited most: the means of the diagnosis hide a short slow stretch."""
    if pace.wait >= STARVED or pace.worst_wait < STARVED:
        return ""
    return (
        f"The loop waited for data {percent(pace.wait, 0)} of the time, but {percent(pace.worst_wait, 0)} in the "
        f"tenth of the run that ends with step {pace.worst_step}: something slowed the input down there."
    )


def _pauses(parts: list[Stretch]) -> str:
    whole = sum(part.end - part.begin for part in parts)
    stood: dict[str, float] = {}
    for part in parts:
        if part.kind:
            stood[part.kind] = stood.get(part.kind, 0.0) + part.end - part.begin
    names = {"eval": "evaluation", "checkpoint": "checkpoints", "start": "start-up"}
    large = [
        f"{names[kind]} {percent(s / whole, 0)}"
        for kind, s in sorted(stood.items(), key=lambda i: -i[1])
        if s > 0.05 * whole
    ]
    return f"Outside of steps: {', '.join(large)} of the run's time." if large else ""


def _cores(pace: Speed, maps: list[Map], others: float | None) -> str:
    if pace.cores is None:
        return ""
    text = f"All ranks together kept {pace.cores:.2g} cores busy"
    rows = [
        (name, mean)
        for found in maps
        if found.title.startswith("Cores")
        for name, mean in zip(found.rows, found.means())
        if name.startswith("cpu") and mean is not None
    ]
    if rows:
        mean = sum(mean for _, mean in rows) / len(rows)
        text += f"; the system profile shows {len(rows)} cores at {mean:.0f} % on average"
    gpus = [mean for found in maps if found.title == GPUS for mean in found.means() if mean is not None]
    if gpus:
        text += f" and {len(gpus)} GPU{'s' * (len(gpus) > 1)} at {sum(gpus) / len(gpus):.0f} %"
    text += "."
    # The profile also contains the work of the system itself, so a small difference means nothing.
    if others is not None and rows and others > max(0.5, 0.25 * len(rows)):
        text += (
            f" Other programs used about {others:.1f} cores meanwhile{': they slowed this run down' * (mean > _FULL)}."
        )
    return text


def tiles(run: RunFolder, pace: Speed | None) -> list[tuple[str, str, str]]:
    """(what, value, remark) of the figures that matter most."""
    best = run.best
    found = [
        (
            "best mIoU",
            percent(best["scores"]["miou"], 2) if best else "-",
            f"step {best['step']}{few(best)}" if best else "not evaluated",
        )
    ]
    if pace is not None:
        rate = "-" if pace.images_per_s is None else f"{pace.images_per_s:.3g}"
        found += [
            ("images/s", rate, "median, all ranks"),
            ("time of a step", short_seconds(pace.step_s), "median, without evaluation"),
            ("waiting for data", percent(pace.wait), "of the time of steps"),
        ]
        if pace.cores is not None:
            found.append(("CPU use", f"{pace.cores:.3g}", "cores busy, all ranks"))
    if run.row["time"] is not None:
        remark = "" if run.row["cpu_s"] is None else f"{run.row['cpu_s']:,.0f} CPU-s"
        found.append(("time", duration(run.row["time"]), remark))
    return found


def html(said: RunSummary, bound: str, figures: list[tuple[str, str, str]]) -> str:
    """``bound``: the block that says what held the run up, as HTML."""
    sentences = "".join(f"<p>{esc(sentence)}</p>" for sentence in said.sentences)
    cells = "".join(
        f"<div><dt>{esc(what)}</dt><dd>{esc(value)}</dd><dd class=remark>{esc(remark)}</dd></div>"
        for what, value, remark in figures
    )
    return (
        f'<p class="headline {said.mood}">{esc(said.headline)}</p>{bound}<dl class="tiles">{cells}</dl>'
        f'<div class="prose">{sentences}</div>'
    )
