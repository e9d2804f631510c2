"""Checks a request against AWS's own description of it: the service model that comes with botocore.

Before it sends a request, boto3 checks members and types, but not enumerations, patterns, or
lengths: these errors come from the service. Only the JSON file of the model is read here, as
importing botocore takes longer than the check.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from segtrain.errors import closest

_SHOWN = 80  # characters of a value in a message


def violations(
    request: Mapping[str, Any], operation: str = "CreateTrainingJob", service: str = "sagemaker"
) -> list[str] | None:
    """One line for each broken rule: the place, the value, and the rule. None if botocore is not
    installed.

    Raises KeyError for an operation that the service does not have.
    """
    model = _model(service)
    if model is None:
        return None
    input_shape = model["operations"][operation].get("input")
    shapes = {**model["shapes"], "": {"type": "structure", "members": {}}}
    return list(_walk(request, input_shape["shape"] if input_shape else "", "", shapes))


def enumeration(shape: str, service: str = "sagemaker") -> frozenset[str] | None:
    """The names that an enum (a shape of the service model) allows; None if botocore is not
    installed.
    """
    model = _model(service)
    return None if model is None else frozenset(model["shapes"][shape]["enum"])


@cache
def _model(service: str) -> Mapping[str, Any] | None:
    spec = importlib.util.find_spec("botocore")
    folders = spec.submodule_search_locations if spec is not None else None
    files = [
        file
        for folder in folders or ()
        for file in Path(folder).glob(f"data/{service}/*/service-2.json*")
    ]
    if not files:
        return None
    newest = max(files, key=lambda file: file.parent.name)  # the folder's name is a date
    content = newest.read_bytes()
    model: Mapping[str, Any] = json.loads(
        gzip.decompress(content) if newest.suffix == ".gz" else content
    )
    return model


def _walk(value: Any, name: str, where: str, shapes: Mapping[str, Any]) -> Iterator[str]:
    shape = shapes[name]
    kind = shape["type"]
    wanted, right = _KINDS[kind]
    if not right(value):
        yield f"{where or 'the request'}={_shown(value)}: must be {wanted}"
        return
    yield from _range(value, shape, where)
    if kind == "string":
        if "enum" in shape and value not in shape["enum"]:
            near = closest(value, shape["enum"], 0.4)
            few = (
                "one of " + ", ".join(shape["enum"])
                if len(shape["enum"]) <= 8
                else f"one of {len(shape['enum'])} names"
            )
            yield f"{where}={_shown(value)}: not {few}" + (f" (nearest {near!r})" if near else "")
        pattern = _pattern(shape["pattern"]) if "pattern" in shape else None
        if pattern is not None and not pattern.fullmatch(value):
            yield f"{where}={_shown(value)}: does not match {shape['pattern']}"
    elif kind == "list":
        for index, item in enumerate(value):
            yield from _walk(item, shape["member"]["shape"], f"{where}[{index}]", shapes)
    elif kind == "map":
        for key, item in value.items():
            yield from _walk(key, shape["key"]["shape"], f"{where}.{key} (its name)", shapes)
            yield from _walk(item, shape["value"]["shape"], f"{where}.{key}", shapes)
    elif kind == "structure":
        yield from _members(value, shape, where, shapes)


def _members(
    value: Mapping[str, Any], shape: Mapping[str, Any], where: str, shapes: Mapping[str, Any]
) -> Iterator[str]:
    prefix = f"{where}." if where else ""
    for key in shape.get("required", ()):
        if key not in value:
            yield f"{prefix}{key}: missing, and required"
    if shape.get("union") and len(value) != 1:
        yield f"{where}={_shown(value)}: must have exactly one of {', '.join(shape['members'])}"
    for key, item in value.items():
        if key in shape["members"]:
            yield from _walk(item, shape["members"][key]["shape"], f"{prefix}{key}", shapes)
        else:
            near = closest(str(key), shape["members"])
            yield f"{prefix}{key}: unknown" + (f" (nearest {near!r})" if near else "")


@cache
def _pattern(text: str) -> re.Pattern[str] | None:
    """The compiled pattern; None if Python's ``re`` does not support it, such as the class
    ``\\p{L}``.
    """
    with warnings.catch_warnings():
        # "possible nested set": AWS means it literally
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return re.compile(text)
        except re.error:
            return None


def _range(value: Any, shape: Mapping[str, Any], where: str) -> Iterator[str]:
    if "min" not in shape and "max" not in shape:
        return
    measured = len(value) if hasattr(value, "__len__") else value
    unit = {"string": "characters", "list": "items", "map": "entries", "blob": "bytes"}.get(
        shape["type"], ""
    )
    least, most = shape.get("min"), shape.get("max")
    if (least is not None and measured < least) or (most is not None and measured > most):
        bounds = (
            f"from {least} to {most}"
            if None not in (least, most)
            else f"at least {least}"
            if most is None
            else f"at most {most}"
        )
        reason = f"{measured} {unit}, allowed are {bounds}" if unit else f"must be {bounds}"
        yield f"{where}={_shown(value)}: {reason}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "string": ("a text", lambda value: isinstance(value, str)),
    "integer": ("a whole number", _whole),
    "long": ("a whole number", _whole),
    "float": ("a number", _number),
    "double": ("a number", _number),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "timestamp": ("a time", lambda value: isinstance(value, (str, datetime)) or _number(value)),
    "blob": ("bytes", lambda value: isinstance(value, (bytes, bytearray, str))),
    "list": ("a list", lambda value: isinstance(value, (list, tuple))),
    "map": ("keys with values", lambda value: isinstance(value, Mapping)),
    "structure": ("keys with values", lambda value: isinstance(value, Mapping)),
}
