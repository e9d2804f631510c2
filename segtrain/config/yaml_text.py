"""YAML that is safe to read: no key twice, and no text that is small on disk and huge in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

DEPTH = 50  # levels of lists and mappings
VALUES = 100_000  # of a whole text, aliases written out

# The C parser is ten times as fast, where it is there. Its composer recurses in C: what is too deep must not reach it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RefusedYaml(yaml.YAMLError):
    """Well-formed YAML that is refused all the same; the message says where and why."""


@dataclass
class _OpenNode:
    """A list or mapping that is being read."""

    anchor: str | None
    mapping: bool
    size: int = 1
    parts: int = 0
    keys: dict[str, int] = field(default_factory=dict)  # key -> its line
    glued: str = ""  # the last key, where it holds a colon: `lr:0.1`


def load_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises yaml.YAMLError for what is no YAML, for a key that is given twice, for one that holds its value as well
    (`{lr:0.1}`), and for a text that is nested too deeply or whose aliases stand for too much (the alias bomb: a few
    lines that expand to gigabytes).
    """
    try:
        _check(text)
        return yaml.load(text, _LOADER)
    except UnicodeEncodeError:
        raise RefusedYaml("it holds bytes that are no UTF-8 text") from None
    except (ValueError, OverflowError) as error:  # a date or a number that is none
        raise RefusedYaml(str(error)) from None


def _check(text: str) -> None:
    stack = [_OpenNode(None, False)]
    anchors: dict[str, int] = {}  # name -> values that it stands for
    for event in yaml.parse(text, _LOADER):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append(_OpenNode(event.anchor, isinstance(event, yaml.MappingStartEvent)))
            if len(stack) > DEPTH:
                raise RefusedYaml(f"line {line}: lists and mappings lie more than {DEPTH} deep: write it flat")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            done = stack.pop()
            anchor, size = done.anchor, done.size
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
            _note_key(stack[-1], event, line)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise RefusedYaml(
                    f"line {line}: *{event.anchor} stands for itself, or for nothing: write the value out"
                )
            anchor, size = None, anchors[event.anchor]
        else:
            continue
        if anchor is not None:
            anchors[anchor] = size
        stack[-1].size += size
        stack[-1].parts += 1
        if stack[-1].size > VALUES:
            raise RefusedYaml(
                f"line {line}: it stands for more than {VALUES:,} values, aliases written out: write less"
            )


def _note_key(place: _OpenNode, event: yaml.ScalarEvent, line: int) -> None:
    key = event.value
    if not place.mapping:
        return
    if place.parts % 2:
        if place.glued and not key and not event.style:  # nothing follows: the key holds the value, as in {lr:0.1}
            name, _, value = place.glued.partition(":")
            raise RefusedYaml(
                f"line {line}: a space is missing after the ':' of {place.glued!r}: write {name}: {value}"
            )
        return
    place.glued = key if not event.style and ":" in key.strip(":") else ""
    if key == "<<":
        return
    if key in place.keys:
        raise RefusedYaml(
            f"line {line}: the key {key!r} is there already, in line {place.keys[key]}: keep one of the two"
        )
    place.keys[key] = line
