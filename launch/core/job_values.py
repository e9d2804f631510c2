"""Functions that read a user's input for a job, such as ``6h`` or ``key=value``. Each returns the
value or raises ConfigError.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from segtrain.errors import NULL, ConfigError, closest, one_line

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LARGEST = 10**9


def read_mapping(path: str | Path) -> dict[str, Any]:
    """The keys and values of a YAML (or JSON) file. Raises ConfigError if the file holds anything
    else.
    """
    try:
        content = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read the job {path}: {error.strerror}: {_near_file(Path(path))}",
            code="job-unreadable",
            file=str(path),
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not text ({error}): a job is YAML in UTF-8",
            code="job-not-text",
            file=str(path),
        ) from None
    loaded = _yaml(content, str(path))
    if loaded is not None and not isinstance(loaded, dict):
        raise ConfigError(
            f"{path} holds a {type(loaded).__name__}, not a mapping: write keys with values, "
            "such as name: camvid",
            code="job-not-keys",
            file=str(path),
            found=type(loaded).__name__,
        )
    return {str(key): value for key, value in (loaded or {}).items()}


def _yaml(content: str, source: str) -> Any:
    try:
        import yaml
    except ImportError:
        try:
            return json.loads(content)  # JSON is YAML too, and needs no package
        except ValueError:
            raise ConfigError(
                f"{source} is YAML, which this Python cannot read: pip install pyyaml, or "
                "use flags",
                code="yaml-package-missing",
                file=source,
            ) from None
    try:
        return _load_yaml()(content)
    except RecursionError:
        raise ConfigError(
            f"{source}: lists and mappings are nested too deep: write it flat",
            code="yaml-too-deep",
            file=source,
        ) from None
    except yaml.YAMLError as error:
        words = one_line(error)
        # A message that begins with "line" is about valid YAML that segtrain refuses, such as a
        # repeated key.
        raise ConfigError(
            f"{source}{': ' if words.startswith('line ') else ' is not valid YAML: '}{words}",
            code="yaml-invalid",
            file=source,
        ) from None


def _load_yaml() -> Callable[[str], Any]:
    """The function that reads YAML: that of segtrain's configs, which refuses repeated keys and
    huge values, or ``yaml.safe_load`` if pydantic, which it needs, is not installed.
    """
    try:
        from segtrain.config.yaml_text import load_yaml
    except ImportError:
        import yaml

        return yaml.safe_load
    return load_yaml


def _near_file(path: Path) -> str:
    there = (
        sorted(p.name for p in path.parent.glob("[!.]*.y*ml")) if os.path.isdir(path.parent) else []
    )
    near = closest(path.name, there, 0.4)
    return (
        f"did you mean {str(path.parent / near)!r}?"
        if near
        else "check the path and its permissions"
    )


def scalar(content: str, key: str) -> Any:
    """The value of ``key=content`` as segtrain reads it: as YAML, or as text for a text setting
    (``{split}.csv``).

    Without pydantic, it is always read as YAML; without PyYAML, as JSON or else as text.
    """
    try:
        from segtrain.config import parse_overrides
    except ImportError:
        return _plain(content, key)
    place: Any = parse_overrides([f"{key}={content}"])
    for part in key.split("."):
        place = place[part]
    return place


def _plain(content: str, key: str) -> Any:
    # YAML 1.1 would read 1e-3 as a string
    if re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", content):
        return float(content)
    try:
        import yaml
    except ImportError:
        try:
            return json.loads(content)
        except ValueError:
            return {"True": True, "False": False}.get(content, content)
    try:
        return yaml.safe_load(content) if content else ""
    except RecursionError:
        raise ConfigError(
            f"{key}={content[:80]}: lists and mappings are nested too deep",
            code="yaml-too-deep",
            key=key,
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(
            f"the value of {key}={content} is not valid YAML ({one_line(error)}): "
            f"close its brackets, or if it is plain text, quote it: '{key}=\"{content}\"'",
            code="yaml-invalid",
            key=key,
            found=content,
        ) from None


def wrong(where: str, value: Any, wanted: str) -> ConfigError:
    null = f" ({NULL})" if value is None else ""
    return ConfigError(
        f"{where}={value!r}: must be {wanted}{null}", code="value-invalid", key=where, found=value
    )


def text(value: Any, where: str) -> str:
    if value is None or isinstance(value, (bool, Mapping, list, tuple)):
        raise wrong(where, value, "a text")
    return str(value)


def local_path(value: Any, where: str) -> str:
    """A path on the disk, with ``~`` replaced. Raises ConfigError as ``place``."""
    from segtrain.bucket import typed_place

    return _checked(value, where, typed_place)


def place(value: Any, where: str) -> str:
    """A path or URL, with ``~`` replaced. Raises ConfigError for what a shell should have replaced,
    and other texts that would become the name of a folder; the platform checks the scheme.
    """
    from segtrain.bucket import typed_place

    return _checked(value, where, partial(typed_place, schemes=None))


def name(value: Any, where: str) -> str:
    """A name that can be a part of a folder's. Raises ConfigError."""
    from segtrain.bucket import typed_name

    if not text(value, where):
        raise wrong(where, value, "a name")
    return _checked(value, where, typed_name)


def _checked(value: Any, where: str, check: Callable[[str], str]) -> str:
    try:
        return check(text(value, where))
    except ValueError as problem:
        raise ConfigError(
            f"{where}={value!r}: {problem}", code="value-invalid", key=where, found=value
        ) from None


def texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, (str, list, tuple)):
        raise wrong(where, value, "a list of texts")
    return tuple(text(item, where) for item in ([value] if isinstance(value, str) else value))


def listed(value: Any, where: str) -> tuple[str, ...]:
    """Texts from a list, or from ``A,B``."""
    return tuple(part for item in texts(value, where) for part in item.split(",") if part)


def whole(value: Any, where: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(where, value, "a whole number")
    if abs(value) > _LARGEST:
        raise ConfigError(
            f"{where} has {len(str(abs(value)))} digits: the largest number that is read is "
            f"{_LARGEST:,}",
            code="value-too-large",
            key=where,
            found=value,
        )
    return value


def at_least(least: int) -> Callable[[Any, str], int]:
    """A function that reads a whole number that is not smaller."""

    def read(value: Any, where: str) -> int:
        if whole(value, where) < least:
            raise wrong(where, value, f"at least {least}")
        return whole(value, where)

    return read


def number(value: Any, where: str) -> float:
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise wrong(where, value, "a number")


def amount(value: Any, where: str) -> float:
    """A finite number, 0 or more, such as an amount of dollars or gigabytes."""
    if not 0 <= number(value, where) < math.inf:
        raise wrong(where, value, "a number, 0 or more")
    return number(value, where)


def switch(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(where, value, "true or false")
    return value


def seconds(value: Any, where: str) -> int:
    """The seconds of a time such as ``6h``, ``90m``, ``2d``, ``3600s``, or ``3600``."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?) ?([smhd]?)", str(value).strip())
    if match is None or isinstance(value, bool):
        raise wrong(where, value, "a time, as 6h, 90m or 3600 (seconds)")
    return round(float(match[1]) * _UNITS[match[2]])


def choice(value: Any, literal: Any, where: str) -> Any:
    """One of the members of a Literal."""
    members = get_args(literal)
    if value not in members:
        raise wrong(where, value, f"one of {', '.join(members)}")
    return value


def one_of(literal: Any) -> Callable[[Any, str], Any]:
    """A function that reads one of the members of a Literal."""
    return lambda value, where: choice(value, literal, where)


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong(where, value, "keys with values")
    return value


def strict_mapping(value: Any, keys: Sequence[str], where: str) -> Mapping[str, Any]:
    """A mapping whose keys are all in ``keys``. Raises ConfigError that names the known key nearest
    to a wrong one.
    """
    for key in mapping(value, where):
        if key not in keys:
            near = closest(str(key), keys, 0.5)
            hint = f"did you mean {near!r}?" if near else f"the keys are {', '.join(keys)}"
            raise ConfigError(f"{where}: unknown key {key!r}: {hint}", code="key-unknown", key=key)
    return mapping(value, where)


def pairs(value: Any, where: str) -> dict[str, str]:
    """String keys and values, from a mapping or from the command line's list of ``key=value``.

    A number becomes a string, and a boolean becomes "true" or "false".
    """
    if not isinstance(value, Mapping):
        split = [
            text(item, where).partition("=")
            for item in (value if isinstance(value, (list, tuple)) else [value])
        ]
        for item in split:
            if not item[0] or not item[1]:
                raise wrong(where, "".join(item), "key=value")
        once([item[0] for item in split], where)
        value = {key: content for key, _, content in split}
    texts = {}
    for key, content in value.items():
        if isinstance(key, bool):  # YAML 1.1 reads a bare on or off as a boolean
            raise ConfigError(
                f"{where}: YAML reads a bare on, off, yes, or no as true or false: quote "
                "it, as 'on'",
                code="key-not-text",
                key=where,
            )
        if content is None or isinstance(content, (Mapping, list)):
            raise wrong(f"{where}.{key}", content, "a text")
        texts[str(key)] = str(content).lower() if isinstance(content, bool) else str(content)
    return texts


def dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten ``{train: {batch_size: 8}}``, the sections of a training config, to
    ``{"train.batch_size": 8}``.
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and "." not in str(key):
            flat.update({f"{key}.{inner}": content for inner, content in value.items()})
        else:
            flat[str(key)] = value
    return flat


def named(content: str) -> tuple[str, str]:
    """Split ``train=s3://b/p/`` into name and address; the name is "" if there is none."""
    match = re.fullmatch(r"([A-Za-z0-9._-]+)=(.*)", content)
    return (match[1], match[2]) if match else ("", content)


def unique(items: Sequence[Any], where: str) -> tuple[Any, ...]:
    """The items, if each has its own name. Raises ConfigError otherwise."""
    once([item.name for item in items], where)
    return tuple(items)


def once(names: Sequence[str], where: str) -> None:
    """Raise ConfigError where a name is given twice."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{where}: {name!r} is given twice: give each its own name",
                code="name-twice",
                key=where,
                found=name,
            )
