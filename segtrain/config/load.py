"""How do a YAML file and ``section.key=value`` become a Config, and how is a mistake in them told?"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from segtrain.config.run import Config
from segtrain.config.section import Section
from segtrain.errors import ConfigError


def _known_keys() -> list[str]:
    keys = []
    for name, field in Config.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            keys += [f"{name}.{key}" for key in section.model_fields]
        else:
            keys.append(name)
    return keys


def parse_overrides(arguments: list[str]) -> dict[str, Any]:
    """``section.key=value``, ``--section.key=value`` and ``--section.key value`` to nested settings; values are YAML."""
    settings: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        key, equals, text = argument.lstrip("-").partition("=")
        if not equals:
            if not argument.startswith("--") or not rest:
                raise ConfigError(f"cannot read the argument {argument!r}: write section.key=value")
            text = rest.pop(0)
        try:
            value = yaml.safe_load(text) if text else ""
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {key}={text} is no YAML: {error}".replace("\n", " ")) from None
        # YAML 1.1 reads 1e-3 as a string: a number is meant.
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
            value = float(value)
        *path, last = key.split(".")
        place = settings
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{key}: {part!r} has a value already and cannot hold {last!r}")
        place[last] = value
    return settings


def _merge(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in extra.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def load_config(path: str | Path | None = None, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Read a YAML file (or only defaults), apply overrides, check everything.

    Raises ConfigError with one line for each mistake: the key, the value, the nearest right key, the cure.
    """
    settings: dict[str, Any] = {}
    if path is not None:
        try:
            loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read the config {path}: {error.strerror}: {_near_file(Path(path))}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
        if loaded is not None and not isinstance(loaded, dict):
            raise ConfigError(f"{path} holds a {type(loaded).__name__}, not sections with keys")
        settings = loaded or {}
        settings.setdefault("name", Path(path).stem)
    return make_config(_merge(settings, parse_overrides(list(overrides))), source=str(path or "the command line"))


def _near_file(path: Path) -> str:
    folder = path.parent
    there = sorted(p.name for p in folder.glob("*.y*ml")) if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, there, n=1, cutoff=0.4)
    return f"did you mean {str(folder / near[0])!r}?" if near else "check the path and its rights"


def make_config(settings: dict[str, Any], source: str = "the settings") -> Config:
    """Check nested settings. Raises ConfigError as ``load_config`` does."""
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        # A union reports one error for each of its members: the first says enough.
        lines = {_key(item): _explain(item, source) for item in reversed(error.errors(include_url=False))}
        raise ConfigError("\n".join(reversed(lines.values()))) from None


def _key(item: Any) -> str:
    """``loss.terms.0.name``: where in the settings, without pydantic's names of union members."""
    members = {"int", "float", "bool", "str", "none"}
    parts = [str(part) for part in item["loc"] if part not in members]
    return ".".join(part for part in parts if not re.match(r"(function-|tuple\[|literal\[|constrained-|dict\[)", part))


def _explain(item: Any, source: str) -> str:
    key = _key(item)
    value = item.get("input")
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, _known_keys(), n=1, cutoff=0.5)
        if not near:
            near = [k for k in _known_keys() if k.rpartition(".")[2] == key.rpartition(".")[2]][:1]
        hint = f"did you mean {near[0]!r}?" if near else f"the sections are {', '.join(Config.model_fields)}"
        return f"{source}: unknown key {key!r}: {hint}"
    message = item["msg"].removeprefix("Value error, ")
    if isinstance(value, (dict, Section)) and item["type"] == "value_error":
        return f"{source}: {message}"
    return f"{source}: {key}={value!r}: {message[:1].lower() + message[1:]}"
