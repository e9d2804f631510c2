"""How a YAML file and ``section.key=value`` become a Config."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from segtrain.config.mistakes import explained, fields
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
        value = _value(key, text, rest)
        *path, last = key.split(".")
        place = settings
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{key}: {part!r} has a value already and cannot hold {last!r}")
        place[last] = value
    return with_new_names(settings, "the command line")


def _value(key: str, text: str, rest: list[str]) -> Any:
    """YAML; or the text as it stands, where the setting takes text and YAML would make something else of it."""
    kinds = _kinds(fields().get(key))
    try:
        value = load_yaml(text) if text else ""
    except yaml.YAMLError as error:
        slip = find_slip(text)
        as_it_stands = str in kinds and {"[": tuple, "{": dict}.get(text[:1]) not in kinds
        if as_it_stands and not text.startswith('"') if slip else as_it_stands and not isinstance(error, RefusedYaml):
            return text
        if slip:
            raise ConfigError(f"{key}={text}: {slip.cause}: {shell_word(f'{key}={slip.text}')}") from None
        if isinstance(error, RefusedYaml):
            raise ConfigError(f"{key}={text[:80]}: {str(error).removeprefix('line 1: ')}") from None
        raise ConfigError(
            f"the value of {key}={text} is no YAML ({' '.join(str(error).split())}): {_quoted(key, text, rest)}"
        ) from None
    # YAML 1.1 reads 1e-3 as a string: a number is meant.
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value) and str not in kinds:
        return float(value)
    if str in kinds and value is not None and not isinstance(value, str):
        taken = tuple if isinstance(value, list) else type(value)
        return value if taken in kinds else text
    return value


def _kinds(field: FieldInfo | None) -> set[Any]:
    """What a setting takes: plain types, tuple and dict; nothing for an unknown one."""
    if field is None:
        return set()
    return members(field.annotation, containers=True)


def _quoted(key: str, text: str, rest: list[str]) -> str:
    """How to write an argument that the shell has cut at a space, or that has a bracket too few."""
    closing = {"[": "]", "{": "}"}.get(text[:1])
    words = [text]
    for word in rest:
        if closing is None or closing in words[-1] or "=" in word.partition(" ")[0]:
            break
        words.append(word)
    if closing and closing in words[-1] and len(words) > 1:
        return f"quote the whole argument, so that the shell leaves it in one piece: '{key}={' '.join(words)}'"
    bare = text.replace('"', "")
    return f"close its brackets, or if it is plain text, quote it: '{key}=\"{bare}\"'"


def _merge(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in extra.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def load_config(path: str | Path | None = None, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Read a YAML file (or only defaults), apply overrides, check everything.

    A run's config.yaml trains again, also one of an older version: see ``upgrade_settings``.

    Raises ConfigError with one line for each mistake: the key, the value, the nearest right key, the cure.
    """
    settings: dict[str, Any] = (
        {} if path is None else {"name": Path(path).stem, **with_new_names(_read(Path(path)), str(path))}
    )
    given = parse_overrides(list(overrides))
    return make_config(_merge(_other_block(settings, given), given), source=str(path or "the command line"))


def load_saved(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """As ``load_config``, of a config.yaml that a run has written, perhaps an older version, or on another machine.

    ``data.transforms`` is not looked up, so no code beside the run is touched; and see ``upgrade_settings``.
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
        raise ConfigError(f"cannot read the config {path}: {error.strerror}: {_near_file(path)}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        if slip := find_slip(text):
            raise ConfigError(f"{path}: line {slip.line}: {slip.cause}: {slip.now}") from None
        why = str(error) if isinstance(error, RefusedYaml) else f"it is no YAML: {' '.join(str(error).split())}"
        raise ConfigError(f"{path}: {why}") from None
    if loaded is not None and not isinstance(loaded, dict):
        raise ConfigError(f"{path} holds a {type(loaded).__name__}, not sections with keys{unspaced(loaded)}")
    settings = loaded or {}
    return upgrade_settings(settings) if text.startswith(RUN_HEADER) else settings


def _near_file(path: Path) -> str:
    if str(path) in fields():
        return f"it is the name of a setting: write {path}=VALUE"
    folder = path.parent
    there = sorted(p.name for p in folder.glob("*.y*ml")) if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, there, n=1, cutoff=0.4)
    return f"did you mean {str(folder / near[0])!r}?" if near else "check the path and its rights"


def _other_block(settings: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """``settings`` of a file without what the command line's ``optim.name`` or ``optim.schedule`` leaves no meaning to."""
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
    """The settings of a block without those that only other blocks have, by its name (or its schedule)."""
    known = blocks(fields()[key])
    own = known.get(str(block.get("name", default)))
    if own is None:
        return block
    foreign = {name for other in known.values() for name in other.model_fields} - set(own.model_fields)
    if block.get("schedule", "poly") != "poly":
        foreign.add("poly_power")
    return {name: value for name, value in block.items() if name not in foreign}


def make_config(settings: dict[str, Any], source: str = "the settings", saved: bool = False) -> Config:
    """Check nested settings. Raises ConfigError as ``load_config`` does. ``saved``: see ``load_saved``."""
    settings = with_new_names(settings, source)
    wrong = [f"{source}: {line}" for line in _booleans(settings, Config, "")]
    if wrong:
        raise ConfigError("\n".join(wrong))
    try:
        return Config.model_validate(settings, context={"saved": saved})
    except ValidationError as error:
        raise ConfigError(explained(error, source)) from None


def _booleans(settings: Any, kind: type[Section], prefix: str) -> list[str]:
    """What is wrong with booleans where numbers alone are wanted, for which pydantic takes 0 and 1."""
    lines: list[str] = []
    for name, value in settings.items() if isinstance(settings, dict) else ():
        field = kind.model_fields.get(name) if isinstance(name, str) else None
        if field is None:
            continue
        known, key = blocks(field), f"{prefix}{name}"
        if is_section(field.annotation):
            lines += _booleans(value, field.annotation, f"{key}.")
        elif known:
            for place, block in enumerate(value) if isinstance(value, list) else [("", value)]:
                if isinstance(block, dict):
                    own = known.get(str(block.get("name"))) or next(iter(known.values()))
                    lines += _booleans(block, own, f"{key}.{place}." if place != "" else f"{key}.")
        else:
            kinds = members(field.annotation)
            if (
                not kinds & {bool, str}
                and kinds & {int, float}
                and any(isinstance(leaf, bool) for leaf in _leaves(value))
            ):
                lines.append(
                    f"{key}={value!r}: true and false are no numbers (YAML reads on, off, yes and no so): write a number"
                )
    return lines


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for pair in value.items() for item in pair for leaf in _leaves(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]
