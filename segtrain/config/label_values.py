"""Class names and ids that YAML reads as something else (`no` is false), refused with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from segtrain.config.paste import command, flow
from segtrain.config.yaml_slips import unspaced

_RANGE = re.compile(r"(\d+) ?(?:-|\.\.\.?) ?(\d+)")
_EXPECTED = "expected raw id: train id, both integers, as data.label_map={0: 0, 255: 1}"
_SPELLED = 64  # ids that a message writes out


def refuse_names(given: Any) -> None:
    """Raises ValueError for a value of ``data.classes`` other than a file, a list of names, a mapping of names to colors."""
    if isinstance(given, str):
        return
    if not isinstance(given, (list, tuple, Mapping)) or any(isinstance(name, (list, dict)) for name in given):
        raise ValueError("expected a list of names, a mapping of names to colors, or a file")
    odd = [name for name in given if not isinstance(name, str)]
    if odd:
        why = f"{flow(odd[0])} is not text"
        if any(isinstance(name, bool) for name in odd):
            why = "YAML reads no and off as false, and yes and on as true"
        names = [_text(name) for name in given]
        fixed: Any = dict(zip(names, given.values())) if isinstance(given, Mapping) else names
        raise ValueError(f"data.classes: {why}: put such names in quotes: {command({'data.classes': fixed})}")
    if not isinstance(given, Mapping):
        return
    if given and all(colors is None for colors in given.values()):  # {road, car}
        raise ValueError(f"data.classes: names without colors are a list: {command({'data.classes': list(given)})}")
    for name, colors in given.items():
        several = isinstance(colors, (list, tuple)) and all(isinstance(color, (list, tuple)) for color in colors)
        if not all(map(_is_color, colors if several else [colors])):
            raise ValueError(
                f"data.classes.{name}={colors!r}: a color is [red, green, blue], integers from 0 to 255; several are "
                "[[...], [...]], and [] is none"
            )


def refuse_ids(given: Any) -> None:
    """Raises ValueError for a value of ``data.label_map`` other than a mapping of integers to integers."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{_EXPECTED}{unspaced(given)}")
    spelled: dict[Any, Any] = {}
    for raw, train in given.items():
        if not _is_integer(train) or not (_is_integer(raw) or _range(raw)):
            raise ValueError(f"data.label_map={{{flow(raw)}: {flow(train)}}}: {_EXPECTED}")
        spelled |= dict.fromkeys(_range(raw) or [raw], train)
    ranges = [raw for raw in given if not _is_integer(raw)]
    if ranges:
        short = len(spelled) <= _SPELLED
        fix = command({"data.label_map": spelled}) if short else "data.label_map={0: 0, 1: 0, ...}"
        raise ValueError(
            f"data.label_map: {ranges[0]!r} is not an id, and there are no ranges: write out each id: {fix}"
        )


def _range(raw: Any) -> range | None:
    """The ids of `0-6` or `0..6`, of many the first ones."""
    match = _RANGE.fullmatch(raw) if isinstance(raw, str) else None
    return range(int(match[1]), int(match[2]) + 1)[: _SPELLED + 1] if match else None


def _is_integer(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"[+-]?\d+", value) is not None
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value)


def _is_color(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 3
        and all(_is_integer(channel) and 0 <= int(channel) <= 255 for channel in value)
    )


def _text(name: Any) -> str:
    if isinstance(name, bool):
        return "yes" if name else "no"
    return "null" if name is None else str(name)
