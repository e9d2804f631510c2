"""Loads a Config from a YAML file and ``section.key=value`` overrides."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from segtrain.config.mistakes import Mistake, config_error, explained, fields
from segtrain.config.paste import shell_word
from segtrain.config.renamed import with_new_names
from segtrain.config.run import Config
from segtrain.config.section import Section, blocks, is_section, members
from segtrain.config.yaml_slips import find_slip, unspaced
from segtrain.config.yaml_text import RefusedYaml, load_yaml
from segtrain.errors import ConfigError

# First characters of the config.yaml in a run folder.
RUN_HEADER = "# segtrain run "


def parse_overrides(arguments: list[str]) -> dict[str, Any]:
    """Nested settings from ``section.key=value``, ``--section.key=value``, and ``--section.key value``."""
    settings: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        key, equals, text = argument.lstrip("-").partition("=")
        if not equals:
            if not argument.startswith("--") or not rest:
                raise ConfigError(
                    f"{argument!r} is not a setting: write section.key=value", code="not-a-setting", found=argument
                )
            text = rest.pop(0)
        value = _value(key, text, rest)
        *path, last = key.split(".")
        place = settings
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(
                    f"{key}: {part!r} is already set to a value, so {last!r} cannot be set inside it: remove one of "
                    "the two",
                    code="setting-has-value",
                    key=key,
                )
        place[last] = value
    return with_new_names(settings, "the command line")


def _value(key: str, text: str, rest: list[str]) -> Any:
    """The value of a YAML text; or the text itself, if the setting takes text and YAML reads something else."""
    kinds = _kinds(fields().get(key))
    try:
        value = load_yaml(text) if text else ""
    except yaml.YAMLError as error:
        slip = find_slip(text)
        as_it_stands = str in kinds and {"[": tuple, "{": dict}.get(text[:1]) not in kinds
        if as_it_stands and not text.startswith('"') if slip else as_it_stands and not isinstance(error, RefusedYaml):
            return text
        if slip:
            fix = shell_word(f"{key}={slip.text}")
            raise ConfigError(
                f"{key}={text}: {slip.cause}: {fix}", code="yaml-typo", key=key, cause=slip.cause, fix=fix
            ) from None
        if isinstance(error, RefusedYaml):
            why = str(error).removeprefix("line 1: ")
            raise ConfigError(f"{key}={text[:80]}: {why}", code="refused-yaml", key=key, reason=why) from None
        fix = _quoted(key, text, rest)
        raise ConfigError(
            f"{key}={text} is not valid YAML ({' '.join(str(error).split())}): {fix}",
            code="invalid-yaml",
            key=key,
            fix=fix,
        ) from None
    # YAML 1.1 reads 1e-3 as text, but a number is meant.
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value) and str not in kinds:
        return float(value)
    if str in kinds and value is not None and not isinstance(value, str):
        taken = tuple if isinstance(value, list) else type(value)
        return value if taken in kinds else text
    return value


def _kinds(field: FieldInfo | None) -> set[Any]:
    """The types that a setting takes, among them tuple and dict. Empty for an unknown setting."""
    if field is None:
        return set()
    return members(field.annotation, containers=True)


def _quoted(key: str, text: str, rest: list[str]) -> str:
    """How to write an argument that the shell split at a space, or that lacks a closing bracket."""
    closing = {"[": "]", "{": "}"}.get(text[:1])
    words = [text]
    for word in rest:
        if closing is None or closing in words[-1] or "=" in word.partition(" ")[0]:
            break
        words.append(word)
    if closing and closing in words[-1] and len(words) > 1:
        return f"quote the whole argument, because the shell splits it at spaces: '{key}={' '.join(words)}'"
    bare = text.replace('"', "")
    return f"close the brackets, or quote plain text: '{key}=\"{bare}\"'"


def _merge(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in extra.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def load_config(path: str | Path | None = None, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Read a YAML file (None: the defaults), apply overrides, and check the result.

    The config.yaml of a run folder can be used as it is, also one of an older version: see ``upgrade_settings``.

    Raises ConfigError with one line per mistake: the key, the value, the closest valid key, and the fix.
    """
    settings: dict[str, Any] = (
        {} if path is None else {"name": Path(path).stem, **with_new_names(_read(Path(path)), str(path))}
    )
    given = parse_overrides(list(overrides))
    return make_config(_merge(_other_block(settings, given), given), source=str(path or "the command line"))


def load_saved(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Read the config.yaml of a run folder, which an older version or another machine may have written.

    Like ``load_config``, but without looking up ``data.transforms``: no other file is read, and no code is imported.
    """
    settings = _read(Path(path))
    given = parse_overrides(list(overrides))
    return make_config(_merge(_other_block(upgrade_settings(settings), given), given), source=str(path), saved=True)


def _read(path: Path) -> dict[str, Any]:
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        loaded = load_yaml(text)
    except OSError as error:
        text = f"cannot read the config {path} ({error.strerror}): {_near_file(path)}"
        raise ConfigError(text, code="unreadable-config", file=str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        if slip := find_slip(text):
            raise ConfigError(
                f"{path}: line {slip.line}: {slip.cause}: {slip.now}",
                code="yaml-typo", file=str(path), line=slip.line, cause=slip.cause, fix=slip.now,
            ) from None  # fmt: skip
        if isinstance(error, RefusedYaml):
            raise ConfigError(f"{path}: {error}", code="refused-yaml", file=str(path), reason=str(error)) from None
        why = " ".join(str(error).split())
        raise ConfigError(f"{path} is not valid YAML: {why}", code="invalid-yaml", file=str(path)) from None
    if loaded is not None and not isinstance(loaded, dict):
        kind = type(loaded).__name__
        raise ConfigError(
            f"{path} contains a {kind}, but a config consists of sections with keys{unspaced(loaded)}",
            code="config-not-a-mapping", file=str(path), found=kind,
        )  # fmt: skip
    settings = loaded or {}
    return upgrade_settings(settings) if text.startswith(RUN_HEADER) else settings


def _near_file(path: Path) -> str:
    if str(path) in fields():
        return f"{path} is a setting: write {path}=VALUE"
    folder = path.parent
    there = sorted(p.name for p in folder.glob("*.y*ml")) if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, there, n=1, cutoff=0.4)
    return f"did you mean {str(folder / near[0])!r}?" if near else "check the path and its permissions"


def _other_block(settings: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The file's ``settings`` that apply to ``optim.name`` and ``optim.schedule`` of the command line."""
    mine, theirs = settings.get("optim"), given.get("optim")
    if not isinstance(mine, dict) or not isinstance(theirs, dict):
        return settings
    names = {key: theirs[key] for key in ("name", "schedule") if key in theirs}
    return {**settings, "optim": _own({**mine, **names}, "optim", "adamw")} if names else settings


def upgrade_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a config.yaml that an older version wrote, as this version would write them.

    Old names become new ones. Settings of optimizers and losses that the run did not use are removed: older versions
    wrote them down as well.
    """
    settings = with_new_names(dict(settings), "", warn=False)
    if isinstance(settings.get("optim"), dict):
        settings["optim"] = _own(settings["optim"], "optim", "adamw")
    loss = settings.get("loss")
    if isinstance(loss, dict) and isinstance(loss.get("terms"), list):
        terms = [_own(term, "loss.terms", "ce") if isinstance(term, dict) else term for term in loss["terms"]]
        settings["loss"] = {**loss, "terms": terms}
    return settings


def _own(block: dict[str, Any], key: str, default: str) -> dict[str, Any]:
    """The settings of an optimizer or loss term without those that belong to others only."""
    known = blocks(fields()[key])
    own = known.get(str(block.get("name", default)))
    if own is None:
        return block
    foreign = {name for other in known.values() for name in other.model_fields} - set(own.model_fields)
    if block.get("schedule", "poly") != "poly":
        foreign.add("poly_power")
    return {name: value for name, value in block.items() if name not in foreign}


def make_config(settings: dict[str, Any], source: str = "the settings", saved: bool = False) -> Config:
    """A Config from nested settings. Raises ConfigError like ``load_config``. ``saved``: see ``load_saved``."""
    settings = with_new_names(settings, source)
    wrong = _booleans(settings, Config, "")
    if wrong:
        raise config_error(wrong, source)
    try:
        return Config.model_validate(settings, context={"saved": saved})
    except ValidationError as error:
        raise explained(error, source) from None


def _booleans(settings: Any, kind: type[Section], prefix: str) -> list[Mistake]:
    """Booleans given for numbers. pydantic would accept them as 0 and 1."""
    found: list[Mistake] = []
    for name, value in settings.items() if isinstance(settings, dict) else ():
        field = kind.model_fields.get(name) if isinstance(name, str) else None
        if field is None:
            continue
        known, key = blocks(field), f"{prefix}{name}"
        if is_section(field.annotation):
            found += _booleans(value, field.annotation, f"{key}.")
        elif known:
            for place, block in enumerate(value) if isinstance(value, list) else [("", value)]:
                if isinstance(block, dict):
                    own = known.get(str(block.get("name"))) or next(iter(known.values()))
                    found += _booleans(block, own, f"{key}.{place}." if place != "" else f"{key}.")
        else:
            kinds = members(field.annotation)
            if (
                not kinds & {bool, str}
                and kinds & {int, float}
                and any(isinstance(leaf, bool) for leaf in _leaves(value))
            ):
                text = f"{key}={value!r}: expected a number (YAML reads on, off, yes, and no as true and false)"
                found.append(Mistake(text, "boolean-for-number", key, {"found": value}))
    return found


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for pair in value.items() for item in pair for leaf in _leaves(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]
