"""Detects from the values in all masks that the settings misread them, and proposes settings that
fix it.
"""

from __future__ import annotations

from segtrain.config import Data
from segtrain.config.paste import Settings
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.audit.mask_colors import (
    clashing_palettes,
    coded_finding,
    colors_wanted,
    palette_against_colors,
    unknown_colors,
)
from segtrain.data.audit.mask_values import (
    LISTED,
    STRAY,
    MaskValues,
    Table,
    ids_of,
    mapped,
    near_levels,
    numbers_objects,
    shown,
)
from segtrain.data.labels.class_file import is_background
from segtrain.data.labels.space import LabelSpace, plain_space


def mask_finding(
    data: Data, labels: LabelSpace, splits: dict[str, MaskValues]
) -> SplitFinding | None:
    """The finding about the settings, given the values in the masks of all splits; None if nothing
    is suspicious.

    An explicit ``data.label_map`` is taken as intended and turns the guesses off.
    """
    values, where = MaskValues(), " and ".join(splits)
    for of_split in splits.values():
        values.add(of_split)
    if labels.num_classes == 1:
        return _one_class(data, labels, splits)
    coded = coded_finding(data, labels, values, where)
    if coded:
        return coded
    ids = values.ids
    if values.colors and labels.colors:
        finding = unknown_colors(data, labels, values, where)
        if finding:
            return finding
    elif values.colors and not ids:  # with ids as well, the RGB masks are faulty files
        ids = ids_of(values)
        if not ids:
            return colors_wanted(data, labels, values, where)
    if not ids:
        return None
    if values.clash and not data.label_map:
        return clashing_palettes(labels, values.clash, where)
    plain, full_map = plain_space(labels.names, labels.ignore_index), labels.full_map()
    empty = set(full_map.values()) - {-1, *map(full_map.get, ids)}
    if data.label_map and ids.keys() - data.label_map and empty:
        message = (
            f"{where}: data.label_map leaves a class without a pixel, since the masks have the "
            f"values {shown(ids)}"
        )
        return _as_if_plain(data, plain, splits, message, {})
    if data.label_map:
        return _unknown_ids(labels, values, ids, where)
    if labels.raw_to_train != plain.raw_to_train:
        return _shifted(labels, ids, where) or _unknown_ids(labels, values, ids, where)
    if values.palette and labels.colors:
        finding = palette_against_colors(labels, values, where)
        if finding:
            return finding
    return (
        _two_codings(labels, ids, splits)
        or _plain_ids(labels, ids, values, where)
        or _unknown_ids(labels, values, ids, where)
    )


def _two_codings(
    labels: LabelSpace, ids: Table, splits: dict[str, MaskValues]
) -> SplitFinding | None:
    """The finding about two classes that are 0 and 1 in some masks, and 0 and 255 in others."""
    void = labels.ignore_index
    void_with = {key for values in splits.values() for key in values.void_with}
    if labels.num_classes != 2 or not {1, void} <= ids.keys() or void_with != {0}:
        return None
    shows = "; ".join(
        f"{split}: the masks have the values {shown(ids_of(values))}"
        for split, values in splits.items()
    )
    message = f"{shows}, and no mask has both 1 and {void}. If {void} is class {labels.names[1]!r}"
    table = {0: 0, 1: 1, void: 1}
    other = (f"if {void} is void", table | {void: -1})
    return mapped(labels, ids, f"{message}, map it", table, other)


def _one_class(data: Data, labels: LabelSpace, splits: dict[str, MaskValues]) -> SplitFinding:
    """The finding about a single class, which any network predicts everywhere, with the settings
    for two classes.
    """
    (name,) = labels.names
    names = (name, "object") if is_background(name) else ("background", name)
    return _as_if_plain(
        data,
        plain_space(names, labels.ignore_index),
        splits,
        f"the only class is {name!r}, so any network scores 100 %. Name what is around it, "
        f"too: {', '.join(names)}",
        {"data.classes": list(names)},
    )


def _as_if_plain(
    data: Data,
    labels: LabelSpace,
    splits: dict[str, MaskValues],
    message: str,
    settings: Settings,
) -> SplitFinding:
    """A fatal finding that ``settings`` fix, and what is proposed for masks that are read without a
    data.label_map.
    """
    other = mask_finding(data.model_copy(update={"label_map": {}}), labels, splits)
    reset: Settings = {"data.label_map": {}} if data.label_map else {}
    if other and other.fatal and other.settings:
        return SplitFinding(message, True, {**settings, **reset, **other.settings})
    ids = {value for values in splits.values() for value in values.ids}
    plain = set(range(labels.num_classes)) <= ids <= set(labels.raw_to_train)
    return SplitFinding(message, True, {**settings, **reset} if plain or not ids else {})


def _shifted(labels: LabelSpace, ids: Table, where: str) -> SplitFinding | None:
    """The finding about ids that count the classes from 0, where the file of names has other ids
    for them.
    """
    void = labels.ignore_index
    raws = sorted(raw for raw, train in labels.raw_to_train.items() if train != void)
    if raws == list(range(labels.num_classes)) or raws[-1] in ids:
        return None
    # The file may count an ignored class as 0, which the masks store as 255 (COCO-Stuff).
    from_one = raws == [*range(1, len(raws) + 1)] and labels.raw_to_train.get(0) == void
    moved = from_one and {0, void} <= ids.keys()
    if not moved and ids.keys() - {void} != set(range(len(raws))):
        return None
    first, *_, last = (labels.names[labels.raw_to_train[raw]] for raw in raws)
    message = (
        f"{where}: class {last!r} has the id {raws[-1]}, which no mask has, and the masks have the "
        f"values {shown(ids)}: 0 is the first class ({first}). Map them"
    )
    table = {place: labels.raw_to_train[raw] for place, raw in enumerate(raws)}
    other = ("if 0 is ignored", {"data.label_map": labels.full_map()})
    return SplitFinding(message, True, {"data.label_map": table}, (other,) * moved)


def _plain_ids(
    labels: LabelSpace, ids: Table, values: MaskValues, where: str
) -> SplitFinding | None:
    """The finding about masks whose values are read as ids 0 .. C-1 and ``ignore_index``."""
    count, void, names = labels.num_classes, labels.ignore_index, labels.names
    used = sorted(ids.keys() - {void})
    missing = sorted(set(range(count)).difference(used))
    message = f"{where}: there are {count} classes, and the masks have the values {shown(ids)}"
    message += f"; {void} is void by default" * (void in ids)
    from_one = {value: value - 1 for value in range(1, count + 1)}
    if used and used[0] >= 1 and used[-1] == count:
        return mapped(labels, ids, f"{message}: the ids start at 1. Map them", from_one)
    if used == list(range(count + 1)):
        return _one_more(labels, ids, message, from_one)
    if any(value not in range(count) for value in used):
        return _instances(labels, ids, values, where) or _by_levels(labels, ids, message)
    if void in ids and missing in ([0], [count - 1]):
        return _class_as_void(labels, ids, used, missing[0], message)
    if used and used[0] == 1 and void not in ids:
        message += f": no mask has id 0 (class {names[0]!r}). If the ids start at 1, map them"
        return mapped(labels, ids, message, from_one, fatal=False)
    return None


def _one_more(labels: LabelSpace, ids: Table, message: str, from_one: Table) -> SplitFinding:
    """The finding about one id more than classes: the first or the last one is void."""
    count, background = labels.num_classes, is_background(labels.names[0])
    from_zero = {value: value for value in range(count)}
    tables = {0: {0: -1} | from_one, count: from_zero | {count: -1}}
    # Void lies on borders in most images: it is rarer than the first class, but not as rare as
    # the rarest classes.
    rare = sorted(ids[value] for value in range(1, count))[count // 4]
    last = background or rare <= ids[count] < ids[0]
    first, second = (count, 0) if last else (0, count)
    message = f"{message}: one id more than classes. Ignore id {first}, or name its class"
    other = (f"if id {second} is the one to ignore", tables[second])
    return mapped(labels, ids, message, tables[first], *[other] * (not background))


def _by_levels(labels: LabelSpace, ids: Table, message: str) -> SplitFinding | None:
    """The finding about masks that have as many common values, or groups of near ones, as there are
    classes.
    """
    count, least = labels.num_classes, STRAY * sum(ids.values())
    common = [value for value in sorted(ids) if ids[value] >= least]
    if set(range(count)) <= set(ids if count > 2 else common):
        return None
    levels = [[value] for value in common] if len(common) == count else near_levels(common)
    if len(levels) != count:
        return None
    message += f": not ids from 0 to {count - 1}. Map them in order, or as intended"
    table = {value: number for number, level in enumerate(levels) for value in level}
    rare = dict.fromkeys(sorted(ids.keys() - table.keys()), -1)
    return mapped(labels, ids, message, table | rare)


def _instances(
    labels: LabelSpace, ids: Table, values: MaskValues, where: str
) -> SplitFinding | None:
    """The finding about masks that seem to hold instance ids instead of class ids.

    The ids of nearly every mask have no gap, their largest ids differ, and with more than two
    classes, the maximum is far above their count; or with two, the ids of all masks number objects.
    """
    count = labels.num_classes
    objects = count == 2 and numbers_objects(ids)
    most = max(ids if objects else values.tops, default=0)
    if not objects and ((count > 2 and most < 4 * count) or not values.counts_up):
        return None
    message = (
        f"{where}: the ids of the masks count up without a gap, at most to {most}: these "
        "look like instance ids"
    )
    if count == 2:
        message += f". Read each object as class {labels.names[1]!r}"
        return SplitFinding(message, True, {"data.mask_code": "objects"})
    message += f", not class ids of {count} classes: make masks of class ids"
    return SplitFinding(message, True)


def _unknown_ids(
    labels: LabelSpace, values: MaskValues, ids: Table, where: str
) -> SplitFinding | None:
    """The finding about ids that are not in the label space, with a map that ignores them if they
    are rare.
    """
    unknown = {
        value: count for value, count in sorted(ids.items()) if value not in labels.raw_to_train
    }
    if not unknown or values.cut or len(unknown) + len(labels.raw_to_train) > LISTED:
        return None
    table, message = (
        labels.full_map(),
        f"{where}: ids of no class: {shown(unknown, ids)}. data.label_map may ignore rare ones",
    )
    rarest = min((count for value, count in ids.items() if table.get(value, -1) >= 0), default=0)
    rare = sum(unknown.values()) <= max(rarest, STRAY * sum(ids.values()))
    return mapped(labels, ids, message, labels.full_map(unknown) if rare else {}, fatal=False)


def _class_as_void(
    labels: LabelSpace, ids: Table, used: list[int], missing: int, message: str
) -> SplitFinding:
    """The finding about masks with void and all classes but one: that class, or the background, may
    be stored as void.
    """
    void, names, count = labels.ignore_index, labels.names, labels.num_classes
    last = missing and is_background(names[-1]) and not is_background(names[0])
    stored = missing if last or count == 2 else 0
    table = dict(zip([*used[:stored], void, *used[stored:]], range(count)))
    sure = 2 * ids[void] > sum(ids.values()) or (missing == 0 and is_background(names[0]))
    message += (
        f"; class {names[missing]!r} (id {missing}) has no pixel. If {void} stands for "
        f"{names[stored]!r}, map it; if it is void, map it to -1"
    )
    return mapped(labels, ids, message, table, fatal=sure or count == 2)
