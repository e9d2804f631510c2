"""Settings as text to paste: shell arguments, or lines of a config file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from segtrain.errors import ConfigError

Settings = Mapping[str, Any]  # "data.label_map" -> {0: 0, 255: 1}
# Text that a shell changes inside double quotes: variables, commands, history expansion, and some
# backslashes.
_CHANGED = re.compile(r"[\"$`!\n]|\\\\|\\\Z")


def words(settings: Settings) -> list[str]:
    """Command-line arguments, not quoted: ``["data.label_map={0: 0, 255: 1}"]``."""
    return [f"{key}={flow(value)}" for key, value in settings.items()]


def command(settings: Settings) -> str:
    """Command-line arguments as one line, quoted for a shell."""
    return " ".join(map(shell_word, words(settings)))


def again(line: Sequence[str], settings: Settings) -> str:
    """The words of a command as one line, with these settings in place of their values there."""
    kept = (word for word in line if word.partition("=")[0] not in settings)
    return f"{' '.join(map(shell_word, kept))} {command(settings)}"


def in_yaml(settings: Settings) -> str:
    """Settings for a config file: ``data: {label_map: {0: 0, 255: 1}}``. Several sections are
    joined by "; ".
    """
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        set_nested(nested, key, value)
    return "; ".join(f"{section}: {flow(values)}" for section, values in nested.items())


def set_nested(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set ``settings["data"]["root"]`` for the key ``data.root``. Raises ConfigError if ``data``
    has a plain value.
    """
    *path, last = key.split(".")
    for part in path:
        settings = settings.setdefault(part, {})
        if not isinstance(settings, dict):
            why = (
                f"{part!r} is already set to a value, so {last!r} cannot be set inside it: "
                "remove one of the two"
            )
            raise ConfigError(f"{key}: {why}", code="setting-has-value", key=key)
    settings[last] = value


def flow(value: Any) -> str:
    """A value as YAML on one line. A value that YAML cannot express is shown as Python code."""
    try:
        text = yaml.safe_dump(
            value, default_flow_style=True, sort_keys=False, width=1 << 30, allow_unicode=True
        )
    except yaml.YAMLError:
        return repr(value)
    return text.removesuffix("\n").removesuffix("\n...")


def shell_word(word: str) -> str:
    """One argument, quoted for a shell if necessary: in double quotes, unless a shell changes text
    inside them.
    """
    if shlex.quote(word) == word:
        return word
    return shlex.quote(word) if _CHANGED.search(word) else f'"{word}"'
