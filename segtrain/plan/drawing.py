"""SVG of a plan's page: curves with intervals over numbers of machines, and stacked bars, in colors of report.css."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from segtrain.report.html import esc

# (x, low, middle, high), all positive.
Point = tuple[int, float, float, float]
COLORS = ("a", "b", "update", "gradient_sync", "eval", "extra1")  # Color-blind readers can tell these apart.
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 300, 62, 12, 12, 34
BAR, GAP, NAMES, VALUES = 22, 8, 190, 230


@dataclass(frozen=True)
class Line:
    """``color``: a name of report.css. ``knee``: the x of the point that is marked as the knee."""

    label: str
    color: str
    points: Sequence[Point]
    knee: int | None


def curves(lines: Sequence[Line], unit: str, limit: float = 0.0, limit_says: str = "") -> str:
    """Curves over numbers of machines, on a logarithmic axis. Bars show the intervals, and a ring the knee.

    ``limit``: a dashed line; 0 for none.
    """
    across = sorted({point[0] for line in lines for point in line.points})
    values = [value for line in lines for point in line.points for value in point[1:]] + [limit] * bool(limit)
    low, high = _rounded(min(values), max(values))

    def x(count: int, shift: float = 0.0) -> float:
        room = WIDTH - LEFT - RIGHT
        return LEFT + room * (across.index(count) + 0.5) / len(across) + shift

    def y(value: float) -> float:
        share = log10(value / low) / log10(high / low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [_tick(LEFT, y(mark), WIDTH - RIGHT, f"{mark:,.3g} {unit}") for mark in _marks(low, high)]
    parts += [
        f'<text x="{x(count):.1f}" y="{HEIGHT - 14}" text-anchor="middle">{count} host{"s" * (count > 1)}</text>'
        for count in across
    ]
    if limit:
        parts.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(limit):.1f}" y2="{y(limit):.1f}"/>')
        parts.append(
            f'<text class="said" x="{WIDTH - RIGHT}" y="{y(limit) - 5:.1f}" text-anchor="end">{esc(limit_says)}</text>'
        )
    for number, line in enumerate(lines):
        shift = 7.0 * (number - (len(lines) - 1) / 2)  # so that intervals do not hide each other
        style = f'style="--own: var(--{line.color})"'
        path = " ".join(f"{x(count, shift):.1f},{y(middle):.1f}" for count, _, middle, _ in line.points)
        parts.append(f'<g class="own" {style}><polyline points="{path}"/>')
        for count, least, middle, most in line.points:
            at = x(count, shift)
            parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y(least):.1f}" y2="{y(most):.1f}"/>')
            parts.append(f'<circle cx="{at:.1f}" cy="{y(middle):.1f}" r="3.5"/>')
            if count == line.knee:
                parts.append(f'<circle class="knee" cx="{at:.1f}" cy="{y(middle):.1f}" r="8"/>')
        parts.append("</g>")
    return _svg(HEIGHT, parts)


def bars(rows: Sequence[tuple[str, Sequence[tuple[float, str]], str]]) -> str:
    """Stacked bars: (name, parts as (length, color), text at the end). ``lengths`` share one scale."""
    most = max(sum(length for length, _ in parts) for _, parts, _ in rows) or 1.0
    scale = (WIDTH - NAMES - VALUES) / most
    drawn = []
    for number, (name, parts, said) in enumerate(rows):
        top, at = number * (BAR + GAP), float(NAMES)
        drawn.append(f'<text x="{NAMES - 8}" y="{top + 15}" text-anchor="end">{esc(name)}</text>')
        for length, color in parts:
            width = scale * length
            drawn.append(f'<rect x="{at:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" fill="var(--{color})"/>')
            at += width
        drawn.append(f'<text x="{at + 8:.1f}" y="{top + 15}">{esc(said)}</text>')
    return _svg(len(rows) * (BAR + GAP), drawn)


def legend(items: Sequence[tuple[str, str]]) -> str:
    """(label, color) of each series."""
    return '<p class="key">' + " ".join(
        f'<span><i style="background:var(--{color})"></i>{esc(label)}</span>' for label, color in items
    ) + "</p>"  # fmt: skip


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg class="drawn" viewBox="0 0 {WIDTH} {height}">{"".join(parts)}</svg>'


def _tick(left: float, at: float, right: float, text: str) -> str:
    return (
        f'<line class="tick" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{esc(text)}</text>'
    )


def _rounded(low: float, high: float) -> tuple[float, float]:
    """The marks around two values; at least a factor of two apart."""
    marks = _all_marks(low, high)
    below, above = max(m for m in marks if m <= low), min(m for m in marks if m >= high)
    return below, above if above > below else 2 * below


def _marks(low: float, high: float) -> list[float]:
    return [mark for mark in _all_marks(low, high) if low * 0.999 <= mark <= high * 1.001]


def _all_marks(low: float, high: float) -> list[float]:
    """1, 2, and 5 times the powers of ten, from below ``low`` to above ``high``."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 2)
    return [n * 10.0**power for power in powers for n in (1, 2, 5)]
