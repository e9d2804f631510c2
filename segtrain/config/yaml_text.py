"""A safe YAML reader, and repairs of common typos: a missing space, a backslash in double quotes, a tab."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import yaml

# Limits: nesting depth of lists and mappings, and number of values in a text after aliases are expanded.
DEPTH, VALUES = 50, 100_000

# The C parser is ten times faster, if it is installed. Its composer recurses in C, so deep nesting must not reach it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# `lr:0.1` at the start of a line or of a value in braces. `C:\data` and `s3://bucket` are not typos.
_NO_SPACE = re.compile(r"((?:^|[{,])[ \t]*(?:- +)*)([\w.-]+):(?=[^\s:/\\])", re.MULTILINE)
_QUOTED = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_NO_ESCAPE = re.compile(r"(?:\\\\)*\\[^0abt\tnvfre \"/\\N_LPxuU\n]")


class RefusedYaml(yaml.YAMLError):
    """Valid YAML that is refused. The message says where and why."""


@dataclass
class _OpenNode:
    """A list or mapping whose end has not been read yet."""

    anchor: str | None
    mapping: bool
    size: int = 1  # values in it so far, with aliases expanded
    parts: int = 0  # keys and values in it so far
    keys: dict[str, int] = field(default_factory=dict)  # key -> its line
    glued: str = ""  # the last key, if it contains a colon: `lr:0.1`


def load_yaml(text: str) -> Any:
    """Parse a YAML text and return its value.

    Raises yaml.YAMLError for invalid YAML, a duplicate key, a key that contains its value (`{lr:0.1}`), deep nesting,
    and alias bombs (a few lines whose aliases expand to gigabytes).
    """
    try:
        _check(text)
        return yaml.load(text, _LOADER)
    except UnicodeEncodeError:
        raise RefusedYaml("the text is not valid UTF-8") from None
    except (ValueError, OverflowError) as error:  # an impossible date or number
        raise RefusedYaml(str(error)) from None


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _refused(event: yaml.Event, why: str) -> RefusedYaml:
    return RefusedYaml(f"line {_line(event)}: {why}")


def _check(text: str) -> None:
    stack = [_OpenNode(None, False)]
    anchors: dict[str, int] = {}  # name -> values that it stands for
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append(_OpenNode(event.anchor, isinstance(event, yaml.MappingStartEvent)))
            if len(stack) > DEPTH:
                raise _refused(event, f"lists and mappings are nested more than {DEPTH} deep: flatten them")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            done = stack.pop()
            anchor, size = done.anchor, done.size
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
            _note_key(stack[-1], event)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                why = f"the alias *{event.anchor} refers to itself, or to nothing: write its value instead"
                raise _refused(event, why)
            anchor, size = None, anchors[event.anchor]
        else:
            continue
        if anchor is not None:
            anchors[anchor] = size
        stack[-1].size += size
        stack[-1].parts += 1
        if stack[-1].size > VALUES:
            raise _refused(event, f"with its aliases expanded, the text has more than {VALUES:,} values: shorten it")


def _note_key(node: _OpenNode, event: yaml.ScalarEvent) -> None:
    """Refuse a key that is given twice, and one that contains its value."""
    key = event.value
    if node.mapping and node.parts % 2:
        if node.glued and not key and not event.style:  # no value follows, as in {lr:0.1}
            name, _, value = node.glued.partition(":")
            raise _refused(event, f"a space is missing after the ':' of {node.glued!r}: write {name}: {value}")
    elif node.mapping:
        node.glued = key if not event.style and ":" in key.strip(":") else ""
        if key in node.keys and key != "<<":
            first = node.keys[key]
            raise _refused(event, f"duplicate key {key!r}, which line {first} sets already: remove one of the two")
        node.keys[key] = _line(event)


@dataclass(frozen=True)
class Slip:
    """A typo in line ``line``, with its cause, the repaired text, and the repaired line (``now``)."""

    line: int
    cause: str
    text: str
    now: str


def find_slip(text: str) -> Slip | None:
    """The typo whose repair makes ``text`` valid YAML. None if no known repair does."""
    for chosen in itertools.chain.from_iterable(itertools.combinations(_REPAIRS, n) for n in (1, 2, 3)):
        fixed, causes = text, []
        for cause, repair in chosen:
            before, fixed = fixed, repair(fixed)
            causes += [cause] * (before != fixed)
        if len(causes) == len(chosen):
            with suppress(yaml.YAMLError):
                load_yaml(fixed)
                lines = zip(text.splitlines(), fixed.splitlines())
                line, now = next((number, new) for number, (old, new) in enumerate(lines, 1) if old != new)
                return Slip(line, ", and ".join(causes), fixed, now.strip())
    return None


def unspaced(value: Any) -> str:
    """The end of an error message for text such as `lr:0.1`, which has no space after the colon. "" for other values.

    YAML reads `lr:0.1` as text, where a key and its value are expected.
    """
    glued = value.split() if isinstance(value, str) else []
    pairs = [_spaced(word) for word in glued]
    if not glued or any(word == pair for word, pair in zip(glued, pairs)):
        return ""
    return f": a space is missing after the ':': {pairs[0] if len(pairs) == 1 else '{' + ', '.join(pairs) + '}'}"


def _spaced(text: str) -> str:
    return _NO_SPACE.sub(lambda match: f"{match[1]}{' ' * (match[1] == ',')}{match[2]}: ", text)


def _single_quoted(text: str) -> str:
    def turned(match: re.Match[str]) -> str:
        if not _NO_ESCAPE.search(match[1]):
            return match[0]
        return "'" + match[1].replace('\\"', '"').replace("'", "''") + "'"

    return _QUOTED.sub(turned, text)


def _without_tabs(text: str) -> str:
    return re.sub(r"^[ \t]*\t[ \t]*", lambda match: match[0].replace("\t", "  "), text, flags=re.MULTILINE)


_REPAIRS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("a space is missing after the ':'", _spaced),
    ("a backslash in double quotes starts an escape sequence: use single quotes", _single_quoted),
    ("tabs cannot indent YAML: use spaces", _without_tabs),
)
