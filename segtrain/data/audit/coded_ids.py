"""Recognizes masks whose values are made of a class id and the number of an object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from segtrain import config
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.audit.mask_values import MaskValues, ids_of, rgb
from segtrain.data.labels.mask_code import CODES
from segtrain.data.labels.space import LabelSpace

# Values of an 8-bit mask are smaller.
_DEEP = 256
# Colors that are at most so far from 0 and 255 in each channel were blurred by a lossy copy.
_BLUR = 64
# The largest red of the 3,688 classes of ADE20K.
_REDDEST = 3688 // 256 * 10


def coded_finding(
    data: config.Data, labels: LabelSpace, values: MaskValues, where: str
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


def _blurred(known: dict[int, int], colors: dict[int, int]) -> bool:
    """Whether the classes have pure colors, and all colors of the masks are near such ones."""
    pure = all(channel in (0, 255) for color in known for channel in rgb(color))
    near = all(min(v, 255 - v) <= _BLUR for color in colors for v in rgb(color))
    return bool(known and colors) and pure and near
