"""Detection of masks that the settings read wrong, and of settings that fix it, from the values in all masks."""

from __future__ import annotations

from collections import Counter
from typing import Any

from segtrain import config
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.audit.mask_values import SHOWN, MaskValueCounter, MaskValues, percent, rgb, shown
from segtrain.data.labels.space import LabelSpace, code, color_wheel

# Values that a proposed setting may list, and instance ids.
_LISTED, _INSTANCES = 40, 255
_BACKGROUND = ("background", "backgrounds", "bg", "back", "other", "others", "none", "rest", "nothing")
_VOID = "void"


def mask_finding(data: config.Data, labels: LabelSpace, splits: dict[str, MaskValues]) -> SplitFinding | None:
    """The finding about the settings, given the values in the masks of all splits; None if nothing is suspicious.

    An explicit ``data.label_map`` is taken as intended and turns the guesses off.
    """
    tally = MaskValueCounter()
    for values in splits.values():
        tally.add(values)
    values, where = tally.done(), " and ".join(splits)
    ids = dict(values.ids)
    if values.colors and labels.colors:
        found = _unknown_colors(labels, values, where)
        if found:
            return found
    elif values.colors and not ids:  # a few RGB masks among others are faulty files
        if not all(_is_gray(color) for color in values.colors):
            return _colors_wanted(labels, values, where)
        for color, count in values.colors.items():  # the same ids in all three channels
            ids[color & 255] = ids.get(color & 255, 0) + count
    if not ids:
        return None
    if values.clash and not data.label_map:
        return _clashing_palettes(labels, values, where)
    if data.label_map or not _is_plain(labels):
        return _unknown_ids(labels, ids, where) if not values.cut else None
    if values.palette and labels.colors:
        found = _palette_against_colors(labels, values, where)
        if found:
            return found
    return _two_encodings(labels, splits) or _plain_ids(labels, ids, values.tops, where)


def _two_encodings(labels: LabelSpace, splits: dict[str, MaskValues]) -> SplitFinding | None:
    """Two classes of which one split stores the second as 1, and another split as ``ignore_index``."""
    void = labels.ignore_index
    if labels.num_classes != 2 or any(values.colors for values in splits.values()):
        return None
    as_one = [name for name, values in splits.items() if values.ids.get(1) and set(values.ids) <= {0, 1}]
    as_void = [name for name, values in splits.items() if set(values.ids) == {0, void}]
    settings = {"data.label_map": {0: 0, 1: 1, void: 1}}
    if as_one and as_void:
        return SplitFinding(
            f"the masks of {' and '.join(as_one)} have the values 0 and 1, those of {' and '.join(as_void)} 0 and "
            f"{void}, which is void by default: class {labels.names[1]!r} would have no pixel there. If both values "
            "mean this class, map both",
            True,
            settings,
            ((f"if {void} really is void", {"data.label_map": {0: 0, 1: 1, void: -1}}),),
        )
    ids = sum((Counter(values.ids) for values in splits.values()), Counter())
    if set(ids) == {0, 1, void} and ids[void] > ids[1]:
        return SplitFinding(
            f"{' and '.join(splits)}: the masks have the values {shown(dict(ids))}; {void} is void by default, and "
            f"more frequent than class {labels.names[1]!r}. If some masks store that class as {void}, map both",
            settings=settings,
            others=((f"if {void} really is void", {"data.label_map": {0: 0, 1: 1, void: -1}}),),
        )
    return None


def _plain_ids(labels: LabelSpace, ids: dict[int, int], tops: dict[int, int], where: str) -> SplitFinding | None:
    """Masks whose values are read as ids 0 .. C-1 and ``ignore_index``."""
    count, void = labels.num_classes, labels.ignore_index
    used = sorted(set(ids) - {void})
    if count == 2 and len(ids) == 2 and void in ids and used[0] in (0, 1):
        return _two_values(labels, ids, used[0], where)
    if any(value not in range(count) for value in used):
        return (
            _other_ids(labels, ids, used, where) or _instances(labels, tops, where) or _unknown_ids(labels, ids, where)
        )
    missing = sorted(set(range(count)) - set(used))
    if void in ids and count > 2 and missing in ([0], [count - 1]):
        return _background_as_void(labels, ids, used, missing[0], where)
    if used and used[0] == 1 and void not in ids:
        table = {value: value - 1 for value in range(1, count)}
        return SplitFinding(
            f"{where}: no mask has id 0 (class {labels.names[0]!r}), only {shown(ids)}. If ids start at 1, map them",
            settings={"data.label_map": {**table, count: count - 1}},
        )
    return None


def _two_values(labels: LabelSpace, ids: dict[int, int], used: int, where: str) -> SplitFinding:
    void = labels.ignore_index
    table = {0: 0, void: 1} if used == 0 else {void: 0, 1: 1}
    lost = labels.names[1 - used]
    return SplitFinding(
        f"{where}: the masks have only the values {shown(ids)}. {void} is void by default, so class {lost!r} would "
        f"have no pixel and any score would be 100 %. Set what {void} means",
        fatal=True,
        settings={"data.label_map": table},
        others=((f"if {void} really is void", {"data.label_map": {0: 0, 1: 1, void: -1}}),),
    )


def _other_ids(labels: LabelSpace, ids: dict[int, int], used: list[int], where: str) -> SplitFinding | None:
    """Some ids are not a class: the finding with a table of the ids that occur, if their meaning is clear."""
    count, names = labels.num_classes, labels.names
    says = f"{where}: there are {count} classes, and the masks have the values {shown(ids)}"
    if used[0] >= 1 and used[-1] == count:
        table = {value: value - 1 for value in range(1, count + 1)}
        return SplitFinding(f"{says}: the ids start at 1. Map them", True, {"data.label_map": table})
    if len(used) == count:
        table = {value: place for place, value in enumerate(used)}
        return SplitFinding(
            f"{says}: not ids from 0 to {count - 1}. Map them in order (class {names[0]!r} first), or as intended",
            True,
            {"data.label_map": table},
        )
    if used == list(range(count + 1)):
        from_one = {0: -1, **{value: value - 1 for value in range(1, count + 1)}}
        last_void = {**{value: value for value in range(count)}, count: -1}
        first, second = (last_void, from_one) if _is_background(names[0]) else (from_one, last_void)
        when = f"if id {count if second is last_void else 0} is the one to ignore"
        return SplitFinding(
            f"{says}: one id more than classes. Ignore id {0 if first is from_one else count}, or name its class",
            True,
            {"data.label_map": first},
            ((when, {"data.label_map": second}),),
        )
    return _gray_levels(labels, ids, used, says)


def _gray_levels(labels: LabelSpace, ids: dict[int, int], used: list[int], says: str) -> SplitFinding | None:
    """As many values as classes including ``ignore_index``, or some of the gray levels that divide 0 .. 255 evenly."""
    count, void = labels.num_classes, labels.ignore_index
    tables = [
        {level(255 * place / (count - 1)): place for place in range(count)} for level in (round, int) if count > 2
    ]
    table = next((table for table in tables if set(ids) <= set(table)), None)
    if table is None and len(ids) == count:
        table = {value: place for place, value in enumerate(sorted(ids))}
    if table is None:
        return None
    without = {"data.label_map": {**{value: table[value] for value in used}, void: -1}}
    return SplitFinding(
        f"{says}: not ids from 0 to {count - 1}. Map them in order (class {labels.names[0]!r} first), or as intended",
        True,
        {"data.label_map": table},
        ((f"if {void} really is void", without),) if void in ids else (),
    )


def _instances(labels: LabelSpace, tops: dict[int, int], where: str) -> SplitFinding | None:
    """The ids of each mask count up without a gap, to different numbers far beyond the number of classes."""
    count, most = labels.num_classes, max(tops, default=0)
    if most < max(8, 4 * count) or len(set(tops) - {-1, 0}) < 3 or tops.get(-1, 0) > 0.1 * sum(tops.values()):
        return None
    says = (
        f"{where}: there are {count} classes, and the ids of each mask count up from 0, at most to {most}: these look "
        "like instance ids"
    )
    if count != 2:
        return SplitFinding(f"{says}, not class ids: make masks of class ids", True)
    if most > _INSTANCES:
        return SplitFinding(f"{says}. Make masks of 0 and 1 from them, such as (mask > 0)", True)
    table = {0: 0, **dict.fromkeys(range(1, most + 1), 1)}
    back, front = labels.names
    return SplitFinding(
        f"{says}. Map 0 to class {back!r} and each object to {front!r}", True, {"data.label_map": table}
    )


def _unknown_ids(labels: LabelSpace, ids: dict[int, int], where: str) -> SplitFinding | None:
    """Ids that are not in the label space, with the complete table that ignores them."""
    unknown = sorted(value for value in ids if value not in labels.raw_to_train)
    if not unknown or len(unknown) + len(labels.raw_to_train) > _LISTED:
        return None
    table = labels.full_map(unknown)
    return SplitFinding(
        f"{where}: ids of no class: {shown({value: ids[value] for value in unknown})}. To ignore them",
        settings={"data.label_map": table},
    )


def _background_as_void(
    labels: LabelSpace, ids: dict[int, int], used: list[int], missing: int, where: str
) -> SplitFinding:
    """Void and all classes but one occur: that class may be stored as void."""
    void, names = labels.ignore_index, labels.names
    share = ids[void] / sum(ids.values())
    if missing and _is_background(names[-1]) and not _is_background(names[0]):
        table, lost = {**{value: value for value in used}, void: missing}, names[-1]
    else:
        table, lost = {void: 0, **{value: place for place, value in enumerate(used, 1)}}, names[0]
    sure = share > 0.5 or (missing == 0 and _is_background(names[0]))
    own = {**{value: value for value in range(labels.num_classes)}, void: -1}
    return SplitFinding(
        f"{where}: the masks have the values {shown(ids)}; class {names[missing]!r} (id {missing}) has no pixel, and "
        f"{void} is void by default. If {void} stands for {lost!r}, map it",
        sure,
        {"data.label_map": table},
        ((f"if {void} really is void", {"data.label_map": own}),),
    )


def _clashing_palettes(labels: LabelSpace, values: MaskValues, where: str) -> SplitFinding:
    """One index has two colors: it means two classes, or the palettes mean nothing."""
    assert values.clash is not None
    clash = values.clash
    return SplitFinding(
        f"{where}: palette masks are read by index, and their palettes contradict each other: index {clash.index} is "
        f"{rgb(clash.color)} in {clash.file} and {rgb(clash.other_color)} in {clash.other_file}. If the colors are "
        "right, save the masks as RGB, and set the colors in data.classes",
        True,
        others=(("if the indices are right in all files", {"data.label_map": labels.full_map()}),),
    )


def _palette_against_colors(labels: LabelSpace, values: MaskValues, where: str) -> SplitFinding | None:
    """Palette masks are read by index. If their colors mean other classes than their indices, neither is safe."""
    by_color = {index: labels.colors.get(color) for index, (color, _) in values.palette.items()}
    if all(train is None for train in by_color.values()):
        return None  # the palette means nothing
    if all(labels.raw_to_train.get(index) == train for index, train in by_color.items()):
        return None
    says = f"{where}: palette masks are read by index, but the colors of their palettes belong to other classes"
    if None in by_color.values():
        return SplitFinding(f"{says}; no table from index to class fits all files: save the masks as RGB", True)
    table = {index: -1 if train == labels.ignore_index else train for index, train in sorted(by_color.items())}
    return SplitFinding(
        f"{says}. Map the indices by their colors", True, {"data.label_map": table},
        (("if the indices are right", {"data.label_map": labels.full_map()}),),
    )  # fmt: skip


def _colors_wanted(labels: LabelSpace, values: MaskValues, where: str) -> SplitFinding:
    """RGB masks, but the classes have no colors: the colors that occur, assigned to the names by a guess."""
    colors = values.colors
    says = f"{where}: RGB masks, but the classes have no colors"
    if values.cut or len(colors) > max(_LISTED, 2 * labels.num_classes):
        return SplitFinding(
            f"{says}, and the masks have {'more than ' * values.cut}{len(colors):,} of them: these are photos, or "
            "masks that were resized with interpolation or saved as JPEG: make the masks again without loss",
            True,
        )
    named = _deal(labels, colors)
    guess = "" if len(colors) <= 2 else ". Which color is which class is a guess: put them in order"
    counted = dict(sorted(colors.items(), key=lambda pair: -pair[1]))
    text = ", ".join(f"{rgb(color)} {percent(n, colors)}" for color, n in list(counted.items())[:SHOWN])
    return SplitFinding(f"{says}. The masks have {text}{guess}", True, {"data.classes": named})


def _deal(labels: LabelSpace, colors: dict[int, int]) -> dict[str, Any]:
    """Class name -> color: the palette of Pascal VOC in its order, otherwise black first, then frequent to rare."""
    names, voc = list(labels.names), [0, *(code(color) for color in color_wheel(max(labels.num_classes - 1, 1)))]
    if set(colors) <= {*voc, 0xE0E0C0}:
        dealt: dict[str, Any] = {name: rgb(color) for name, color in zip(names, voc)}
        return dealt if 0xE0E0C0 not in colors else {**dealt, _VOID: rgb(0xE0E0C0)}
    order = sorted(colors, key=lambda color: (color != 0, -colors[color]))
    dealt = {}
    if len(order) == len(names) + 1 and order[0] == 0 and not _is_background(names[0]):
        dealt, order = {_VOID: rgb(0)}, order[1:]
    names += [f"class {place}" for place in range(len(names), len(order))]
    named = {name: rgb(color) for name, color in zip(names, order)}
    return {**named, **{name: [] for name in names[len(order) :]}, **dealt}


def _unknown_colors(labels: LabelSpace, values: MaskValues, where: str) -> SplitFinding | None:
    unknown = {color: n for color, n in values.colors.items() if color not in labels.colors}
    if not unknown or values.cut or len(unknown) + len(labels.colors) > _LISTED:
        return None
    table: dict[str, Any] = {name: [] for name in labels.names}
    for color, train in labels.colors.items():
        table.setdefault(_VOID if train == labels.ignore_index else labels.names[train], []).append(rgb(color))
    table.setdefault(_VOID, []).extend(rgb(color) for color in unknown)
    text = ", ".join(f"{rgb(color)} {percent(n, values.colors)}" for color, n in list(unknown.items())[:SHOWN])
    return SplitFinding(f"{where}: colors of no class: {text}. To ignore them", settings={"data.classes": table})


def _is_plain(labels: LabelSpace) -> bool:
    own = {**{value: value for value in range(labels.num_classes)}, labels.ignore_index: labels.ignore_index}
    return labels.raw_to_train == own


def _is_gray(color: int) -> bool:
    return color >> 16 == color >> 8 & 255 == color & 255


def _is_background(name: str) -> bool:
    return name.strip().lower().lstrip("_") in _BACKGROUND
