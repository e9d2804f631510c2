"""Settings that the files of a folder settle: images without a mask, and names of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segtrain.base.terminal import counted
from segtrain.bucket.faults import ignoring_file_faults
from segtrain.config import Data
from segtrain.config.paste import Settings
from segtrain.data.audit.coded_ids import code_of
from segtrain.data.audit.mask_colors import shares
from segtrain.data.audit.mask_values import (
    MaskValues,
    ids_of,
    numbers_objects,
    raw_and_values,
    rgb,
    shown,
)
from segtrain.data.audit.tried import LISTED, STRAY, are_classes
from segtrain.data.datasets import open_dataset
from segtrain.data.labels.mask_code import CODES
from segtrain.errors import ConfigError, DataError, some_of

# If classes have no names, the values in about this many masks of each split are read.
_SOME = 500


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
                "every mask has an image. To stop at them: data.absent_mask=error"
            )
            return paired(data.model_copy(update={"absent_mask": "leave-out"}), splits, why)
    return data


def _named(data: Data, splits: Sequence[str], why: list[str], error: ConfigError) -> Data:
    """``data`` with names made of the ids or colors in some masks. Raises ConfigError if there are
    none, or too many colors, or with a choice for ids on few pixels.
    """
    (values, looked), coded = _some_values(data, splits), ""
    if data.mask_code == "none" and (code := code_of(values)):
        data = data.model_copy(update={"mask_code": code})
        (values, looked), coded = _some_values(data, splits), f" (coded: {CODES[code].formula})"
    ids = ids_of(values)
    if not (ids or 0 < len(values.colors) <= LISTED):
        message = f"{error}\n  {looked}"
        if values.colors:
            count = f"{'over ' * values.cut}{len(values.colors)} colors"
            message += (
                f" have {count}: write the color of each class, as in "
                "data.classes={road: [128, 64, 128]}, and segtrain data convert --nearest"
            )
        raise ConfigError(message, code=error.code, **error.values) from None
    settings = _unnamed(sorted(ids) or sorted(values.colors), bool(ids), data)
    what = f"ids {shown(ids)}" if ids else f"colors {shares(values.colors, values.colors)}"
    common = {value: count for value, count in ids.items() if count >= STRAY * sum(ids.values())}
    if not coded and are_classes(ids, data.ignore_index):
        settings = _numbered(settings)
        why.append(
            f"nothing names the classes: {some_of(settings['classes'])} are the ids in the masks; "
            "write better names into data.classes"
        )
    elif not coded and are_classes(common, data.ignore_index):
        ignored = _unnamed(sorted(common), True, data)
        table = ignored.get("label_map", dict(enumerate(range(len(ignored["classes"])))))
        ignored["label_map"] = dict.fromkeys(sorted(ids), -1) | table
        choices = [
            {f"data.{key}": value for key, value in _numbered(way).items()}
            for way in (ignored, settings)
        ]
        message = (
            f"{looked} have the {what}, and nothing names them: paste the first one if the ids on "
            "few pixels are strays"
        )
        raise ConfigError(message, code="ids-ambiguous", what=message, choices=choices) from None
    else:
        objects = "; if each id is an object: data.classes=[background, object]"
        why.append(
            f"nothing names the classes: {looked} have the {what}{coded}. Write the name of each "
            f"in place of its ?{objects * numbers_objects(ids)}"
        )
    return data.model_copy(update=settings)


def _numbered(unnamed: Settings) -> dict[str, Any]:
    """The settings of ``_unnamed`` with names made of the ids."""
    return {**unnamed, "classes": tuple(name.replace("?", "class_") for name in unnamed["classes"])}


def _unnamed(values: list[int], are_ids: bool, data: Data) -> dict[str, Any]:
    """The settings data.classes and data.label_map of these ids or colors, with ? for names."""
    if not are_ids:
        return {"classes": {f"?{number}": tuple(rgb(color)) for number, color in enumerate(values)}}
    known = [value for value in values if value >= 0]
    kept = [value for value in known if value != data.ignore_index]
    # Ids count from 0 or 1, also beside a void value; gray levels (0, 64, 128, 255) do not.
    kept = kept if len(kept) > 1 and kept[-1] <= len(kept) else known
    # Negative ids are most often void.
    table = {value: -1 for value in values if value < 0}
    counted_on = not table and kept == list(range(len(kept)))
    table |= {value: number for number, value in enumerate(kept)}
    return {
        "classes": tuple(f"?{value}" for value in kept),
        **({} if counted_on else {"label_map": table}),
    }


def _some_values(data: Data, splits: Sequence[str]) -> tuple[MaskValues, str]:
    """The values in some masks of the splits, and which masks these are, in words. Masks that
    cannot be read are left out; if none can be read, the words are the fault of the last one.
    """
    values, fault, read, there = MaskValues(), "", 0, 0
    for split in splits:
        dataset = open_dataset(_with_any_names(data), split)
        some = range(0, len(dataset), max(1, len(dataset) // _SOME))
        for index in some:
            with ignoring_file_faults() as faults:
                values.add(raw_and_values(dataset, index)[1])
            fault = f"{faults[0]}" if faults else fault
        read, there = read + len(some), there + len(dataset)
    if not (values.ids or values.colors):
        return values, f"{read} masks: {fault}"
    return values, f"{read} of {there:,} masks" if read < there else "the masks"


def _with_any_names(data: Data) -> Data:
    return data.model_copy(update={"classes": ("a", "b"), "flip_pairs": ()})
