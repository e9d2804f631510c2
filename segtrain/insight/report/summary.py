"""Summary of a run: a headline, the figures that matter most, what its classes show; and what its
speed was.
"""

from __future__ import annotations

from dataclasses import replace

from segtrain.base.units import duration, percent, short_seconds
from segtrain.insight.diagnose.data_rules import STARVED
from segtrain.insight.report import html
from segtrain.insight.report.html import esc
from segtrain.insight.report.quality import judged
from segtrain.insight.report.timeline import Speed, words
from segtrain.insight.runs.folder import RunFolder
from segtrain.observe.console import classes_note
from segtrain.observe.journal import Event
from segtrain.observe.scores import LOSS, SHOWN


def section(run: RunFolder) -> str:
    """The summary as HTML: the quality of the run.

    Its first line has a mood: good, bad, or open (the run goes on, or can be continued).
    """
    mood, headline = _state(run)
    rows = "".join(
        f"<div><dt>{what}</dt><dd>"
        + "".join(f'<span class="words">{esc(part)}</span>' for part in text.split("; "))
        + "</dd></div>"
        for what, text in judged(run)
    )
    return (
        f'<p class="headline {mood}">{esc(headline)}</p>{html.tiles(_figures(run))}'
        + (f'<div class="card"><h3>Classes</h3><dl>{rows}</dl></div>' if rows else "")
        + _prose([_scores(run), *(f"Warning: {text}" for text in run.row["warnings"])])
    )


def speed(run: RunFolder, pace: Speed | None, bound: str) -> str:
    """What held the run up (``bound``, as HTML), and where its time went."""
    texts = []
    if pace is not None:
        texts.append(where_time_went(pace, str(run.start.get("device", "cpu"))))
        if pace.wait < STARVED <= pace.worst_wait:  # A short slow part does not show in the mean.
            texts.append(
                f"The loop waited for data {percent(pace.wait, 0)} of the time, but "
                f"{percent(pace.worst_wait, 0)} in the tenth of the run that ends with step "
                f"{pace.worst_step}: something slowed the input down there."
            )
    return bound + (html.tiles(_speeds(pace)) if pace else "") + _prose(texts)


def _prose(texts: list[str]) -> str:
    paragraphs = "".join(f"<p>{esc(text)}</p>" for text in texts)
    return f'<div class="prose">{paragraphs}</div>' if texts else ""


def _state(run: RunFolder) -> tuple[str, str]:
    """Mood and headline."""
    progress = f"step {run.row['step'] or 0} of {run.row['steps'] or '?'}"
    signal = next(
        (name for event in reversed(run.events) if (name := _stopped_by(event))), "a signal"
    )
    larger = " with a larger limit" if "=" in signal else ""
    gone = "its process is gone; the same command continues from the last checkpoint"
    states = {
        "done": ("good", f"Finished: {progress}, {duration(run.row['time'] or 0)}"),
        "failed": (
            "bad",
            f"Failed at {progress}: {run.end.get('error') or 'no error was recorded'}",
        ),
        "stopped": (
            "open",
            f"Stopped by {signal} at {progress}: the same command{larger} continues it",
        ),
        "killed": ("bad", f"Ended without a message at {progress}: {gone}"),
        "running": ("open", f"Running: {progress} when this page was made"),
    }
    return states.get(
        run.row["status"], ("open", "No process of this run has written anything yet")
    )


def _stopped_by(event: Event) -> str:
    """The signal or the limit that stopped a process, if this event tells it."""
    if event["event"] == "limit" and event.get("what") == "reached":
        return str(event.get("limit"))
    return str(event.get("signal")) if event["event"] == "signal" else ""


def _scores(run: RunFolder) -> str:
    best = run.best
    if not best:
        return "It has not been evaluated yet."
    last, score = run.evals[-1], run.best_by
    text = f"Best {score.words} {score.percent(best['scores'])} at step {best['step']}"
    if last["step"] != best["step"]:
        value = score.percent(last["scores"])
        text += f", {value} at the last evaluation (step {last['step']})"
    return text + "."


def where_time_went(pace: Speed, device: str) -> str:
    """The sentence about a step: the largest phases, up to 95 % of the time."""
    shown = 0.0
    parts: list[str] = []
    for phase, share in sorted(pace.shares.items(), key=lambda item: -item[1]):
        if shown <= 0.95:
            parts.append(f"{percent(share, 0)} {words(phase)}")
        shown += share
    text = f"A step took {short_seconds(pace.step_s)}: {', '.join(parts)}."
    if device.startswith("cuda"):
        text += (
            " These are GPU times: a wait for data that is hidden behind GPU work counts as "
            "that work."
        )
    return text


def _figures(run: RunFolder) -> list[tuple[str, str, str]]:
    """(what, value, remark) of the figures that matter most: scores, then times."""
    value, remark, others = "-", "not evaluated", []
    if best := run.best:
        value = replace(run.best_by, class_mean=False).percent(best["scores"])
        remark = f"step {best['step']}{classes_note(best['scores'])}"
        others = [score for score in (*SHOWN, LOSS) if score.key != run.best_by.key]
    figures = [(f"best {run.best_by.words}", value, remark)]
    figures += [
        (score.words, replace(score, class_mean=False).percent(best["scores"]), "at that step")
        for score in others
        if best["scores"].get(score.key) is not None
    ]
    if (epoch := run.row["epoch_s"]) is not None:
        figures.append(("time of an epoch", short_seconds(epoch), "mean, without evaluation"))
    if run.row["time"] is not None:
        remark = "" if run.row["cpu_s"] is None else f"{run.row['cpu_s']:,.0f} CPU-s"
        figures.append(("time", duration(run.row["time"]), remark))
    return figures


def _speeds(pace: Speed) -> list[tuple[str, str, str]]:
    """(what, value, remark) of the speed."""
    rate = "-" if pace.images_per_s is None else f"{pace.images_per_s:.3g}"
    figures = [
        ("images/s", rate, "median, all ranks"),
        ("time of a step", short_seconds(pace.step_s), "median, without evaluation"),
        ("waiting for data", percent(pace.wait), "of the time of steps"),
    ]
    if pace.cores is not None:
        figures.append(("CPU use", f"{pace.cores:.3g}", "cores busy, all ranks"))
    return figures
