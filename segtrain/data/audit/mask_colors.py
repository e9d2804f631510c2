"""Findings about RGB masks, palettes, and coded ids that the settings do not know, or read as other
classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from segtrain.config import Data
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.audit.mask_values import (
    LISTED,
    SHOWN,
    Clash,
    MaskValues,
    Table,
    ids_of,
    mapped,
    percent,
    rgb,
    works,
)
from segtrain.data.labels.class_file import read_classes
from segtrain.data.labels.mask_code import CODES
from segtrain.data.labels.space import LabelSpace
from segtrain.errors import SegtrainError

_VOID = "void"
# Colors that differ by at most this much in each channel are ids of segments.
_NEAR = 3
# Values of an 8-bit mask are smaller.
_DEEP = 256
# Colors that are at most so far from 0 and 255 in each channel were blurred by a lossy copy.
_BLUR = 64
# The largest red of the 3,688 classes of ADE20K.
_REDDEST = 3688 // 256 * 10


def clashing_palettes(labels: LabelSpace, clash: Clash, where: str) -> SplitFinding:
    """The finding about a palette index that has different colors in two files.

    Either the index means two classes, or the colors have no meaning.
    """
    message = (
        f"{where}: palette masks are read by index, but index {clash.palette_index} is "
        f"{rgb(clash.color)} in "
        f"{clash.file} and {rgb(clash.other_color)} in {clash.other_file}. If the colors "
        "are right, save the masks as "
        "RGB, and set the colors in data.classes"
    )
    right = ("if the indices are right in all files", {"data.label_map": labels.full_map()})
    return SplitFinding(message, True, others=(right,))


def palette_against_colors(
    labels: LabelSpace, values: MaskValues, where: str
) -> SplitFinding | None:
    """The finding about palette masks whose colors mean other classes than their indices. They are
    read by index.
    """
    by_color = {index: labels.colors.get(color) for index, (color, _) in values.palette.items()}
    matched = {index: train for index, train in sorted(by_color.items()) if train is not None}
    if not matched:
        return None  # no color of the palette is the color of a class
    if all(labels.raw_to_train.get(index) == train for index, train in by_color.items()):
        return None
    message = (
        f"{where}: palette masks are read by index, but the colors of their palettes "
        "belong to other classes"
    )
    if len(matched) < len(by_color):
        return SplitFinding(
            f"{message}; no table from index to class fits all files: save the masks as RGB", True
        )
    table = {
        index: -1 if train == labels.ignore_index else train for index, train in matched.items()
    }
    right = ("if the indices are right", labels.full_map())
    return mapped(labels, values.ids, f"{message}. Map the indices by their colors", table, right)


def colors_wanted(data: Data, labels: LabelSpace, values: MaskValues, where: str) -> SplitFinding:
    """The finding about RGB masks of classes without colors. A name that no file gives is a
    question mark.
    """
    colors = values.colors
    message = f"{where}: RGB masks, but the classes have no colors"
    if values.cut or len(colors) > max(LISTED, 2 * labels.num_classes):
        message += (
            f", and the masks have {'more than ' * values.cut}{len(colors):,} of them: "
            "these are photos, masks "
        )
        message += (
            "that were resized with interpolation or saved as JPEG, or ids of segments (as COCO "
            "panoptic has them, R + 256 G + 65536 B, with the classes in a JSON file: "
            "data.layout=coco-panoptic): make masks of class ids"
        )
        return SplitFinding(message, True)
    text = f"{message}. The masks have {shares(colors, colors)}"
    alone = sum(count == 1 for count in values.masks.values())
    near = any(_differ(*pair) <= _NEAR for pair in combinations(colors, 2))
    if near or (len(colors) > labels.num_classes and alone > len(colors) / 2):
        text += (
            ". These are ids of segments, not colors of classes, since they differ by "
            "little, or most are in one "
        )
        return SplitFinding(
            f"{text}mask only: make masks of class ids, by the file that lists the segments", True
        )
    return _named(data, colors, text)


def _named(data: Data, colors: Table, message: str) -> SplitFinding:
    """A finding whose settings give each color the name in a file beside the data; otherwise a
    question mark.
    """
    files = sorted(Path(data.root).glob("*"))
    for path in (path for path in files if path.suffix in (".csv", ".txt", ".json", ".yaml")):
        with suppress(SegtrainError):
            file = read_classes(path)
            unnamed = colors.keys() - file.colors.keys()
            if unnamed <= {0}:
                named: dict[str, Any] = {"background": rgb(0)} if unnamed else {}
                return SplitFinding(
                    f"{message}. {path} names them", True, {"data.classes": named | table_of(file)}
                )
    most = sorted(colors, key=lambda color: -colors[color])
    return SplitFinding(
        f"{message}. Write the name of each color in the place of its question mark",
        True,
        {"data.classes": {f"?{number}": rgb(color) for number, color in enumerate(most, 1)}},
    )


def table_of(labels: LabelSpace) -> dict[str, Any]:
    """data.classes for a label space with colors."""
    table: dict[str, Any] = {name: [] for name in labels.names}
    for color, train in labels.colors.items():
        table.setdefault(_VOID if train == labels.ignore_index else labels.names[train], []).append(
            rgb(color)
        )
    return table


def unknown_colors(
    data: Data, labels: LabelSpace, values: MaskValues, where: str
) -> SplitFinding | None:
    """The finding about colors of no class."""
    unknown = {color: n for color, n in values.colors.items() if color not in labels.colors}
    if not unknown or values.cut or len(unknown) + len(labels.colors) > LISTED:
        return None
    message = f"{where}: colors of no class: {shares(unknown, values.colors)}"
    if not works(labels.num_classes, labels.colors, values.colors):
        return _named(data, values.colors, message)
    table = table_of(
        replace(labels, colors=labels.colors | dict.fromkeys(unknown, labels.ignore_index))
    )
    return SplitFinding(f"{message}. To ignore them", settings={"data.classes": table})


def shares(colors: Table, pixels: Table) -> str:
    """The most frequent colors with their shares of all ``pixels`` as text."""
    most = sorted(colors.items(), key=lambda pair: -pair[1])[:SHOWN]
    return ", ".join(f"{rgb(color)} {percent(count, pixels)}" for color, count in most)


def _differ(color: int, other: int) -> int:
    return max(abs(a - b) for a, b in zip(rgb(color), rgb(other)))


def coded_finding(
    data: Data, labels: LabelSpace, values: MaskValues, where: str
) -> SplitFinding | None:
    """The finding about masks that ``data.mask_code`` decodes."""
    known = values.colors.keys() <= labels.colors.keys()
    if data.mask_code != "none" or (known and values.ids.keys() <= labels.raw_to_train.keys()):
        return None
    code = "" if data.label_map else code_of(values)
    if _blurred(labels.colors, values.colors):
        code = "cut"
    if not code:
        return None
    message = f"{where}: the values of the masks are coded: {CODES[code].formula}"
    return SplitFinding(message, True, {"data.mask_code": code})


def code_of(values: MaskValues) -> str:
    """The name of the code; "" if the values are none.

    A code shows in classes of several objects, whose numbers are small.
    """
    ids = ids_of(values)
    if not ids and values.colors:
        colors = [rgb(color) for color in values.colors]
        tens = all(red % 10 == 0 and red <= _REDDEST for red, _, _ in colors)
        # Of too many colors, the first are known: the darkest reds of a blurred mask.
        tens &= not values.cut or any(red for red, _, _ in colors)
        return "ade20k" if tens and _several((red, green) for red, green, _ in colors) else ""
    deep = [value for value in ids if value >= _DEEP]
    bases = {base: max((value % base / base for value in deep), default=1) for base in (256, 1000)}
    base = min(bases, key=lambda base: bases[base])
    if bases[base] >= 0.5 or not _several(value // base for value in deep):
        return ""
    if base == _DEEP:
        return "mapillary"
    return "cityscapes" if any(0 < value < 1000 for value in ids) else "mots"


def _several(classes: Iterable[object]) -> bool:
    return max(Counter(classes).values(), default=0) > 1


def _blurred(known: Table, colors: Table) -> bool:
    """Whether the classes have pure colors, and all colors of the masks are near such ones."""
    pure = all(channel in (0, 255) for color in known for channel in rgb(color))
    near = all(min(v, 255 - v) <= _BLUR for color in colors for v in rgb(color))
    return bool(known and colors) and pure and near
