"""Detects from the values in all masks that the settings misread them, and proposes settings that fix it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from segtrain import config
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.audit.mask_values import SHOWN, Clash, MaskValues, ids_of, percent, rgb, shown
from segtrain.data.labels.space import LabelSpace, code, color_wheel

# Most values that a proposed setting lists, and the largest instance id that it maps.
_LISTED, _INSTANCES = 40, 255
_BACKGROUND = ("background", "backgrounds", "bg", "back", "other", "others", "none", "rest", "nothing")
_VOID = "void"


def mask_finding(data: config.Data, labels: LabelSpace, splits: dict[str, MaskValues]) -> SplitFinding | None:
    """The finding about the settings, given the values in the masks of all splits; None if nothing is suspicious.

    An explicit ``data.label_map`` is taken as intended and turns the guesses off.
    """
    values, where = MaskValues(), " and ".join(splits)
    for of_split in splits.values():
        values.add(of_split)
    ids = values.ids
    if values.colors and labels.colors:
        found = _unknown_colors(labels, values, where)
        if found:
            return found
    elif values.colors and not ids:  # with ids as well, the RGB masks are faulty files
        ids = ids_of(values)
        if not ids:
            return _colors_wanted(labels, values, where)
    if not ids:
        return None
    if values.clash and not data.label_map:
        return _clashing_palettes(labels, values.clash, where)
    own = {**{value: value for value in range(labels.num_classes)}, labels.ignore_index: labels.ignore_index}
    if data.label_map or labels.raw_to_train != own:
        return _unknown_ids(labels, ids, where) if not values.cut else None
    if values.palette and labels.colors:
        found = _palette_against_colors(labels, values, where)
        if found:
            return found
    return _two_encodings(labels, splits) or _plain_ids(labels, ids, values.tops, where)


Table = dict[int, int]


def _mapped(says: str, table: Table, *others: tuple[str, Table], fatal: bool = True) -> SplitFinding:
    """A finding that ``data.label_map=table`` fixes. ``others``: tables for other cases, as (condition, table)."""
    more = tuple((when, {"data.label_map": other}) for when, other in others)
    return SplitFinding(says, fatal, {"data.label_map": table}, more)


def _two_encodings(labels: LabelSpace, splits: dict[str, MaskValues]) -> SplitFinding | None:
    """The finding about masks of two classes, of which some store the second class as 1, others as ``ignore_index``."""
    void = labels.ignore_index
    if labels.num_classes != 2 or any(values.colors for values in splits.values()):
        return None
    as_one = [name for name, values in splits.items() if values.ids.get(1) and set(values.ids) <= {0, 1}]
    as_void = [name for name, values in splits.items() if set(values.ids) == {0, void}]
    both, really = {0: 0, 1: 1, void: 1}, (f"if {void} really is void", {0: 0, 1: 1, void: -1})
    if as_one and as_void:
        one, other = " and ".join(as_one), " and ".join(as_void)
        says = f"the masks of {one} have the values 0 and 1, those of {other} 0 and {void}, which is void by default. "
        says += f"If 1 and {void} both mean class {labels.names[1]!r}, map both"
        return _mapped(says, both, really)
    ids = sum((Counter(values.ids) for values in splits.values()), Counter())
    if set(ids) == {0, 1, void} and ids[void] > ids[1]:
        says = f"{' and '.join(splits)}: the masks have the values {shown(dict(ids))}; {void} is void by default, and "
        says += f"more frequent than class {labels.names[1]!r}. If some masks store that class as {void}, map both"
        return _mapped(says, both, really, fatal=False)
    return None


def _plain_ids(labels: LabelSpace, ids: dict[int, int], tops: dict[int, int], where: str) -> SplitFinding | None:
    """The finding about masks whose values are read as ids 0 .. C-1 and ``ignore_index``."""
    count, void = labels.num_classes, labels.ignore_index
    used = sorted(set(ids) - {void})
    if count == 2 and len(ids) == 2 and void in ids and used[0] in (0, 1):
        lost = labels.names[1 - used[0]]
        says = f"{where}: the masks have only the values {shown(ids)}. {void} is void by default, so class {lost!r} "
        says += f"would have no pixel and any score would be 100 %. Set what {void} means"
        table = {0: 0, void: 1} if used[0] == 0 else {void: 0, 1: 1}
        return _mapped(says, table, (f"if {void} really is void", {0: 0, 1: 1, void: -1}))
    if any(value not in range(count) for value in used):
        found = _other_ids(labels, ids, used, where) or _instances(labels, tops, where)
        return found or _unknown_ids(labels, ids, where)
    missing = sorted(set(range(count)) - set(used))
    if void in ids and count > 2 and missing in ([0], [count - 1]):
        return _background_as_void(labels, ids, used, missing[0], where)
    if used and used[0] == 1 and void not in ids:
        says = f"{where}: no mask has id 0 (class {labels.names[0]!r}), only {shown(ids)}. If ids start at 1, map them"
        return _mapped(says, {value: value - 1 for value in range(1, count + 1)}, fatal=False)
    return None


def _other_ids(labels: LabelSpace, ids: dict[int, int], used: list[int], where: str) -> SplitFinding | None:
    """The finding about ids that are not classes, with a table of the ids; None if their meaning is unclear."""
    count, void, names = labels.num_classes, labels.ignore_index, labels.names
    says = f"{where}: there are {count} classes, and the masks have the values {shown(ids)}"
    in_order = f"{says}: not ids from 0 to {count - 1}. Map them in order (class {names[0]!r} first), or as intended"
    from_one = {value: value - 1 for value in range(1, count + 1)}
    if used[0] >= 1 and used[-1] == count:
        return _mapped(f"{says}: the ids start at 1. Map them", from_one)
    if len(used) == count:
        return _mapped(in_order, {value: train for train, value in enumerate(used)})
    if used == list(range(count + 1)):
        tables = {0: {0: -1, **from_one}, count: {**{value: value for value in range(count)}, count: -1}}
        # Void lies on borders in most images: it is rarer than the first class, but not as rare as the rarest classes.
        rare = sorted(ids[value] for value in range(1, count))[count // 4]
        last = _is_background(names[0]) or rare <= ids[count] < ids[0]
        first, second = (count, 0) if last else (0, count)
        says = f"{says}: one id more than classes. Ignore id {first}, or name its class"
        return _mapped(says, tables[first], (f"if id {second} is the one to ignore", tables[second]))
    # Two cases are clear: all ids are gray levels that divide 0 .. 255 evenly, or there are as many ids as classes.
    levels = (
        {level(255 * train / (count - 1)): train for train in range(count)} for level in (round, int) if count > 2
    )
    in_turn = {value: train for train, value in enumerate(sorted(ids))}
    table = next((table for table in levels if set(ids) <= set(table)), in_turn if len(ids) == count else None)
    if table is None:
        return None
    without = {**{value: table[value] for value in used}, void: -1}
    return _mapped(in_order, table, *([(f"if {void} really is void", without)] if void in ids else []))


def _instances(labels: LabelSpace, tops: dict[int, int], where: str) -> SplitFinding | None:
    """The finding about masks that seem to hold instance ids instead of class ids.

    The ids of nearly every mask have no gap, their largest ids differ, and the maximum is far above the class count.
    """
    count, most = labels.num_classes, max(tops, default=0)
    if most < max(8, 4 * count) or len(set(tops) - {-1, 0}) < 3 or tops.get(-1, 0) > 0.1 * sum(tops.values()):
        return None
    says = f"{where}: the ids of each mask count up without a gap, at most to {most}: these look like instance ids"
    if count != 2:
        return SplitFinding(f"{says}, not class ids of {count} classes: make masks of class ids", True)
    if most > _INSTANCES:
        return SplitFinding(f"{says}. Make masks of 0 and 1 from them, such as (mask > 0)", True)
    says += f". Map 0 to class {labels.names[0]!r} and each object to {labels.names[1]!r}"
    return _mapped(says, {0: 0, **dict.fromkeys(range(1, most + 1), 1)})


def _unknown_ids(labels: LabelSpace, ids: dict[int, int], where: str) -> SplitFinding | None:
    """The finding about ids that are not in the label space, with a complete data.label_map that ignores them."""
    unknown = sorted(value for value in ids if value not in labels.raw_to_train)
    if not unknown or len(unknown) + len(labels.raw_to_train) > _LISTED:
        return None
    says = f"{where}: ids of no class: {shown({value: ids[value] for value in unknown})}. To ignore them"
    return _mapped(says, labels.full_map(unknown), fatal=False)


def _background_as_void(
    labels: LabelSpace, ids: dict[int, int], used: list[int], missing: int, where: str
) -> SplitFinding:
    """The finding about masks with void and all classes but one: that class may be stored as void."""
    void, names = labels.ignore_index, labels.names
    if missing and _is_background(names[-1]) and not _is_background(names[0]):
        table, lost = {**{value: value for value in used}, void: missing}, names[-1]
    else:
        table, lost = {void: 0, **{value: train for train, value in enumerate(used, 1)}}, names[0]
    sure = ids[void] > 0.5 * sum(ids.values()) or (missing == 0 and _is_background(names[0]))
    own = {**{value: value for value in range(labels.num_classes)}, void: -1}
    says = f"{where}: the masks have the values {shown(ids)}; class {names[missing]!r} (id {missing}) has no pixel, "
    says += f"and {void} is void by default. If {void} stands for {lost!r}, map it"
    return _mapped(says, table, (f"if {void} really is void", own), fatal=sure)


def _clashing_palettes(labels: LabelSpace, clash: Clash, where: str) -> SplitFinding:
    """The finding about a palette index that has different colors in two files.

    Either the index means two classes, or the colors have no meaning.
    """
    says = f"{where}: palette masks are read by index, but index {clash.palette_index} is {rgb(clash.color)} in "
    says += (
        f"{clash.file} and {rgb(clash.other_color)} in {clash.other_file}. If the colors are right, save the masks as "
    )
    says += "RGB, and set the colors in data.classes"
    right = ("if the indices are right in all files", {"data.label_map": labels.full_map()})
    return SplitFinding(says, True, others=(right,))


def _palette_against_colors(labels: LabelSpace, values: MaskValues, where: str) -> SplitFinding | None:
    """The finding about palette masks whose colors mean other classes than their indices. They are read by index."""
    by_color = {index: labels.colors.get(color) for index, (color, _) in values.palette.items()}
    known = {index: train for index, train in sorted(by_color.items()) if train is not None}
    if not known:
        return None  # no color of the palette is the color of a class
    if all(labels.raw_to_train.get(index) == train for index, train in by_color.items()):
        return None
    says = f"{where}: palette masks are read by index, but the colors of their palettes belong to other classes"
    if len(known) < len(by_color):
        return SplitFinding(f"{says}; no table from index to class fits all files: save the masks as RGB", True)
    table = {index: -1 if train == labels.ignore_index else train for index, train in known.items()}
    return _mapped(f"{says}. Map the indices by their colors", table, ("if the indices are right", labels.full_map()))


def _colors_wanted(labels: LabelSpace, values: MaskValues, where: str) -> SplitFinding:
    """The finding about RGB masks of classes without colors, with a guess of which color is which class."""
    colors = values.colors
    says = f"{where}: RGB masks, but the classes have no colors"
    if values.cut or len(colors) > max(_LISTED, 2 * labels.num_classes):
        says += f", and the masks have {'more than ' * values.cut}{len(colors):,} of them: these are photos, or masks "
        says += "that were resized with interpolation or saved as JPEG: make the masks again without loss"
        return SplitFinding(says, True)
    named = _deal(labels, colors)
    guess = "" if len(colors) <= 2 else ". Which color is which class is a guess: put them in order"
    counted = dict(sorted(colors.items(), key=lambda pair: -pair[1]))
    text = ", ".join(f"{rgb(color)} {percent(n, colors)}" for color, n in list(counted.items())[:SHOWN])
    return SplitFinding(f"{says}. The masks have {text}{guess}", True, {"data.classes": named})


def _deal(labels: LabelSpace, colors: dict[int, int]) -> dict[str, Any]:
    """A value of data.classes that guesses the color of each class name.

    If all colors are from Pascal VOC's palette, the names get them in its order. Otherwise black comes first, and the
    other colors follow from frequent to rare.
    """
    names, voc = list(labels.names), [0, *(code(color) for color in color_wheel(max(labels.num_classes - 1, 1)))]
    if set(colors) <= {*voc, 0xE0E0C0}:
        dealt: dict[str, Any] = {name: rgb(color) for name, color in zip(names, voc)}
        return dealt if 0xE0E0C0 not in colors else {**dealt, _VOID: rgb(0xE0E0C0)}
    order = sorted(colors, key=lambda color: (color != 0, -colors[color]))
    dealt = {}
    if len(order) == len(names) + 1 and order[0] == 0 and not _is_background(names[0]):
        dealt, order = {_VOID: rgb(0)}, order[1:]
    names += [f"class {number}" for number in range(len(names), len(order))]
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


def _is_background(name: str) -> bool:
    return name.strip().lower().lstrip("_") in _BACKGROUND
