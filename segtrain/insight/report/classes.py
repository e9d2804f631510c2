"""Tables of an evaluation: the IoU of each class, the confusion matrix, and the largest
mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence

from segtrain.base.units import percent
from segtrain.insight.report.html import bars, esc, table
from segtrain.insight.runs.folder import Event, RunFolder
from segtrain.observe.console import worst_classes

_NUMBERED = 24  # With more classes, the cells of the matrix show colors but no numbers.
_WORST = 10


def names_of(run: RunFolder, count: int) -> list[str]:
    return [*run.classes[:count], *(f"class {index}" for index in range(len(run.classes), count))]


def ious(scored: Event) -> list[float | None]:
    values = scored["scores"].get("iou")
    return values if isinstance(values, list) else []


def section(run: RunFolder) -> str:
    chart, counts = by_class(run), matrix(run.best)
    if not chart:
        return ""
    if counts is None:
        missing = (
            "The journal of this run holds no confusion matrix (it is kept for up to 64 classes)."
        )
        return f'<div class="side">{chart}</div><p class=quiet>{missing}</p>'
    names = names_of(run, len(counts))
    return f'<div class="side">{chart}{mistakes(names, counts)}</div>{confusion(names, counts)}'


def by_class(run: RunFolder) -> str:
    """A bar for each class, of the best evaluation."""
    scored = run.best
    values = ious(scored) if scored else []
    if not values:
        return ""
    names = names_of(run, len(values))
    pixels = scored["scores"].get("pixels")
    counts = (
        pixels if isinstance(pixels, list) and len(pixels) == len(values) else [0] * len(values)
    )
    total = sum(counts) or 1
    rows = [
        (
            name,
            "absent" if value is None else percent(value),
            [(value or 0.0, "")],
            percent(count / total, 2),
            "",
        )
        for name, value, count in ((names[k], values[k], counts[k]) for k in worst_classes(values))
    ]
    few = f"; the {len(rows)} lowest of {len(values)}" * (len(rows) < len(values))
    return bars(
        f"IoU by class at step {scored['step']}, the best evaluation{few}",
        ("class", "IoU", "pixels"),
        rows,
    )


def matrix(scored: Event) -> list[list[int]] | None:
    """The confusion matrix of an ``eval`` event; None if the event has none, or it is not
    square.
    """
    counts = scored.get("confusion") if scored else None
    if (
        not isinstance(counts, list)
        or not counts
        or any(not isinstance(row, list) for row in counts)
    ):
        return None
    square = all(
        len(row) == len(counts) and all(isinstance(cell, int) and cell >= 0 for cell in row)
        for row in counts
    )
    return counts if square else None


def confusion(names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Table with colored cells: for each true class, the share of its pixels that was predicted as
    each class.
    """
    numbered = len(names) <= _NUMBERED
    head = "".join(f'<th scope="col"><span>{esc(name)}</span></th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row">{esc(name)}</th>{_cells(name, row, names, numbered)}</tr>'
        for name, row in zip(names, counts)
    )
    return (
        f'<div class="scroll"><table class="matrix{"" if numbered else " dense"}">'
        "<caption>Row: true class. Column: predicted class. Percent of the row.</caption>"
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cells(name: str, row: Sequence[int], names: Sequence[str], numbered: bool) -> str:
    total = sum(row)
    cells = []
    for other, count in zip(names, row):
        share = count / total if total else 0.0
        # A power below 1 makes small shares visible, which are the mistakes. On strong colors, the
        # text is white.
        strength = round(100 * share**0.6)
        text = (
            ""
            if not total or share < 0.0005
            else f"{100 * share:.1f}"
            if share < 0.0995
            else f"{100 * share:.0f}"
        )
        kind = ("hit" if other == name else "miss") + (" strong" if strength > 55 else "")
        title = f"{name} as {other}: {percent(share, 2)}, {count:,} pixels"
        cells.append(
            f'<td class="{kind}" style="--s:{strength}%" '
            f'title="{esc(title)}">{text if numbered else ""}</td>'
        )
    return "".join(cells)


def mistakes(names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """The pairs of classes whose confusion costs the most pixels."""
    pairs = [
        (count, true, guess)
        for true, row in enumerate(counts)
        for guess, count in enumerate(row)
        if true != guess
    ]
    wrong = sum(count for count, _, _ in pairs)
    rows = [
        (
            f"{names[true]} as {names[guess]}",
            f"{count:,}",
            percent(count / sum(counts[true])),
            percent(count / wrong),
        )
        for count, true, guess in sorted(pairs, reverse=True)[:_WORST]
        if count
    ]
    if not rows:
        return ""
    caption = (
        f"The largest mistakes; {percent(wrong / sum(map(sum, counts)), 2)} of all pixels are wrong"
    )
    return table(
        ("truth as prediction", "pixels", "of the class", "of all mistakes"), rows, caption=caption
    )
