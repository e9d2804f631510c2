"""HTML of a page: escaping, tables, figures, and one shell with styles, script, and data in it."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

# Nothing may be fetched: a page opens the same on a plane, and tells nobody that it was opened.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_SHELL = """<!doctype html>
<html lang="en" data-theme="auto">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{styles}</style>
</head>
<body>
<header class="bar">
<nav aria-label="Sections">{links}</nav>
<div class="tools"><span id="range" role="status"></span>
<button id="whole" type="button" hidden>whole run</button>
<button id="theme" type="button" aria-label="Color theme">theme: auto</button></div>
</header>
<main>
{body}
</main>
<footer>{footer}</footer>
<div id="said" class="hide" role="status"></div>
<script type="application/json" id="chart-data">{data}</script>
<script>{library}</script>
<script>{script}</script>
</body>
</html>
"""


def esc(value: Any) -> str:
    return html.escape(str(value), quote=True)


def asset(name: str) -> str:
    return (files("segtrain.report") / "assets" / name).read_text(encoding="utf-8")


def page(title: str, sections: Sequence[tuple[str, str, str]], charts: Mapping[str, Any], footer: str) -> str:
    """sections: (id, heading, HTML), left out where the HTML is empty. charts: what report.js draws, by figure id."""
    there = [section for section in sections if section[2]]
    body = "\n".join(
        f'<section id="{key}"><h2>{esc(heading)}</h2>\n{content}\n</section>' if heading else content
        for key, heading, content in there
    )
    # "</script" would end the script element and "<!--" open a comment in it, whatever they stand for in JSON.
    data = json.dumps(charts, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return _SHELL.format(
        policy=_POLICY,
        title=esc(title),
        styles=asset("uPlot.min.css") + asset("report.css"),
        links="".join(f'<a href="#{key}">{esc(heading)}</a>' for key, heading, _ in there if heading),
        body=body,
        footer=footer,
        data=data,
        library=asset("uPlot.iife.min.js"),
        script=asset("report.js"),
    )


def table(
    head: Sequence[str], rows: Sequence[Sequence[Any]], *, left: Sequence[int] = (0,), kind: str = "", caption: str = ""
) -> str:
    """Cells are escaped; columns other than those in ``left`` hold numbers and stand at the right."""

    def cells(row: Sequence[Any], tag: str) -> str:
        extra = ' scope="col"' if tag == "th" else ""
        return "".join(
            f"<{tag}{extra}{'' if place in left else ' class=n'}>{esc(cell)}</{tag}>" for place, cell in enumerate(row)
        )

    top = f"<thead><tr>{cells(head, 'th')}</tr></thead>" if head else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    title = f"<caption>{esc(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table class="{kind}">{title}{top}<tbody>{body}</tbody></table></div>'


def details(summary: str, content: str, is_open: bool = False) -> str:
    return f"<details{' open' * is_open}><summary>{esc(summary)}</summary>{content}</details>"


def figure(key: str, title: str, alt: str, numbers: str, note: str = "") -> str:
    """A place for the chart ``key``. ``alt`` says in words what it shows, ``numbers`` is its table."""
    return (
        f'<figure id="{key}"><figcaption><b>{esc(title)}</b>{f" <span>{esc(note)}</span>" if note else ""}</figcaption>'
        f'<div class="plot" tabindex="0" role="img" aria-label="{esc(alt)}"></div>'
        f"{details('as a table', numbers)}</figure>"
    )


def thinned(rows: Sequence[Any], most: int = 40) -> list[Any]:
    """At most ``most`` rows, evenly spread, including the last one."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round((place + 1) * len(rows) / most) - 1] for place in range(most)]


def percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def short_seconds(seconds: float | None) -> str:
    """``0.42 ms``, ``158 ms``, ``2.31 s``: three figures."""
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"


def figures(value: float | None, digits: int = 4) -> float | None:
    """Rounded to ``digits`` figures: what a chart shows, in few bytes."""
    return None if value is None else float(f"{value:.{digits}g}")
