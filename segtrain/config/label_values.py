"""Checks of class names and label maps, whose values YAML may read as another type (`no` is read as
false), and of the names of images and masks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Union

from segtrain.config.paste import command, flow
from segtrain.config.section import SettingError

# A pattern of names, or several.
Names = Union[str, tuple[str, ...]]
# Patterns of image names and of mask names, such as {name}.jpg and {name}_mask.png.
Patterns = tuple[Names, Names]
_RANGE = re.compile(r"\d+ ?(?:-|\.\.\.?) ?\d+")
_EXPECTED = (
    "expected pairs of integers, mask value: class id, such as data.label_map={0: 0, 255: 1}"
)


def check_class_names(value: Any) -> Any:
    """Return ``value``. Raises SettingError unless it is a file name, a list of names, or a mapping
    to colors.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple, Mapping)) or any(
        isinstance(name, (list, dict)) for name in value
    ):
        expected = "a list of names, a mapping of names to colors, or a file"
        raise SettingError(
            f"data.classes={value!r}: expected {expected}", "wrong-type", found=value
        )
    not_text = [name for name in value if not isinstance(name, str)]
    if not_text:
        why = f"{flow(not_text[0])} is not text"
        if any(isinstance(name, bool) for name in not_text):
            why = "YAML reads no and off as false, yes and on as true"
        names = [_text(name) for name in value]
        fixed: Any = dict(zip(names, value.values())) if isinstance(value, Mapping) else names
        fix = command({"data.classes": fixed})
        raise SettingError(
            f"data.classes: {why}. Quote such names: {fix}", "class-name-not-text", fix=fix
        )
    unnamed = [name for name in value if name.startswith("?")]
    if unnamed:
        why = f"{unnamed[0]!r} stands for a name that only you know: write the name of the class"
        raise SettingError(f"data.classes: {why}", "class-name-missing", found=unnamed[0])
    if not isinstance(value, Mapping):
        return value
    if value and all(colors is None for colors in value.values()):  # {road, car}
        fix = command({"data.classes": list(value)})
        raise SettingError(
            f"data.classes: write names without colors as a list: {fix}", "colors-missing", fix=fix
        )
    for name, colors in value.items():
        several = isinstance(colors, (list, tuple)) and all(
            isinstance(color, (list, tuple)) for color in colors
        )
        if not all(map(_is_color, colors if several else [colors])):
            key = f"data.classes.{name}"
            why = (
                "give one color as [red, green, blue] (integers, 0 to 255), several as [[...], "
                "[...]], or none as []"
            )
            raise SettingError(f"{key}={colors!r}: {why}", "invalid-color", key=key, found=colors)
    return value


def check_label_map(value: Any) -> Any:
    """Return ``value``. Raises SettingError unless it maps integers to integers."""
    if not isinstance(value, Mapping):
        raise SettingError(f"data.label_map={value!r}: {_EXPECTED}", "wrong-type", found=value)
    for raw, train in value.items():
        if isinstance(raw, str) and _RANGE.fullmatch(raw):
            why = f"{raw!r} is not an integer: list each id, as in data.label_map={{0: 0, 1: 0}}"
            raise SettingError(f"data.label_map: {why}", "label-range", found=raw)
        if train == "?":
            why = f"{raw}: ?: write -1 to ignore this id, or the number of its class"
            raise SettingError(f"data.label_map: {why}", "class-name-missing", found=raw)
        if not _is_integer(train) or not _is_integer(raw):
            pair = f"{{{flow(raw)}: {flow(train)}}}"
            raise SettingError(
                f"data.label_map={pair}: {_EXPECTED}", "wrong-type", found={raw: train}
            )
    return value


def _is_integer(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"[+-]?\d+", value) is not None
    return (
        value.is_integer()
        if isinstance(value, float)
        else isinstance(value, int) and not isinstance(value, bool)
    )


def _is_color(value: Any) -> bool:
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        return False
    return all(_is_integer(channel) and 0 <= int(channel) <= 255 for channel in value)


def _text(name: Any) -> str:
    if isinstance(name, bool):
        return "yes" if name else "no"
    return "null" if name is None else str(name)


def check_pair(value: Patterns | None) -> Patterns | None:
    """Raises ValueError for patterns of names that do not fit together."""
    for names in value or ():
        for text in [names] if isinstance(names, str) else names or [""]:
            folders, _, file = text.rpartition("/")
            anywhere = not folders or folders.startswith("*/")
            if text.count("{name}") != 1 or "{name}" not in file or not anywhere:
                expected = "a file name that contains {name} once, such as '{name}_mask.png'"
                raise ValueError(
                    f"{text!r} must be {expected}; set folders in data.images and data.masks"
                )
    if value and value[0] == value[1]:
        raise ValueError("the image and the mask have the same pattern: give the mask another one")
    return value
