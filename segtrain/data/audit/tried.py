"""Proposals for data.label_map and data.classes that were tried on the values of all masks before
they are shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from segtrain.data.audit.finding import SplitFinding
from segtrain.data.labels.space import LabelSpace

Table = dict[int, int]
# Most values that a proposed setting lists.
LISTED = 40
# Values on fewer pixels than this share may be strays: a proposal may ignore them.
STRAY = 0.001
# Values that differ by at most this much are one gray level, blurred by a lossy copy.
NEAR = 8
# Ids without names are those of at most so many classes.
CLASSES = 20


def works(count: int, table: Table, pixels: Table) -> bool:
    """Whether a table (value -> class, or -1) leaves none of ``count`` classes empty while it
    ignores pixels.

    pixels: value -> pixels, of all masks. A value that is not in the table is ignored.
    """
    ignored = [n for value, n in pixels.items() if table.get(value, -1) not in range(count)]
    full = {table.get(value) for value in pixels} >= set(range(count))
    return full or sum(ignored) < STRAY * sum(pixels.values())


def mapped(
    labels: LabelSpace,
    ids: Table,
    message: str,
    table: Table,
    *others: tuple[str, Table],
    fatal: bool = True,
) -> SplitFinding:
    """A finding that ``data.label_map=table`` fixes. ``others``: tables for other cases, as
    (condition, table).

    Only the tables that work are proposed.
    """
    tables = [(when, t) for when, t in (("", table), *others) if works(labels.num_classes, t, ids)]
    more = tuple((when, {"data.label_map": other}) for when, other in tables if other is not table)
    if (("", table)) in tables:
        return SplitFinding(message, fatal, {"data.label_map": table}, more)
    return SplitFinding(
        f"{message}: see which value is which class, and set data.label_map", fatal, {}, more
    )


def are_classes(ids: dict[int, int], void: int) -> bool:
    """Whether ids seem to be those of classes: they count from 0 or 1, or few of them lie apart,
    each on many pixels, as 0 and 255.
    """
    used = sorted(ids.keys() - {void} if len(ids) > 2 else ids)
    if not 2 <= len(used) <= CLASSES or used[0] < 0:
        return False
    if used[0] < 2 and used[-1] - used[0] < len(used):
        return True
    rare = min(ids.values()) < STRAY * sum(ids.values())
    return not rare and all(high - low > NEAR for low, high in itertools.pairwise(sorted(ids)))


def near_levels(ids: Iterable[int]) -> list[list[int]]:
    """Groups of near ids, ascending."""
    levels = list[list[int]]()
    for value in sorted(ids):
        if not levels or value - levels[-1][-1] > NEAR:
            levels.append([])
        levels[-1].append(value)
    return levels


def levels_of(ids: Table) -> list[list[int]]:
    """Groups of near ids, if there are a few, each on many pixels; [] otherwise."""
    levels = near_levels(ids)
    least = min(sum(ids[value] for value in level) for level in levels)
    few = 2 <= len(levels) <= min(CLASSES, len(ids) - 1)
    return levels if few and min(ids) >= 0 and least >= STRAY * sum(ids.values()) else []
