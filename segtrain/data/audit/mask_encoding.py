"""Detects from the values in all masks that the settings misread them, and proposes settings that
fix it.
"""

from __future__ import annotations

from bisect import bisect

from segtrain import config
from segtrain.config.paste import Settings
from segtrain.data.audit.coded_ids import coded_finding
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.audit.mask_colors import (
    clashing_palettes,
    colors_wanted,
    palette_against_colors,
    unknown_colors,
)
from segtrain.data.audit.mask_values import MaskValues, ids_of, numbers_objects, shown
from segtrain.data.audit.tried import LISTED, NEAR, STRAY, Table, mapped
from segtrain.data.labels.class_file import is_background
from segtrain.data.labels.space import LabelSpace, plain_space


def mask_finding(
    data: config.Data, labels: LabelSpace, splits: dict[str, MaskValues]
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
    own = {
        **{value: value for value in range(labels.num_classes)},
        labels.ignore_index: labels.ignore_index,
    }
    full_map = labels.full_map()
    if (
        data.label_map
        and set(ids) - set(data.label_map)
        and set(full_map.values()) - {-1, *map(full_map.get, ids)}
    ):
        return _as_if_plain(
            data,
            plain_space(labels.names, labels.ignore_index),
            splits,
            f"{where}: data.label_map leaves a class without a pixel, since the masks have "
            f"the values {shown(ids)}",
            {},
        )
    if data.label_map or labels.raw_to_train != own:
        shifted = None if data.label_map else _shifted(labels, ids, where)
        return shifted or _unknown_ids(labels, values, ids, where)
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
    if labels.num_classes != 2 or not {1, void} <= ids.keys():
        return None
    void_with = {key for values in splits.values() for key in values.void_with}
    if void_with != {0}:
        return None
    shows = "; ".join(
        f"{split}: the masks have the values {shown(ids_of(values))}"
        for split, values in splits.items()
    )
    shows += f", and no mask has both 1 and {void}"
    table = {0: 0, 1: 1, void: 1}
    message = f"{shows}. If {void} is class {labels.names[1]!r}, map it"
    return mapped(labels, ids, message, table, (f"if {void} is void", table | {void: -1}))


def _one_class(
    data: config.Data, labels: LabelSpace, splits: dict[str, MaskValues]
) -> SplitFinding:
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
    data: config.Data,
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


def _shifted(labels: LabelSpace, ids: dict[int, int], where: str) -> SplitFinding | None:
    """The finding about ids that count the classes from 0, where the file of names has other ids
    for them.
    """
    void = labels.ignore_index
    raws = sorted(raw for raw, train in labels.raw_to_train.items() if train != void)
    if raws == list(range(labels.num_classes)) or raws[-1] in ids:
        return None
    names = [labels.names[labels.raw_to_train[raw]] for raw in raws]
    message = f"{where}: class {names[-1]!r} has the id {raws[-1]}, which no mask has"
    table = {place: labels.raw_to_train[raw] for place, raw in enumerate(raws)}
    if (
        void in ids
        and 0 in ids
        and labels.raw_to_train.get(0) == void
        and raws == [*range(1, len(raws) + 1)]
    ):
        # The file counts an ignored class as 0, but the masks store it as 255 (COCO-Stuff).
        message += (
            f", and ignores 0, but the masks have {shown({0: ids[0], void: ids[void]}, ids)}: in "
            f"masks with {void} for ignored pixels, 0 is the first class ({names[0]})"
        )
        right = ("if 0 is ignored, too", {"data.label_map": labels.full_map()})
        return SplitFinding(f"{message}. Map them", True, {"data.label_map": table}, (right,))
    if set(ids) - {void} == set(range(len(raws))):
        return mapped(
            labels,
            ids,
            f"{message}, and the masks have the ids 0 to {len(raws) - 1}. Map them",
            table,
        )
    return None


def _plain_ids(
    labels: LabelSpace, ids: dict[int, int], values: MaskValues, where: str
) -> SplitFinding | None:
    """The finding about masks whose values are read as ids 0 .. C-1 and ``ignore_index``."""
    count, void = labels.num_classes, labels.ignore_index
    used = sorted(set(ids) - {void})
    if any(value not in range(count) for value in used):
        finding = _other_ids(labels, ids, used, where) or _instances(labels, ids, values, where)
        return finding or _by_levels(labels, ids, used, where)
    missing = sorted(set(range(count)) - set(used))
    if void in ids and missing in ([0], [count - 1]):
        return _class_as_void(labels, ids, used, missing[0], where)
    if used and used[0] == 1 and void not in ids:
        return mapped(
            labels,
            ids,
            f"{where}: no mask has id 0 (class {labels.names[0]!r}), only {shown(ids)}. If "
            "ids start at 1, map them",
            {value: value - 1 for value in range(1, count + 1)},
            fatal=False,
        )
    return None


def _described(labels: LabelSpace, ids: dict[int, int], where: str) -> str:
    message = (
        f"{where}: there are {labels.num_classes} classes, and the masks have the values "
        f"{shown(ids)}"
    )
    return (
        f"{message}; {labels.ignore_index} is void by default"
        if labels.ignore_index in ids
        else message
    )


def _other_ids(
    labels: LabelSpace, ids: dict[int, int], used: list[int], where: str
) -> SplitFinding | None:
    """The finding about ids that are not classes, with a table of the ids; None if their meaning is
    unclear.
    """
    count, names, message = labels.num_classes, labels.names, _described(labels, ids, where)
    from_one = {value: value - 1 for value in range(1, count + 1)}
    if used[0] >= 1 and used[-1] == count:
        return mapped(labels, ids, f"{message}: the ids start at 1. Map them", from_one)
    if used == list(range(count + 1)):
        tables = {
            0: {0: -1, **from_one},
            count: {**{value: value for value in range(count)}, count: -1},
        }
        # Void lies on borders in most images: it is rarer than the first class, but not as rare as
        # the rarest classes.
        rare = sorted(ids[value] for value in range(1, count))[count // 4]
        last = is_background(names[0]) or rare <= ids[count] < ids[0]
        first, second = (count, 0) if last else (0, count)
        message = f"{message}: one id more than classes. Ignore id {first}, or name its class"
        other = (
            []
            if is_background(names[0])
            else [(f"if id {second} is the one to ignore", tables[second])]
        )
        return mapped(labels, ids, message, tables[first], *other)
    return None


def _by_levels(labels: LabelSpace, ids: Table, used: list[int], where: str) -> SplitFinding | None:
    """The finding about masks that have as many common values, or groups of near ones, as there are
    classes.
    """
    count, least = labels.num_classes, STRAY * sum(ids.values())
    common = [value for value in sorted(ids) if ids[value] >= least]
    if set(range(count)) <= set(ids if count > 2 else common):
        return None
    first = [v for v, before in zip(common, [-LISTED, *common]) if v - before > NEAR]
    starts = common if len(common) == count else first
    if len(starts) != count:
        return None
    message = (
        f"{_described(labels, ids, where)}: not ids from 0 to {count - 1}. Map them in "
        "order, or as intended"
    )
    table = {value: bisect(starts, value) - 1 for value in common}
    rare = [value for value in sorted(ids) if value not in table]
    return mapped(labels, ids, message, table | dict.fromkeys(rare, -1))


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
    if count != 2:
        return SplitFinding(
            f"{message}, not class ids of {count} classes: make masks of class ids", True
        )
    message += f". Read each object as class {labels.names[1]!r}"
    return SplitFinding(message, True, {"data.mask_code": "objects"})


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
    labels: LabelSpace, ids: Table, used: list[int], missing: int, where: str
) -> SplitFinding:
    """The finding about masks with void and all classes but one: that class, or the background, may
    be stored as void.
    """
    void, names, count = labels.ignore_index, labels.names, labels.num_classes
    last = missing and is_background(names[-1]) and not is_background(names[0])
    stored = missing if last or count == 2 else 0
    table = dict(zip([*used[:stored], void, *used[stored:]], range(count)))
    sure = 2 * ids[void] > sum(ids.values()) or (missing == 0 and is_background(names[0]))
    return mapped(
        labels,
        ids,
        f"{where}: the masks have the values {shown(ids)}; class {names[missing]!r} (id "
        f"{missing}) has no pixel, and {void} is void by default. If {void} stands for "
        f"{names[stored]!r}, map it; if it is void, map it to -1",
        table,
        fatal=sure or count == 2,
    )
