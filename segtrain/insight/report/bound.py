"""The diagnosis as the first block of a report: a card for each verdict, with its evidence, fix,
and charts.
"""

from __future__ import annotations

from collections.abc import Mapping

from segtrain.base.terminal import counted
from segtrain.base.units import percent, short_seconds
from segtrain.errors import DataError
from segtrain.insight.diagnose.causes import CAUSES, ChartName
from segtrain.insight.diagnose.evidence import evidence_of
from segtrain.insight.diagnose.judge import UNKNOWN, judge
from segtrain.insight.diagnose.verdict import HEALTHY, Diagnosis, Fix, Verdict
from segtrain.insight.diagnose.words import headline
from segtrain.insight.report import charts
from segtrain.insight.report.heat import GPUS, WAITS
from segtrain.insight.report.html import bars, copied, esc
from segtrain.insight.runs.folder import RunFolder
from segtrain.observe.spans import FOLDER

NO_SPANS = (
    "This run wrote no spans, so this page cannot say what held it up: log.spans=true "
    "(the default) writes them."
)
TOO_SHORT = "The run was too short to tell what held it up: its figures are from its start."
TOO_EARLY = "The run is too young to tell what holds it up: make this page again in a minute."
SLOW_ROW = "the others wait for the rank that waits least"

COST_ID, COST = "samplecost", "What a sample costs"
_DATA, _RANKS = WAITS
TITLES: dict[ChartName, str] = {  # beginnings of the titles of the charts that show evidence
    "data-wait": _DATA,
    "sample-cost": COST,
    "loop-phases": charts.LOOP,
    "step-phases": charts.STEPS,
    "rank-waits": _RANKS,
    "cores": "Cores",
    "gpu-use": GPUS,
}
_SURE = {"high": 3, "medium": 2, "low": 1}


def diagnosis_of(run: RunFolder) -> tuple[Diagnosis | None, str]:
    """The diagnosis of a run, or None and the reason to show. The reason is "" for a run without
    steps.
    """
    try:
        evidence = evidence_of(run)
    except DataError as error:
        if any((run.folder / FOLDER).glob("rank-*.jsonl")):
            return None, str(error)
        return None, NO_SPANS if run.steps else ""
    return judge(evidence), ""


def html(diagnosis: Diagnosis | None, why: str, run: RunFolder, places: Mapping[str, str]) -> str:
    """The block as HTML. ``places``: title of a chart -> its id on the page."""
    if diagnosis is None:
        return _plain(why) if why else ""
    running = run.row["status"] == "running"
    if diagnosis.bound == UNKNOWN and (
        not diagnosis.facts.get("phases") or "why" in diagnosis.facts
    ):
        return _plain(TOO_EARLY if running else TOO_SHORT)
    basis = (
        f'<p class="quiet basis">{esc(_basis(diagnosis, running))}</p>'
        if "steps" in diagnosis.facts
        else ""
    )
    if diagnosis.verdicts:
        cards = "".join(
            _card(number, verdict, places) for number, verdict in enumerate(diagnosis.verdicts)
        )
        return (
            f'<ol class="cards" aria-label="What holds the run up, worst first">{cards}</ol>{basis}'
        )
    sentence = headline(diagnosis)
    text = f"<h3>{esc(sentence[:1].upper() + sentence[1:])}</h3>"
    if diagnosis.bound == HEALTHY:

        def share(*phases: str) -> str:
            return percent(sum(diagnosis.facts["phases"].get(phase, 0.0) for phase in phases))

        ranks = (
            f"for other ranks {share('sync', 'gradient_sync')}, "
            if diagnosis.facts["ranks"] > 1
            else ""
        )
        calm = (
            f"Waiting for data takes {share('wait')} of its time, {ranks}logging and checkpoints "
            f"{share('log', 'checkpoint')}. A faster device or a smaller model would speed it up."
        )
        sign = '<span class="sign" aria-hidden="true">✓</span>'
        return f'<div class="card calm">{sign}{text}<p>{esc(calm)}</p></div>{basis}'
    links = _links(("data-wait", "sample-cost"), places)
    return f'<div class="card">{text}{f"<p>See {links}.</p>" if links else ""}</div>{basis}'


def _plain(text: str) -> str:
    return f'<p class="card plain">{esc(text)}</p>'


def _basis(diagnosis: Diagnosis, running: bool) -> str:
    steps, ranks, hosts = (
        counted(diagnosis.facts[key], key[:-1]) for key in ("steps", "ranks", "hosts")
    )
    return (
        f"From the spans of {steps} of {ranks} on {hosts}{', so far' * running}; the first second "
        "of each process and an evaluation at the end do not count. A step's time here is a mean, "
        "with its share of the evaluations and checkpoints between steps."
    )


def _card(number: int, verdict: Verdict, places: Mapping[str, str]) -> str:
    cause = CAUSES[verdict.cause]
    heading = f"Bound by {cause.words}" if number == 0 else f"Also held up by {cause.words}"
    sure = _SURE.get(verdict.confidence, 0)
    dots = "●" * sure + "○" * (3 - sure)
    predicted = f"about {verdict.gain:.3g}x faster, predicted by the model of a step"
    gain = predicted if verdict.gain > 1.005 else "not predicted"
    rows = [
        ("Why", esc(verdict.evidence)),
        # Each choice has its settings, with a button that copies them, and its advice.
        ("Do", '<span class="words">or</span>'.join(map(_choice, verdict.fix.choices))),
        ("Gain", gain),
        (
            "Confidence",
            f'<span class="dots" aria-hidden="true">{dots}</span> {esc(verdict.confidence)}',
        ),
    ]
    links = _links(cause.charts, places)
    if links:
        rows.append(
            (
                "See",
                links + (f": {SLOW_ROW}" if verdict.cause in ("slow-rank", "slow-host") else ""),
            )
        )
    listed = "".join(f"<div><dt>{what}</dt><dd>{content}</dd></div>" for what, content in rows)
    share = min(1.0, max(0.0, verdict.share))
    how = "of the time is lost to it" if share < 1 else "of the run is held up by it"
    return (
        f'<li class="card {"first" if number == 0 else ""}"><h3>{esc(heading)} '
        f"<code>{esc(verdict.cause)}</code></h3>"
        '<p class="lost"><span class="meter" aria-hidden="true"><i '
        f'style="width:{100 * share:.1f}%"></i></span>'
        f"<b>{percent(share, 0)}</b> {how}</p><dl>{listed}</dl></li>"
    )


def _choice(fix: Fix) -> str:
    return (copied(" ".join(fix.words)) if fix.settings else "") + (
        f'<span class="words">{esc(fix.advice)}</span>' if fix.advice else ""
    )


def _links(shown: tuple[ChartName, ...], places: Mapping[str, str]) -> str:
    links = [
        (title, key)
        for chart in shown
        for title, key in places.items()
        if title.startswith(TITLES[chart])
    ]
    return ", ".join(f'<a href="#{esc(key)}">{esc(title)}</a>' for title, key in links)


def sample_cost(diagnosis: Diagnosis | None) -> str:
    """Bars with the time that each stage of making a sample takes, from the spans of the workers.

    Empty if the diagnosis has no such times.
    """
    work = diagnosis.facts.get("workers") if diagnosis is not None else None
    if not isinstance(work, Mapping) or not work.get("sample_ms"):
        return ""
    total, names = work["sample_ms"], {"assemble": "put into its batch"}
    costs = [(names.get(stage, stage), ms, "stage") for stage, ms in work["stages_ms"].items()]
    costs += [("total", total, "whole"), ("CPU time", work["cpu_ms"], "cpu")]
    rows = [
        (name, short_seconds(ms / 1000), [(ms / total, "")], percent(ms / total), kind)
        for name, ms, kind in costs
    ]
    count, kind = work["count"], work["kind"]
    many = kind if count == 1 else "processes" if kind == "process" else f"{kind}s"
    workers = f"{count:g} {many}" if count else "the loop itself"
    workers += f" ({work['by_helpers']} besides)" if work.get("by_helpers") else ""
    size = f", {work['bytes'] / 1000:,.3g} kB read per sample" if work.get("bytes") else ""
    caption = f"<b>{COST}</b> {esc(f'mean, made by {workers} of the rank that waits most{size}')}"
    return f'<div id="{COST_ID}">{bars(caption, ("stage", "time", "share"), rows)}</div>'
