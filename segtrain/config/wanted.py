"""Describes the type of a setting in words, such as `integer or 'auto'`, and values of a wrong type."""

from __future__ import annotations

import re
import typing
from typing import Any

from segtrain.config.paste import flow
from segtrain.config.section import Section, blocks, is_section
from segtrain.config.yaml_slips import unspaced

_NAMES = {int: "integer", float: "number", str: "text", bool: "true, false", type(None): "null"}
_ARTICLES = {"integer": "an ", "number": "a ", "list": "a ", "mapping": "a "}


def in_words(kind: Any, mark: str = "`") -> str:
    """The values that an annotation allows. ``mark``: the quotes around literal values."""
    if kind in _NAMES:
        return _NAMES[kind]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return in_words(inner[0], mark)
    if origin is typing.Literal:
        return ", ".join(f"{mark}{member}{mark}" for member in inner)
    if origin is typing.Union:
        return " or ".join(dict.fromkeys(in_words(member, mark) for member in inner))
    if origin is tuple:
        if blocks(kind):
            return "list of terms"
        items = [in_words(member, mark) for member in inner if member is not Ellipsis]
        plural = items[0] + "s" * (items[0] in ("integer", "number", "text", "mapping"))
        return f"list of {plural}" if Ellipsis in inner else f"[{', '.join(items)}]"
    return "mapping" if origin is dict or is_section(kind) else getattr(kind, "__name__", str(kind))


def wrong_type(key: str, value: Any, kind: Any, default: Any) -> tuple[str, str]:
    """The message for a value that is not of type ``kind``, with an example where one helps; and the expected type."""
    words = in_words(kind, "'")
    if not re.search(r" or |\[", words):
        words = " or ".join(words.rsplit(", ", 1))
    glued = unspaced(value) if "mapping" in words else ""
    better = None if glued else _example(value, words, default)
    shown = f", such as {key}={flow(better)}" if better is not None else ""
    expected = f"{_ARTICLES.get(words.partition(' ')[0], '')}{words}"
    return f"{key}={value!r}: expected {expected}{shown}{glued}", expected


def _example(value: Any, words: str, default: Any) -> Any:
    one = value[0] if isinstance(value, list) and len(value) == 1 else value
    if words.startswith("[integer, integer]") and type(one) is int:  # one side of a size
        return [one, one]
    if isinstance(default, Section):
        plain = ((name, getattr(default, name)) for name in type(default).model_fields)
        return next(({name: known} for name, known in plain if known and isinstance(known, (str, int))), None)
    if isinstance(default, tuple) and default and not isinstance(default[0], Section):
        return list(default)
    return None


def inside(kind: Any, part: str) -> Any:
    """The annotation of an item of a list (``part`` is its position) or of a mapping. Any if there is none."""
    members = [kind, *typing.get_args(kind)]
    members = [typing.get_args(m)[0] if typing.get_origin(m) is typing.Annotated else m for m in members]
    for container in (tuple, dict) if part.isdigit() else (dict,):
        for inner in (typing.get_args(member) for member in members if typing.get_origin(member) is container):
            if container is dict or Ellipsis in inner:
                return inner[container is dict]
            return inner[min(int(part), len(inner) - 1)]
    return Any
