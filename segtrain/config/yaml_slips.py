"""Repairs of common YAML typos: a colon without a space, a backslash in double quotes, a tab."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import yaml

from segtrain.config.yaml_text import load_yaml

# `lr:0.1` at the start of a line or of a value in braces. `C:\data` and `s3://bucket` are not typos.
_NO_SPACE = re.compile(r"((?:^|[{,])[ \t]*(?:- +)*)([\w.-]+):(?=[^\s:/\\])", re.MULTILINE)
_QUOTED = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_NO_ESCAPE = re.compile(r"(?:\\\\)*\\[^0abt\tnvfre \"/\\N_LPxuU\n]")


@dataclass(frozen=True)
class Slip:
    """A typo in line ``line``, with its cause, the whole text repaired, and that line repaired (``now``)."""

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
                places = zip(text.splitlines(), fixed.splitlines())
                line, now = next((number, new) for number, (old, new) in enumerate(places, 1) if old != new)
                return Slip(line, ", and ".join(causes), fixed, now.strip())
    return None


def unspaced(value: Any) -> str:
    """A hint for an error about text instead of keys, because YAML reads `lr:0.1` as text. "" for any other value."""
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
