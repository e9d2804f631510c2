"""Settings that the files of a folder settle: images without a mask, and names of classes."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from segtrain.base.terminal import counted
from segtrain.bucket.faults import ignoring_file_faults
from segtrain.config import Data
from segtrain.config.paste import Settings, command
from segtrain.data.audit.mask_colors import code_of, shares
from segtrain.data.audit.mask_values import (
    CLASSES,
    LISTED,
    STRAY,
    MaskValues,
    Table,
    are_classes,
    ids_of,
    levels_of,
    numbers_objects,
    raw_and_values,
    rgb,
    shown,
)
from segtrain.data.convert import pasted
from segtrain.data.datasets import open_dataset
from segtrain.data.index.names import is_array
from segtrain.data.labels.mask_code import CODES
from segtrain.data.pixels.common_colors import common_colors
from segtrain.errors import ConfigError, DataError, some_of

# If classes have no names, the values in about this many masks of each split are read.
_SOME = 500
# Two classes hardly touch in less than this share of the places where classes do.
_TOUCHING = 0.02
# Masks whose ids number objects of one class.
_OBJECTS: Settings = {"data.mask_code": "objects", "data.classes": ("background", "object")}
# In so many masks of each split, the common colors of a lossy copy are looked for.
_FEW = 50


def settled(data: Data, splits: Sequence[str], why: list[str]) -> Data:
    """``data`` with the settings that the files of the splits settle; ``why`` gets a sentence about
    each.

    If nothing names the classes, their ids in the masks do; where these seem to be no ids of
    classes, and for colors, the names begin with a question mark.
    """
    data = paired(data, splits, why)
    try:
        open_dataset(data, splits[0])
    except ConfigError as error:
        if error.code != "classes-missing":
            raise
        return _named(data, splits, why, error)
    return data


def paired(data: Data, splits: Sequence[str], why: list[str]) -> Data:
    """The same for images without a mask: if every mask has an image, they were not labeled."""
    for split in splits:
        try:
            open_dataset(data, split)
        except ConfigError as error:
            if error.code != "classes-missing":
                raise
        except DataError as error:
            given = data.absent_mask != "auto"
            if error.code != "files-unpaired" or error.values["masks"] or given:
                raise
            why.append(
                f"{counted(error.values['images'], 'image')} without a mask: not labeled, since "
                "every mask that is read has an image. If they show background only: "
                "data.absent_mask=background; to stop at them: data.absent_mask=error"
            )
            return paired(data.model_copy(update={"absent_mask": "leave-out"}), splits, why)
    return data


def _named(data: Data, splits: Sequence[str], why: list[str], error: ConfigError) -> Data:
    """``data`` with names made of the ids or colors in some masks. Raises ConfigError if there are
    none, or too many colors, or with a choice if the ids can be read in several ways.
    """
    (values, touching, looked), coded = _some_values(data, splits), ""
    if data.mask_code == "none" and (code := code_of(values)):
        data = data.model_copy(update={"mask_code": code})
        values, touching, looked = _some_values(data, splits)
        coded = f" (coded: {CODES[code].formula})"
    ids, void = ids_of(values), data.ignore_index
    # Gray levels that some masks store by a palette: the index of one is the level in other masks.
    levels = {
        index: color & 255
        for index, (color, _) in values.palette.items()
        if color == (color & 255) * 0x010101 and {color & 255} & ids.keys() - values.palette.keys()
    }
    for index, level in levels.items():
        ids[level] += ids.pop(index)
    # Palette masks are read by index, so the colors of their palettes come first.
    palette = sorted(values.palette.items())
    colors = Counter({color: values.ids[index] for index, (color, _) in palette})
    colors.update(dict(sorted(values.colors.items())))
    settings = _each(ids, void, "?") if ids else _colors(colors)
    what = f"ids {shown(ids)}" if ids else f"colors {shares(colors, colors)}"
    many = values.cut or len(ids or values.colors) > LISTED
    known = coded or values.counts_up or numbers_objects(ids)
    if many and not known and (repair := _repair(data, splits)):
        message = (
            f"{data.root}: nearly all pixels of the masks are near a few values, as in lossy "
            f"copies: write them as these\n  {repair}"
        )
        raise ConfigError(message, code="masks-blurred") from None
    which, ways = ("", []) if coded or not ids else _ways(ids, void, values.counts_up)
    if which:
        message = f"{looked} have the {what}, and nothing names them: {which}"
        choices = [{f"data.{key}": value for key, value in way.items()} for way in ways]
        raise ConfigError(message, code="ids-ambiguous", what=message, choices=choices) from None
    if not coded and (ways or are_classes(ids, void)):
        settings = _each(ids, void)
        border = _border(touching, ids, void) if len(settings["classes"]) == len(ids) == 3 else ""
        why.append(
            f"nothing names the classes: {some_of(settings['classes'])} are the ids in the masks; "
            f"write better names into data.classes{border}"
        )
    elif not (ids or 0 < len(values.colors) <= LISTED):
        message = f"{error}\n  {looked}"
        if values.colors:
            message += (
                f" have {'over ' * values.cut}{len(values.colors)} colors: write the color of each "
                "class, as in data.classes={road: [128, 64, 128]}, and segtrain data convert "
                "--nearest"
            )
        raise ConfigError(message, code=error.code, **error.values) from None
    else:
        objects = f"; if each id is an object: {command(_OBJECTS)}" * numbers_objects(ids)
        why.append(
            f"nothing names the classes: {looked} have the {what}{coded}. Write the name of each "
            f"in place of its ?{objects}"
        )
    if levels:
        table = settings.get("label_map", {level: level for level in ids})
        settings["label_map"] = table | {index: table[levels[index]] for index in levels}
        why.append(f"some masks store gray levels by a palette, index -> level: {levels}")
    return data.model_copy(update=settings)


def _ways(ids: Table, void: int, counts_up: bool) -> tuple[str, list[Settings]]:
    """What to look at, and the settings of each way to read ids without names; none if only one is
    likely.
    """
    total, every = sum(ids.values()), _each(ids, void)
    rare = {value for value, count in ids.items() if count < STRAY * total}
    common = {value: count for value, count in ids.items() if value not in rare}
    if 0 in ids and counts_up:
        one = {key.removeprefix("data."): value for key, value in _OBJECTS.items()}
        which = "they seem to number the objects of each mask: paste the first one if they do"
        return which, [one, *[every] * (len(ids) <= LISTED)]
    if len(ids) > 2 and 2 * ids.get(void, 0) > total:
        which = (
            f"paste the first one if {void} is a class, such as the background, and the second one "
            "if its pixels do not count"
        )
        return which, [_each(ids, -1), _each(ids, void, ignored={void})]
    if are_classes(ids, void):
        return "", []
    if are_classes(common, void):
        first = _each(ids, void, ignored=rare)
        which = "the ids on few pixels are strays"
    elif levels := levels_of(ids):
        first = _classes(levels, ids)
        which = "ids that differ by little are one class, which a lossy copy has blurred"
    else:
        return "", []
    return ("", [every]) if first == every else (f"paste the first one if {which}", [first, every])


def _border(touching: Counter[int], ids: Table, void: int) -> str:
    """The settings that ignore one of three classes if it separates the others; "" if none does."""
    for value in ids.keys() - {0, max(ids, key=ids.__getitem__)}:
        low, high = sorted(ids.keys() - {value})
        if touching[low << 32 | high] < _TOUCHING * touching.total():
            settings = _each(ids, void, ignored={value})
            way = {f"data.{key}": setting for key, setting in settings.items()}
            return (
                f". {value} separates {low} and {high}: if it is a border that does not count: "
                f"{command(way)}"
            )
    return ""


def _each(
    ids: Table, void: int, mark: str = "class_", ignored: Collection[int] = ()
) -> dict[str, Any]:
    """The settings of a class for each id. Negative ids are most often void."""
    known = [value for value in sorted(ids) if value >= 0 and value not in ignored]
    kept = [value for value in known if value != void]
    # Ids count from 0 or 1, also beside a void value; gray levels (0, 64, 128, 255) do not.
    kept = kept if len(kept) > 1 and kept[-1] <= len(kept) else known
    others = ids.keys() - kept if ignored else {value for value in ids if value < 0}
    return _classes([[value] for value in kept], ids, mark, others)


def _classes(
    levels: Sequence[Sequence[int]], ids: Table, mark: str = "class_", ignored: Iterable[int] = ()
) -> dict[str, Any]:
    """The settings of a class for each level of near ids, named after the most frequent one."""
    names = tuple(f"{mark}{max(level, key=ids.__getitem__)}" for level in levels)
    table = {value: number for number, level in enumerate(levels) for value in level}
    table |= dict.fromkeys(ignored, -1)
    if table == {number: number for number in range(len(levels))}:
        return {"classes": names}
    return {"classes": names, "label_map": dict(sorted(table.items()))}


def _colors(colors: Iterable[int]) -> dict[str, Any]:
    return {"classes": {f"?{n}": tuple(rgb(color)) for n, color in enumerate(colors)}}


def _some_values(data: Data, splits: Sequence[str]) -> tuple[MaskValues, Counter[int], str]:
    """The values in some masks of the splits, the places where ids touch (lower id << 32 | higher
    id -> count), and which masks these are, in words. Masks that cannot be read are left out; if
    none can be read, the words are the fault of the last one.
    """
    values, touching, fault, read, there = MaskValues(), Counter[int](), "", 0, 0
    for split in splits:
        dataset = open_dataset(_with_any_names(data), split)
        step = max(1, len(dataset) // _SOME)
        # Of many classes, some are in few masks.
        rest = (i for i in range(len(dataset)) if i % step and len(values.ids) > CLASSES)
        for index in itertools.chain(range(0, len(dataset), step), rest):
            if values.cut:
                break
            read += 1
            with ignoring_file_faults() as faults:
                raw, more = raw_and_values(dataset, index)
                values.add(more)
                if raw.ndim == 2:
                    touching.update(_neighbors(raw))
            fault = f"{faults[0]}" if faults else fault
        there += len(dataset)
    if not (values.ids or values.colors):
        return values, touching, f"{read} masks: {fault}"
    return values, touching, f"{read} of {there:,} masks" if read < there else "the masks"


def _neighbors(ids: np.ndarray) -> Table:
    """Pairs of ids that are next to each other in a row of a mask (H, W), and how often."""
    right, left = ids[:, 1:].astype(np.int64), ids[:, :-1].astype(np.int64)
    pairs = (np.minimum(left, right) << 32 | np.maximum(left, right))[left != right]
    values, counts = np.unique(pairs, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist()))


def _repair(data: Data, splits: Sequence[str]) -> str:
    """The command that gives each pixel of blurred masks the nearest common value; "" for other
    masks.
    """
    pictures = list[np.ndarray]()
    for split in splits:
        dataset = open_dataset(_with_any_names(data), split)
        for index in range(0, len(dataset), -(-len(dataset) // _FEW)):
            with ignoring_file_faults():
                raw, _ = raw_and_values(dataset, index)
                ids = raw.dtype != np.uint8 or raw.max() == 1
                if ids or is_array(str(dataset.entries[index].mask)):
                    return ""
                pictures.append(raw if raw.ndim == 3 else np.repeat(raw[..., None], 3, 2))
    colors = common_colors(pictures)
    if not colors:
        return ""
    settings: Settings = {"classes": {f"class_{i}": color for i, color in enumerate(colors)}}
    if all(len({*color}) == 1 for color in colors):
        settings = _each(dict.fromkeys((color[0] for color in colors), 1), data.ignore_index)
    places = shlex.join((data.root, f"{data.root.rstrip('/')}-png"))
    values = pasted(data.model_copy(update={"root": ""}), **settings)
    return f"segtrain data convert {places} --nearest {values}"


def _with_any_names(data: Data) -> Data:
    return data.model_copy(update={"classes": ("a", "b"), "flip_pairs": ()})
