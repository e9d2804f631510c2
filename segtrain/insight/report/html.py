"""HTML of a page: escaping, tables, figures, and one shell with styles, script, and data in it."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.resources import files
from typing import Any

from segtrain import __version__

# The page may load nothing over the network: it works offline, and no server learns that it was
# opened.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_SHELL = """<!doctype html>
<html lang="en" data-theme="auto">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark">{refresh}
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
    return (files("segtrain.insight.report") / "assets" / name).read_text(encoding="utf-8")


def page(
    title: str,
    sections: Sequence[tuple[str, str, str]],
    charts: Mapping[str, Any],
    source: str = "",
    refresh_s: int = 0,
) -> str:
    """HTML of a page. ``sections``: (id, heading, HTML), left out if empty. ``charts``: what
    report.js draws, by id. ``source``: the end of the footer. ``refresh_s``: seconds after which a
    browser loads the page again; 0: never.
    """
    nonempty = [section for section in sections if section[2]]
    body = "\n".join(
        f'<section id="{key}"><h2>{esc(heading)}</h2>\n{content}\n</section>'
        if heading
        else content
        for key, heading, content in nonempty
    )
    # Even inside a JSON string, "</script" would end the script element, and "<!--" would open a
    # comment in it.
    data = json.dumps(charts, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return _SHELL.format(
        policy=_POLICY,
        refresh=f'\n<meta http-equiv="refresh" content="{refresh_s}">' * bool(refresh_s),
        title=esc(title),
        styles=asset("uPlot.min.css") + asset("report.css"),
        links="".join(
            f'<a href="#{key}">{esc(heading)}</a>' for key, heading, _ in nonempty if heading
        ),
        body=body,
        footer=f"segtrain {__version__}, made {utc()}{esc(source)}",
        data=data,
        library=asset("uPlot.iife.min.js"),
        script=asset("report.js"),
    )


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    left: Sequence[int] = (0,),
    kind: str = "",
    caption: str = "",
    heads: bool = False,
    marks: Sequence[str] = (),
) -> str:
    """A table with escaped cells; columns that are not in ``left`` have right-aligned numbers.

    ``heads``: the first cell of each row is its header. ``marks``: the CSS class of each row.
    """

    def cells(row: Sequence[Any], scope: str = "") -> str:
        tags = []
        for column, cell in enumerate(row):
            tag = (
                f'th scope="{scope}"'
                if scope
                else 'th scope="row"'
                if heads and column == 0
                else "td"
            )
            tags.append(f"<{tag}{'' if column in left else ' class=n'}>{esc(cell)}</{tag[:2]}>")
        return "".join(tags)

    top = f"<thead><tr>{cells(head, 'col')}</tr></thead>" if head else ""
    body = "".join(f"<tr>{cells(row)}</tr>" for row in rows)
    if marks:
        body = "".join(f'<tr class="{mark}">{cells(row)}</tr>' for row, mark in zip(rows, marks))
    title = f"<caption>{esc(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table class="{kind}">{title}{top}<tbody>{body}</tbody></table></div>'
    )


Parts = Sequence[tuple[float, str]]


def bars(
    caption: str, head: tuple[str, str, str], rows: Sequence[tuple[str, str, Parts, str, str]]
) -> str:
    """A table with a bar in each row: (name, figure, parts of the bar, figure, CSS class of the
    row).

    A part is a length, where 1 is the longest bar, and its color in report.css; "": the color of
    the row.
    """

    def drawn(parts: Parts) -> str:
        bar = ""
        for length, color in parts:
            own = f";background:var(--{color})" if color else ""
            bar += f'<i style="width:{100 * min(1.0, length):.1f}%{own}"></i>' if length else ""
        return bar

    body = "".join(
        f'<tr class="{kind}"><th scope="row">{esc(name)}</th><td class=n>{esc(figure)}</td>'
        f"<td class=track>{drawn(parts)}</td><td class=n>{esc(second)}</td></tr>"
        for name, figure, parts, second, kind in rows
    )
    first, figure, second = map(esc, head)
    return (
        f'<div class="scroll"><table class="bars"><caption>{caption}</caption>'
        f'<thead><tr><th scope="col">{first}</th><th scope="col" class=n>{figure}</th>'
        '<th scope="col"><span class=hide>bar</span></th><th scope="col" '
        f"class=n>{second}</th></tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def utc(ts: float | None = None) -> str:
    """A Unix time, or the current time, as readable text in UTC; empty for 0."""
    moment = datetime.now(timezone.utc) if ts is None else datetime.fromtimestamp(ts, timezone.utc)
    return "" if ts == 0 else moment.strftime("%Y-%m-%d %H:%M UTC")


def details(summary: str, content: str) -> str:
    return f"<details><summary>{esc(summary)}</summary>{content}</details>"


def copied(text: str) -> str:
    """A line of code with a button that copies it."""
    line = esc(text)
    return (
        f'<span class="copy"><code>{line}</code>'
        f'<button type="button" data-copy="{line}" aria-label="Copy {line}" '
        "hidden>copy</button></span>"
    )


def key(items: Sequence[tuple[str, str]]) -> str:
    """(label, color) of each series. A color is one of report.css, or ``#rrggbb``."""
    swatches = (
        '<span><i style="background:'
        f'{color if color.startswith("#") else f"var(--{color})"}"></i>{esc(label)}</span>'
        for label, color in items
    )
    return f'<p class="key">{" ".join(swatches)}</p>'


def tiles(rows: Sequence[tuple[str, str, str]]) -> str:
    """(what, value, remark) of the figures that matter most."""
    cells = "".join(
        f"<div><dt>{esc(what)}</dt><dd>{esc(value)}</dd><dd class=remark>{esc(remark)}</dd></div>"
        for what, value, remark in rows
    )
    return f'<dl class="tiles">{cells}</dl>'


def figure(key: str, title: str, numbers: str, note: str) -> str:
    """The box of the chart ``key``. ``numbers`` is its table."""
    return (
        f'<figure id="{key}"><figcaption><b>{esc(title)}</b> <span>{esc(note)}</span></figcaption>'
        f'<div class="plot" tabindex="0" role="img" aria-label="{esc(title)}"></div>'
        f"{details('as a table', numbers)}</figure>"
    )


def thinned(rows: Sequence[Any], most: int = 40) -> list[Any]:
    """At most ``most`` rows, evenly spread, including the last one."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round((index + 1) * len(rows) / most) - 1] for index in range(most)]


def figures(value: float | None, digits: int = 4) -> float | None:
    """``value`` rounded to ``digits`` significant digits, so that the data of a chart takes few
    bytes.
    """
    return None if value is None else float(f"{value:.{digits}g}")
