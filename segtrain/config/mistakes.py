"""Error messages for invalid settings: the key, the value, the closest valid key, and the fix."""

from __future__ import annotations

import functools
import typing
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from segtrain.config.paste import in_yaml
from segtrain.config.run import Config
from segtrain.config.section import Section, SettingError, blocks, is_section, sections_of
from segtrain.errors import NULL, ConfigError, closest

COMMAND_LINE = "the command line"
# The setting here -> its names in other trainers.
_NAMES_ELSEWHERE = {
    "checkpoint.every": "save_every",
    "checkpoint.resume": "resume",
    "data.classes, a list of names": "num_classes",
    "data.crop": "crop_size image_size img_size imgsz input_size",
    "data.layout and data.root": "dataset",
    "data.root": "data_dir data_root",
    "data.workers": "num_workers",
    "eval.best": "monitor save_best",
    "eval.every": "eval_every val_every",
    "model.arch": "arch architecture",
    "model.encoder": "backbone",
    "model.encoder_weights=imagenet": "pretrained",
    "model.init": "checkpoint ckpt ckpt_path load_from",
    "model.init, or model.encoder_weights for the encoder only": "weights",
    "optim.clip": "grad_clip gradient_clip_val",
    "optim.ema": "ema_decay",
    "optim.lr": "learning_rate",
    "optim.name": "optimizer",
    "optim.schedule": "lr_scheduler scheduler",
    "optim.weight_decay": "wd",
    "out=FOLDER": "output_dir save_dir",
    "train.accumulate": "accumulate_grad_batches grad_accum gradient_accumulation_steps",
    "train.batch_size": "batch",
    "train.duration=20ep": "epochs max_epochs num_epochs",
    "train.duration=5000st": "iters iterations max_iters max_steps steps",
    "train.patience": "early_stop early_stopping patience",
    "train.precision=bf16": "amp mixed_precision",
}
OTHER_TRAINERS = {name: here for here, names in _NAMES_ELSEWHERE.items() for name in names.split()}
_PROCESSES = "start one process per GPU: torchrun --nproc-per-node N -m segtrain train ..."
ABSENT = {
    "devices": _PROCESSES,
    "gpus": _PROCESSES,
}
# How pydantic's names for values of a wrong type end, and other such names.
_WRONG_TYPE = (
    "_type",
    "_parsing",
    "_parsing_size",
    "_from_float",
    "literal_error",
    "missing",
    "too_long",
)

_TYPE_NAMES = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "true, false",
    type(None): "null",
}


@functools.lru_cache(maxsize=1)
def fields() -> dict[str, FieldInfo]:
    """Every key of a config (``out``, ``data``, ``data.root``, ``data.split_by.val``, ...) with its
    field.
    """
    settings: dict[str, FieldInfo] = {}

    def walk(kind: type[Section], prefix: str) -> None:
        for name, field in kind.model_fields.items():
            settings.setdefault(f"{prefix}{name}", field)
            for part in sections_of(field.annotation):
                walk(part, f"{prefix}{name}.")

    walk(Config, "")
    return settings


def explained(
    error: ValidationError, source: str, command_line_keys: Sequence[str] = ()
) -> ConfigError:
    """An error with one line per mistake. Its code and values are from the first mistake; ``keys``
    lists all keys.

    Its ``settings`` are the advised ones, not tried.

    ``command_line_keys``: the keys that are from the command line; all others are from ``source``.
    """
    items = []
    for item in error.errors(include_url=False):
        # In a list that is too short, pydantic names the missing item.
        loc = item["loc"][:-1] if item["type"] == "missing" else item["loc"]
        items.append((_position(loc), item))
    # A union reports one error for each of its members. Keep the first one per key, and of nested
    # keys the deepest.
    by_key = {
        position.key: _explain(position, item)
        for position, item in reversed(items)
        if not any(other.key.startswith(f"{position.key}.") for other, _ in items)
    }
    mistakes = list(reversed(by_key.values()))
    keys = tuple(mistake.values["key"] for mistake in mistakes)
    sources = [
        COMMAND_LINE
        if any(f"{key}.".startswith(f"{mine}.") for mine in command_line_keys)
        else source
        for key in keys
    ]
    text = "\n".join(
        dict.fromkeys(f"{where}: {mistake}" for where, mistake in zip(sources, mistakes))
    )
    combined = ConfigError(
        text, code=mistakes[0].code, source=sources[0], keys=keys, **mistakes[0].values
    )
    combined.settings = {
        key: value for mistake in mistakes for key, value in mistake.advice.items()
    }
    return combined


class _Position(NamedTuple):
    """Where a mistake is: its key, and the section and the setting that the key leads to."""

    key: str  # loss.terms.0.gamma
    choice: dict[str, type[Section]]  # sections to choose from, for example one per optimizer
    chosen: str  # the name of the chosen section
    # the setting; None if the mistake is inside its value, or there is no such setting
    field: FieldInfo | None


def _position(loc: tuple[Any, ...]) -> _Position:
    """Convert pydantic's ``loc`` to a position, without the names that pydantic adds for members of
    unions.
    """
    path: list[str] = []
    kind: type[Section] | None = Config
    choice: dict[str, type[Section]] = {}
    chosen, field = "", None
    for part in loc:
        if choice and not chosen and part in choice:
            kind, chosen = choice[part], part
            continue
        if kind is None and not isinstance(part, int):
            continue
        path.append(str(part))
        field = kind.model_fields.get(str(part)) if kind else None
        kind = None
        if field is not None:
            choice, chosen = blocks(field.annotation), ""
            kind = field.annotation if is_section(field.annotation) else None
    return _Position(".".join(path), choice, chosen, field)


def _explain(position: _Position, item: Any) -> SettingError:
    key, choice, chosen, field = position
    value, message, kind = item["input"], item["msg"].removeprefix("Value error, "), item["type"]
    context = item.get("ctx", {})
    raised = context.get("error")
    if isinstance(raised, SettingError):
        return raised
    if kind == "boolean-for-number":
        key, value = f"{key}.{context['name']}", context["value"]
        return SettingError(f"{key}={value!r}: {message}", kind, key=key, found=value)
    if kind in ("extra_forbidden", "invalid_key"):
        return _unknown(key, value, choice, chosen, str(item["loc"][-1]))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        name = value.get("name") if isinstance(value, dict) else value
        near = closest(str(name), choice)
        hint = f"did you mean {near!r}? Choose from " if near else "choose from "
        text = f"{key}.name={name!r}: {hint}{', '.join(map(repr, choice))}"
        return SettingError(text, "unknown-choice", key=f"{key}.name", found=name)
    if "[key]" in item["loc"]:
        text = f"{key}: the key {value!r} must be text: quote it, as '{value}'"
        return SettingError(text, "key-not-text", key=key, found=value)
    null = f" ({NULL})" if value is None else ""
    if field is not None and kind.endswith(_WRONG_TYPE):
        expected = in_words(field.annotation, "'")
        text = f"{key}={value!r}: expected {expected}{null}"
        return SettingError(text, "wrong-type", key=key, found=value, expected=expected)
    message = (message[:1].lower() + message[1:]).replace("input should be", "must be")
    message = message.replace("tuple should have", "must have").replace(" after validation", "")
    code = "wrong-type" if kind.endswith(_WRONG_TYPE) else "invalid-value"
    return SettingError(f"{key}={value!r}: {message}{null}", code, key=key, found=value)


def _unknown(
    key: str, value: Any, choice: dict[str, type[Section]], chosen: str, name: str
) -> SettingError:
    """The error for an unknown key: a key of another choice (such as an optimizer) or of another
    trainer, or a typo.

    ``name``: the key without its section.
    """
    section, _, last = key.rpartition(".")
    own = (
        list(choice[chosen].model_fields)
        if chosen
        else [_name_of(k) for k in fields() if k.rpartition(".")[0] == section]
    )
    near = _suggestion(key, value, own)
    if "." in name:
        nested = in_yaml({near or key: value})
        text = (
            f"unknown key {key!r}: dots are for the command line. In a file, nest the key: {nested}"
        )
        return SettingError(text, "dotted-key", key=key, fix=nested)
    owners = [name for name, kind in choice.items() if last in kind.model_fields]
    if owners and chosen:
        why = f"{chosen!r} has no setting {last!r}, unlike {' and '.join(map(repr, owners))}"
        text = f"{key}={value!r}: {why}: remove it, or set {section}.name={owners[0]}"
        return SettingError(
            text, "setting-of-another-choice", key=key, found=value, owners=tuple(owners)
        )
    hint = (
        f"did you mean {near!r}?"
        if near
        else f"{chosen or section or 'a config'} has the keys {', '.join(own)}"
    )
    if last in ABSENT:
        near, hint = None, ABSENT[last]
    return SettingError(f"unknown key {key!r}: {hint}", "unknown-key", key=key, suggestion=near)


def _suggestion(key: str, value: Any, own: Sequence[str]) -> str | None:
    """The setting that an unknown key probably means, by its section's ``own`` names, or by those
    of all sections.
    """
    section, _, last = key.rpartition(".")
    if near := closest(last, own, 0.5 if isinstance(value, dict) else 0.7):
        return f"{section}.{near}".lstrip(".")
    if last in OTHER_TRAINERS:
        return OTHER_TRAINERS[last]
    if section and last == "name":  # that of the run is not what model.name or loss.name means
        return None
    if not section:
        last = closest(last, map(_name_of, fields()), 0.7) or last
    same = [setting for setting in fields() if _name_of(setting) == last]
    return min(same, key=lambda setting: setting.count("."), default=None)


def _name_of(key: str) -> str:
    """The name of a setting without its section."""
    return key.rpartition(".")[2]


def in_words(kind: Any, mark: str = "`") -> str:
    """The values that an annotation allows. ``mark``: the quotes around literal values."""
    if kind in _TYPE_NAMES:
        return _TYPE_NAMES[kind]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return in_words(inner[0], mark)
    if origin is typing.Literal:
        return ", ".join(f"{mark}{member}{mark}" for member in inner)
    if origin is typing.Union:
        words = [in_words(member, mark) for member in inner]
        *most, last = dict.fromkeys(
            word for text in words for word in ([text] if "[" in text else text.split(", "))
        )
        return f"{', '.join(most)} or {last}" if most else last
    if origin is tuple:
        if blocks(kind):
            return "list of terms"
        items = [in_words(member, mark) for member in inner if member is not Ellipsis]
        plural = items[0] + "s" * (items[0] in ("integer", "number", "text", "mapping"))
        return f"list of {plural}" if Ellipsis in inner else f"[{', '.join(items)}]"
    return "mapping" if origin is dict or is_section(kind) else getattr(kind, "__name__", str(kind))
