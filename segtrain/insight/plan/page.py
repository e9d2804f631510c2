"""The page of a plan, one HTML file: time and money over numbers of machines, the parts of a step,
and its words.
"""

from __future__ import annotations

from pathlib import Path

from segtrain.base.units import short_seconds
from segtrain.insight.plan.offers import PARTS, Offer, Offers, shown
from segtrain.insight.plan.words import choice
from segtrain.insight.report import html
from segtrain.insight.report import page as report_page
from segtrain.insight.report.charts import Charts
from segtrain.insight.report.html import details, esc, figure, page, table

# Color-blind readers can tell these apart.
COLORS = ("a", "b", "update", "gradient_sync", "eval", "extra1")
BARS = 14
# What a step is made of -> color.
PART_COLORS = dict(zip(PARTS, ("forward", "gradient_sync", "wait", "sync")))
TITLES = {
    "device": "device",
    "gradients": "wait for gradients",
    "samples": "wait for samples",
    "slowest rank": "wait for the slowest rank",
}


def write(
    file: Path, plan: Offers, text: str, subject: str, deadline_s: float, budget: float
) -> Path:
    """Write the page of a plan. ``text``: the plan in words; ``subject``: the config or the run.
    Raises DataError.
    """
    return report_page.write(file, render(plan, text, subject, deadline_s, budget))


def render(
    plan: Offers, text: str, subject: str, deadline_s: float = 0.0, budget: float = 0.0
) -> str:
    best = plan.best(deadline_s, budget)
    head = f"<h1>Plan of {esc(subject)}</h1>"
    if not plan.offers:
        sections = [("", "", head), ("words", "In words", _words(text))]
        return page(f"Plan of {subject}", sections, {})
    headline = (
        '<p class="headline '
        f'{"good" if best else "bad"}">{esc(choice(best, deadline_s, budget, plan))}</p>'
    )
    offers, drawn = _few(plan, best), Charts()
    sections = [
        ("", "", f"{head}<p class=quiet>{plan.terms.total:,.0f} images</p>{headline}"),
        ("money", "Time and money", _curves(drawn, plan, offers, deadline_s, budget)),
        ("step", "A step", _steps(offers)),
        ("words", "In words", _words(text)),
    ]
    return page(f"Plan of {subject}", sections, drawn)


def _few(plan: Offers, best: Offer | None) -> list[Offer]:
    """The offers worth a bar, the cheapest first, and the best one."""
    ordered = sorted(shown(plan), key=lambda offer: (offer.dollars[1], offer.seconds[1]))
    few = ordered[:BARS]
    return few if best is None or best in few else [best, *few[:-1]]


def _curves(
    drawn: Charts, plan: Offers, offers: list[Offer], deadline_s: float, budget: float
) -> str:
    names = list(dict.fromkeys(offer.machine.name for offer in offers))[: len(COLORS)]
    own = {
        name: sorted((o for o in plan.offers if o.machine.name == name), key=lambda o: o.hosts)
        for name in names
    }
    figures = ""
    kinds = (
        ("hours", "Time to the end", "h", 3600.0, deadline_s),
        ("dollars", "Cost on demand", "$", 1.0, budget),
    )
    for chart, title, unit, scale, limit in kinds:
        if chart == "dollars" and not all(
            offer.dollars[0] for many in own.values() for offer in many
        ):
            continue  # the nodes of a cluster cost nothing
        series = []
        rows = []
        ends = [limit / scale] * bool(limit)
        for (name, many), color in zip(own.items(), COLORS):
            values = [offer.seconds if chart == "hours" else offer.dollars for offer in many]
            low, usual, high = ([value[k] / scale for value in values] for k in range(3))
            hosts = [offer.hosts for offer in many]
            line = {"label": name, "color": color, "knee": plan.knee(name)}
            series.append({**line, "x": hosts, "y": usual, "low": low, "high": high})
            ends += [*low, *high]
            rows += [
                (name, *row)
                for row in zip(hosts, *([f"{v:,.2f}" for v in part] for part in (low, usual, high)))
            ]
        numbers = table(("type", "hosts", "10 %", "usual", "90 %"), rows)
        label = f"{'deadline' if chart == 'hours' else 'budget'} {limit / scale:.3g} {unit}"
        drawn[chart] = {
            "type": "lines",
            "axis": "hosts",
            "unit": unit,
            "height": 300,
            "points": True,
            "log": True,
            "range": [min(ends) / 1.15, max(ends) * 1.15],
            "series": series,
            "limit": {"y": limit / scale, "label": label} if limit else None,
        }
        note = "bars: 80 % of the cases; ring: the knee, beyond which doubling pays little"
        figures += figure(chart, title, numbers, note)
    return figures


def _steps(offers: list[Offer]) -> str:
    rows, cells = [], []
    longest = max(offer.step[1] for offer in offers)
    for offer in sorted(offers, key=lambda offer: offer.step[1]):
        name = f"{offer.hosts} x {offer.machine.name}"
        low, middle, high = map(short_seconds, offer.step)
        parts = [(offer.parts[part] / longest, PART_COLORS[part]) for part in PARTS]
        rows.append((name, middle, parts, f"{low} to {high}", ""))
        cells.append(
            (
                name,
                f"{offer.batch:,.0f}",
                *(short_seconds(offer.parts[part]) for part in PARTS),
                middle,
            )
        )
    key = html.key([(TITLES[part], color) for part, color in PART_COLORS.items()])
    numbers = table(("machines", "images", *(TITLES[part] for part in PARTS), "step"), cells)
    caption = "<b>Parts of a step</b> in the usual case, and the interval of the whole"
    return (
        html.bars(caption, ("machines", "step", "80 % of the cases"), rows)
        + key
        + details("as a table", numbers)
    )


def _words(text: str) -> str:
    return f'<pre class="words">{esc(text)}</pre>'
