"""Loads a Config from a YAML file and ``section.key=value`` overrides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from segtrain.base.files import read_text
from segtrain.config.mistakes import COMMAND_LINE, explained, fields
from segtrain.config.paste import command, set_nested
from segtrain.config.run import Config
from segtrain.config.section import blocks, members
from segtrain.config.yaml_text import RefusedYaml, load_yaml
from segtrain.errors import ConfigError, closest, one_line

# First characters of the config.yaml in a run folder, and in one of segtrain 0.1.
RUN_HEADER = "# segtrain 0.2 run "
_OLDER_HEADER = "# segtrain run "


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Nested settings from ``section.key=value``, ``--section.key=value``, and ``--section.key
    value``.
    """
    settings: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        key, equals, text = argument.lstrip("-").partition("=")
        if not equals:
            if not argument.startswith("--") or not rest:
                why = f"{argument!r} is not a setting: write section.key=value"
                raise ConfigError(why, code="not-a-setting", found=argument)
            text = rest.pop(0)
        set_nested(settings, key, _value(key, text))
    return settings


def _value(key: str, text: str) -> Any:
    """Parse ``text`` as YAML. Returns ``text`` itself if the setting takes text and YAML reads
    another type.
    """
    kinds = members(fields()[key].annotation, containers=True) if key in fields() else set()
    if text == "~" and str in kinds and type(None) not in kinds:
        return text  # the home folder
    try:
        value = load_yaml(text) if text else ""
    except yaml.YAMLError as error:
        # Text such as {split}/images is not valid YAML, but a valid value.
        is_text = str in kinds and {"[": tuple, "{": dict, '"': str}.get(text[:1]) not in kinds
        if is_text and text.isprintable():
            return text
        fix = (
            "close its brackets, quote the whole argument if it has spaces, and put text with "
            "backslashes in '...'"
        )
        raise _not_yaml(error, f"{key}={text[:80]}", fix, key=key) from None
    # YAML 1.1 reads 1e-3 as text, but a number is meant.
    if (
        isinstance(value, str)
        and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value)
        and str not in kinds
    ):
        return float(value)
    if str in kinds and value is not None and not isinstance(value, str):
        kind = tuple if isinstance(value, list) else type(value)
        return value if kind in kinds else text
    return value


def _not_yaml(error: Exception, where: str, fix: str, **values: Any) -> ConfigError:
    """The error for text that cannot be read as YAML. ``fix``: what to write."""
    why = one_line(error)
    if isinstance(error, RefusedYaml):
        return ConfigError(f"{where}: {why}", code="refused-yaml", reason=why, **values)
    text = f"{where} is not valid YAML ({why})" + (f": {fix}" if fix else "")
    return ConfigError(text, code="invalid-yaml", fix=fix, **values)


def _merge(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in extra.items():
        old = merged.get(key)
        merged[key] = (
            _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged


def load_config(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file (None: the defaults), apply overrides, and check the result.

    The file may also be the config.yaml of a run folder.

    Raises ConfigError with one line per mistake: the key, the value, the closest valid key, and the
    fix.
    """
    settings: dict[str, Any] = {}
    if not isinstance(path, (str, Path, type(None))):
        kind, fix = (
            type(path).__name__,
            "pass settings as Config.load(None, 'section.key=value', ...)",
        )
        why = f"Config.load takes the path of a YAML file, not {kind}: {fix}"
        raise ConfigError(why, code="config-not-a-file", found=kind)
    if path is not None:
        settings = {"name": Path(path).stem, **_read(Path(path))}
    return make_config(
        _overridden(settings, overrides), source=str(path or COMMAND_LINE), overrides=overrides
    )


def load_saved(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read the config.yaml of a run folder, which another machine may have written.

    Like ``load_config``, but without looking up ``data.transforms``: no other file is read, and no
    code is imported.
    """
    return make_config(
        _overridden(_read(Path(path)), overrides), source=str(path), saved=True, overrides=overrides
    )


def _read(path: Path) -> dict[str, Any]:
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        loaded = load_yaml(text)
    except OSError as error:
        why = f"cannot read the config {path} ({error.strerror}): {_near_file(path)}"
        raise ConfigError(why, code="unreadable-config", file=str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _not_yaml(error, str(path), "", file=str(path)) from None
    if loaded is not None and not isinstance(loaded, dict):
        kind = type(loaded).__name__
        why = f"{path} contains a value of type {kind}, but a config consists of sections with keys"
        raise ConfigError(why, code="config-not-a-mapping", file=str(path), found=kind)
    _refuse_older(path, text)
    return loaded or {}


def refuse_older_run(run_dir: Path) -> None:
    """Raise ConfigError for a run folder that segtrain 0.1 wrote."""
    try:
        _refuse_older(run_dir, read_text(run_dir / "config.yaml"))
    except (OSError, ValueError):  # missing or damaged: the code that reads it reports that
        return


def _refuse_older(path: Path, text: str) -> None:
    if text.startswith(_OLDER_HEADER):
        why = (
            f"{path} was written by segtrain 0.1: use that version for it, or begin a new run "
            "with out=FOLDER"
        )
        raise ConfigError(why, code="run-of-older-version", file=str(path))


def _near_file(path: Path) -> str:
    if str(path) in fields():
        return f"{path} is a setting: write {path}=VALUE"
    near = closest(path.name, sorted(p.name for p in path.parent.glob("*.y*ml")), 0.4)
    return (
        f"did you mean {str(path.parent / near)!r}?"
        if near
        else "check the path and its permissions"
    )


def _overridden(settings: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Merge overrides into the ``settings`` of a file.

    If they choose another optimizer or schedule, settings that only the old choice has are dropped.
    """
    changes = parse_overrides(overrides)
    if changes.get("name") == "":  # as if it were not given
        del changes["name"]
    mine, theirs = settings.get("optim"), changes.get("optim")
    if isinstance(mine, dict) and isinstance(theirs, dict):
        names = {key: theirs[key] for key in ("name", "schedule") if key in theirs}
        if names:
            settings = {**settings, "optim": _own({**mine, **names})}
    return _merge(settings, changes)


def _own(block: dict[str, Any]) -> dict[str, Any]:
    """The settings of an optimizer, without settings that only other optimizers have."""
    optimizers = blocks(fields()["optim"].annotation)
    own = optimizers.get(str(block.get("name", next(iter(optimizers), ""))))
    if own is None:
        return block
    foreign = {name for other in optimizers.values() for name in other.model_fields} - set(
        own.model_fields
    )
    if block.get("schedule", "poly") != "poly":
        foreign.add("poly_power")
    return {name: value for name, value in block.items() if name not in foreign}


def make_config(
    settings: dict[str, Any],
    source: str = "the settings",
    saved: bool = False,
    overrides: Sequence[str] = (),
) -> Config:
    """A Config from nested settings. Raises ConfigError like ``load_config``. ``saved``: see
    ``load_saved``.

    ``overrides``: the ``section.key=value`` of the command line among them, so that an error does
    not blame ``source``.
    """
    try:
        return Config.model_validate(settings, context={"saved": saved})
    except ValidationError as error:
        refused = explained(error, source, [text.partition("=")[0] for text in overrides])
    raise _with_tried_advice(refused, settings)


def _with_tried_advice(refused: ConfigError, settings: dict[str, Any]) -> ConfigError:
    """The error, whose ``settings`` are advice that was tried, with what its advice runs into.

    One fix may need another: then the message ends with all of them. If there is no way out,
    ``settings`` is None.
    """
    advice, latest = dict[str, Any](), refused
    while latest.settings and not latest.settings.items() <= advice.items():
        advice |= latest.settings
        nested: dict[str, Any] = {}
        for key, value in advice.items():
            set_nested(nested, key, value)
        try:
            Config.model_validate(_merge(settings, nested), context={"saved": True})
        except ValidationError as error:
            latest = explained(error, "then")
            continue
        more = f"; settings that fix this: {command(advice)}" if len(advice) > 1 else ""
        advised = ConfigError(f"{refused}{more}", code=refused.code, **refused.values)
        advised.settings = advice
        return advised
    more = f"; {latest}" if latest is not refused else ""
    return ConfigError(f"{refused}{more}", code=refused.code, **refused.values)
