"""Pixel counts of the values in the masks of a split, as stored (ids, colors, palettes), and
proposals that were tried on them before they are shown.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from segtrain.data.audit.finding import SplitFinding
from segtrain.data.dataset import Dataset
from segtrain.data.labels.space import BORDER, LabelSpace
from segtrain.data.pixels import decode

# At most this many distinct values of a split are counted.
MOST = 1024
# A message shows at most this many values.
SHOWN = 12
# Ids of objects are more than this number, and the largest object has less than this share of them.
_MANY, _LARGEST = 20, 0.2
# Masks of objects have at least so many different numbers of them.
_DIFFERENT = 3
_TABLES = ("ids", "colors", "tops", "masks", "void_with")
Table = dict[int, int]  # value -> pixels or masks that have it, or class
# Most values that a proposed setting lists.
LISTED = 40
# Values on fewer pixels than this share may be strays: a proposal may ignore them.
STRAY = 0.001
# Values that differ by at most this much are one gray level, blurred by a lossy copy.
NEAR = 8
# Ids without names are those of at most so many classes.
CLASSES = 20


class Clash(NamedTuple):
    """Two palette masks that give one index different colors (0xRRGGBB)."""

    palette_index: int
    color: int
    file: str
    other_color: int
    other_file: str


@dataclass
class MaskValues:
    """Pixel counts of the values that one or many masks store.

    ids: id -> pixels, in masks with one channel. colors: 0xRRGGBB -> pixels, in RGB masks. palette:
    index -> its color and a file with it, for the indices that occur in palette masks. clash: the
    first two palettes that contradict each other. tops: result of ``top_of`` -> masks. masks: color
    -> number of masks that have it. void_with: number of masks that have the void id beside 0 alone
    (key 0), or beside other ids (key 1). cut: there were more than ``MOST`` values, so some are
    left out.
    """

    ids: Table = field(default_factory=dict)
    colors: Table = field(default_factory=dict)
    palette: dict[int, tuple[int, str]] = field(default_factory=dict)
    clash: Clash | None = None
    tops: Table = field(default_factory=dict)
    masks: Table = field(default_factory=dict)
    void_with: Table = field(default_factory=dict)
    cut: bool = False

    @property
    def counts_up(self) -> bool:
        """Whether the ids of nearly every mask have no gap, and their largest ids differ, as those
        of objects do.
        """
        different = len(self.tops.keys() - {-1, 0}) >= _DIFFERENT
        return different and 10 * self.tops.get(-1, 0) <= sum(self.tops.values())

    def add(self, other: MaskValues) -> None:
        """Count the pixels of other masks, too."""
        for name in _TABLES:
            mine = getattr(self, name)
            for value, count in getattr(other, name).items():
                if value in mine or len(mine) < MOST or name == "tops":
                    mine[value] = mine.get(value, 0) + count
                else:
                    self.cut = True
        self.clash = self.clash or other.clash
        for index, entry in other.palette.items():
            first = self.palette.setdefault(index, entry)
            if self.clash is None and first[0] != entry[0]:
                self.clash = Clash(index, *first, *entry)
        self.cut |= other.cut

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON, in which keys are text."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> MaskValues:
        tables = {
            name: {int(value): count for value, count in content[name].items()} for name in _TABLES
        }
        palette = {int(index): (color, file) for index, (color, file) in content["palette"].items()}
        clash = content["clash"] and Clash(*content["clash"])
        return cls(**tables, palette=palette, clash=clash, cut=content["cut"])


def ids_of(values: MaskValues) -> Table:
    """Pixels of each id, also in RGB masks with equal channels (R = G = B = id); empty if any mask
    has other colors.
    """
    ids = Counter(values.ids)
    for color, count in values.colors.items():
        if color != (color & 255) * 0x010101:
            return {}
        ids[color & 255] += count
    return dict(ids)


def values_of(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values of a raw mask (colors as 0xRRGGBB), ascending, and the number of pixels
    of each, int64.

    Runs of equal pixels are summed instead of single pixels, since most neighbors are equal.
    """
    if raw.ndim == 3:
        raw = raw[..., 0].astype(np.int32) << 16 | raw[..., 1].astype(np.int32) << 8 | raw[..., 2]
    flat = raw.ravel()
    # An empty mask has no run.
    starts = np.append(0, np.flatnonzero(flat[1:] != flat[:-1]) + 1)[: flat.size]
    lengths = np.diff(np.append(starts, flat.size))
    values, runs = np.unique(flat[starts], return_inverse=True)
    return values.astype(np.int64), np.bincount(runs.ravel(), weights=lengths).astype(np.int64)


def raw_and_values(dataset: Dataset, index: int) -> tuple[np.ndarray, MaskValues]:
    """A mask as stored, integers (H, W) or RGB uint8 (H, W, 3), and its values (empty for a
    generated mask).
    """
    stored, file = dataset.stored_mask(index), str(dataset.entries[index].mask)
    raw = stored if isinstance(stored, np.ndarray) else decode.decode_mask(stored, file)
    return raw, _values(dataset, raw, stored, file)


def _values(dataset: Dataset, raw: np.ndarray, stored: Any, file: str) -> MaskValues:
    # Train ids say something about the encoding only if they are equal to the raw ids.
    hidden = dataset.ids == "train" and any(
        raw != train for raw, train in dataset.labels.raw_to_train.items()
    )
    if hidden or raw.dtype.kind not in "uib":
        return MaskValues()
    counts = {int(value): int(count) for value, count in zip(*values_of(raw))}
    void = dataset.labels.ignore_index
    if raw.ndim == 3:
        with_it = _void_with(counts, void * 0x010101)
        return MaskValues(colors=counts, masks=dict.fromkeys(counts, 1), void_with=with_it)
    colors = {} if isinstance(stored, np.ndarray) else decode.palette_of(stored, file)
    palette = {value: (color, file) for value, color in colors.items() if value in counts}
    tops, with_it = {top_of(counts, void): 1}, _void_with(counts, void)
    return MaskValues(counts, palette=palette, tops=tops, void_with=with_it)


def _void_with(counts: Table, void: int) -> Table:
    others = counts.keys() - {void}
    return {int(others != {0}): 1} if others and void in counts else {}


def top_of(ids: Iterable[int], void: int) -> int:
    """The largest id of a mask whose ids are 0 .. n or 1 .. n without a gap, like instance ids;
    otherwise -1.

    If there is a gap, the id ``void`` is left out, and the other ids are tested again.
    """
    for used in (sorted(ids), sorted(set(ids) - {void})):
        if used and used[0] in (0, 1) and used[-1] - used[0] + 1 == len(used):
            return used[-1]
    return -1


def numbers_objects(ids: Table) -> bool:
    """Whether the ids of all masks seem to number objects: many ids without a gap, each on many
    pixels, none on most.

    After interpolation, the values between two classes lie along borders, and cover few pixels.
    """
    objects = sorted(count for value, count in ids.items() if value)
    return (
        len(objects) > _MANY
        and max(ids) == len(objects)
        and objects[len(objects) // 2] >= BORDER
        and objects[-1] < _LARGEST * sum(objects)
    )


def smear(mask: np.ndarray, ignore_index: int) -> float:
    """Share of label borders (in every fourth row) at which one pixel has a value between those on
    its two sides.

    Nearly all borders are like this in a mask that was resized with interpolation, and nearly none
    in other masks. Borders with ignored pixels do not count, since ``ignore_index`` has no place in
    the order of the class ids. The result is 0 if there are fewer than 50 borders.
    """
    rows = mask[::4]
    left, middle, right = rows[:, :-2], rows[:, 1:-1], rows[:, 2:]
    border = (
        (left != right)
        & (left != ignore_index)
        & (right != ignore_index)
        & (middle != ignore_index)
    )
    total = int(np.count_nonzero(border))
    if total < 50:
        return 0.0
    between = ((left < middle) & (middle < right)) | ((left > middle) & (middle > right))
    return int(np.count_nonzero(between & border)) / total


def rgb(color: int) -> list[int]:
    return list(color.to_bytes(3, "big"))


def percent(count: int, pixels: Table) -> str:
    return f"({100 * count / sum(pixels.values()):.1f} %)"


def shown(ids: Table, pixels: Table | None = None) -> str:
    """The most frequent ids with their shares of all ``pixels`` as text: ``0 (30.1 %) and 255
    (69.9 %)``.
    """
    most = sorted(sorted(ids, key=lambda value: -ids[value])[:SHOWN])
    texts = [f"{value} {percent(ids[value], pixels or ids)}" for value in most]
    if len(ids) > len(most):
        return f"{', '.join(texts)} and {len(ids) - len(most):,} more"
    return " and ".join(", ".join(texts).rsplit(", ", 1))


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
    if ("", table) in tables:
        return SplitFinding(message, fatal, {"data.label_map": table}, more)
    return SplitFinding(
        f"{message}: see which value is which class, and set data.label_map", fatal, {}, more
    )


def are_classes(ids: Table, void: int) -> bool:
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
