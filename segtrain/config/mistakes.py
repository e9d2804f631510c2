"""Error messages for invalid settings: the key, the value, the closest valid key, and the fix."""

from __future__ import annotations

import difflib
import functools
import re
import typing
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from segtrain.config.paste import in_yaml
from segtrain.config.run import Config
from segtrain.config.section import Section, SettingError, blocks, is_section
from segtrain.config.wanted import inside, wrong_type
from segtrain.errors import ConfigError

# The name of a setting in other trainers -> the setting here.
OTHER_TRAINERS = {
    "accumulate_grad_batches": "train.accumulate",
    "amp": "train.precision=bf16",
    "arch": "model.arch",
    "architecture": "model.arch",
    "backbone": "model.encoder",
    "batch": "train.batch_size",
    "checkpoint": "model.init",
    "ckpt": "model.init",
    "ckpt_path": "model.init",
    "crop_size": "data.crop",
    "data_dir": "data.root",
    "data_root": "data.root",
    "dataset": "data.layout and data.root",
    "ema_decay": "optim.ema",
    "epochs": "train.duration=20ep",
    "eval_every": "eval.every",
    "grad_accum": "train.accumulate",
    "grad_clip": "optim.clip",
    "gradient_accumulation_steps": "train.accumulate",
    "gradient_clip_val": "optim.clip",
    "image_size": "data.crop",
    "img_size": "data.crop",
    "imgsz": "data.crop",
    "input_size": "data.crop",
    "iters": "train.duration=5000st",
    "iterations": "train.duration=5000st",
    "learning_rate": "optim.lr",
    "load_from": "model.init",
    "lr_scheduler": "optim.schedule",
    "max_epochs": "train.duration=20ep",
    "max_iters": "train.duration=5000st",
    "max_steps": "train.duration=5000st",
    "mixed_precision": "train.precision=bf16",
    "num_classes": "data.classes, a list of names",
    "num_epochs": "train.duration=20ep",
    "num_workers": "data.workers",
    "optimizer": "optim.name",
    "output_dir": "out=FOLDER",
    "pretrained": "model.encoder_weights=imagenet",
    "resume": "checkpoint.resume",
    "save_dir": "out=FOLDER",
    "save_every": "checkpoint.every",
    "scheduler": "optim.schedule",
    "steps": "train.duration=5000st",
    "val_every": "eval.every",
    "wd": "optim.weight_decay",
    "weights": "model.init, or model.encoder_weights for the encoder only",
}
_STOP = "there is no early stopping; the best checkpoint is kept, and Ctrl-C saves the state and stops"
_PROCESSES = "start one process per GPU: torchrun --nproc-per-node N -m segtrain train ..."
# pydantic's names for values of a wrong type, whose messages `segtrain.config.wanted` writes.
_WRONG_TYPE = re.compile(
    r"(int|float|string|bool|tuple|dict)_(type|parsing|parsing_size|from_float)|model_(attributes_)?type|"
    r"none_required|missing|literal_error|too_long"
)
ABSENT = {"early_stop": _STOP, "early_stopping": _STOP, "patience": _STOP, "devices": _PROCESSES, "gpus": _PROCESSES}


def parts(field: FieldInfo) -> list[type[Section]]:
    """The section of a field, or the sections to choose from. Empty for a plain value and for a list of sections."""
    kind = field.annotation
    if is_section(kind):
        return [kind]
    return [] if typing.get_origin(kind) is tuple else list(blocks(field).values())


@functools.lru_cache(maxsize=1)
def fields() -> dict[str, FieldInfo]:
    """Every key of a config (``out``, ``data``, ``data.root``, ``data.split_by.val``, ...) with its field."""
    found: dict[str, FieldInfo] = {}

    def walk(kind: type[Section], prefix: str) -> None:
        for name, field in kind.model_fields.items():
            found.setdefault(f"{prefix}{name}", field)
            for part in parts(field):
                walk(part, f"{prefix}{name}.")

    walk(Config, "")
    return found


def known_keys() -> list[str]:
    """Every key that takes a value, so no sections."""
    return [key for key, field in fields().items() if not parts(field)]


class Mistake(NamedTuple):
    """One invalid setting."""

    text: str
    code: str
    key: str
    values: dict[str, Any] = {}  # noqa: RUF012


def config_error(mistakes: list[Mistake], source: str) -> ConfigError:
    """An error with one line per mistake. Its code and values are those of the first; ``keys`` are all keys."""
    first = mistakes[0]
    text = "\n".join(dict.fromkeys(f"{source}: {mistake.text}" for mistake in mistakes))
    keys = tuple(mistake.key for mistake in mistakes)
    return ConfigError(text, code=first.code, key=first.key, keys=keys, source=source, **first.values)


def explained(error: ValidationError, source: str) -> ConfigError:
    found = [(_place(item["loc"]), item) for item in error.errors(include_url=False)]
    # A union reports one error for each of its members. Keep the first one per key, and of nested keys the deepest.
    mistakes = {
        place.key: _explain(place, item)
        for place, item in reversed(found)
        if not any(other.key.startswith(f"{place.key}.") for other, _ in found)
    }
    return config_error(list(reversed(mistakes.values())), source)


class _Place(NamedTuple):
    """The position of a mistake."""

    key: str  # loss.terms.0.gamma
    choice: dict[str, type[Section]]  # sections to choose from, for example one per optimizer
    chosen: str  # the name of the chosen one
    field: FieldInfo | None  # the last setting on the path
    rest: list[str]  # the path after it: positions in a list, keys of a mapping


def _place(loc: tuple[Any, ...]) -> _Place:
    """The position in ``loc``, without pydantic's own names for members of unions."""
    parts: list[str] = []
    kind: type[Section] | None = Config
    choice: dict[str, type[Section]] = {}
    chosen, last, rest = "", None, list[str]()
    for part in loc:
        if choice and not chosen and part in choice:
            kind, chosen = choice[part], part
            continue
        if re.match(r"(int|float|bool|str|none|\[key\])$|(function-|tuple\[|literal\[|constrained-|dict\[)", str(part)):
            continue
        parts.append(str(part))
        field = kind.model_fields.get(str(part)) if kind else None
        rest.append(str(part))
        if field is not None:
            choice, chosen, last, rest = blocks(field), "", field, []
            kind = field.annotation if is_section(field.annotation) else None
    return _Place(".".join(parts), choice, chosen, last, rest)


def _explain(place: _Place, item: Any) -> Mistake:
    key, choice, chosen, field, rest = place
    value, message, kind = item.get("input"), item["msg"].removeprefix("Value error, "), item["type"]
    own = item.get("ctx", {}).get("error")
    if isinstance(own, SettingError):
        return Mistake(message, own.code, own.key, own.values)
    if kind in ("extra_forbidden", "invalid_key"):
        return _unknown(key, value, choice, chosen, str(item["loc"][-1]))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        name = value.get("name") if isinstance(value, dict) else value
        near = difflib.get_close_matches(str(name), choice, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}? Choose from " if near else "choose from "
        text = f"{key}.name={name!r}: {hint}{', '.join(map(repr, choice))}"
        return Mistake(text, "unknown-choice", f"{key}.name", {"found": name})
    if "[key]" in item["loc"]:
        text = f"{key}: the key {value!r} must be text: quote it, as '{value}'"
        return Mistake(text, "key-not-text", key, {"found": value})
    if field is not None and _WRONG_TYPE.fullmatch(kind):
        if kind == "missing":  # in a list that is too short
            key, rest = key.rpartition(".")[0], rest[:-1]
        default = None if rest else field.get_default(call_default_factory=True)
        text, expected = wrong_type(key, value, functools.reduce(inside, rest, field.annotation), default)
        return Mistake(text, "wrong-type", key, {"found": value, "expected": expected})
    if kind == "too_short":
        message = f"must have at least {item['ctx']['min_length']} item"
    message = (message[:1].lower() + message[1:]).replace("input should be", "must be")
    return Mistake(f"{key}={value!r}: {message}", "invalid-value", key, {"found": value})


def _unknown(key: str, value: Any, choice: dict[str, type[Section]], chosen: str, name: str) -> Mistake:
    """An unknown key: one of another choice, one of another trainer, or a typo. Without a close match, no guess.

    ``name``: the key inside its section.
    """
    if "." in name:
        nested = in_yaml({nearest(key) or key: value})
        text = f"unknown key {key!r}: dots are for the command line. In a file, nest the key: {nested}"
        return Mistake(text, "dotted-key", key, {"fix": nested})
    section, _, last = key.rpartition(".")
    owners = [name for name, kind in choice.items() if last in kind.model_fields]
    if owners and chosen:
        text = (
            f"{key}={value!r}: {chosen!r} has no setting {last!r}; {' and '.join(map(repr, owners))} "
            f"{'has' if len(owners) == 1 else 'have'}. Remove it, or set {section}.name={owners[0]}"
        )
        return Mistake(text, "setting-of-another-choice", key, {"found": value, "owners": tuple(owners)})
    if chosen:
        inside = difflib.get_close_matches(last, choice[chosen].model_fields, n=1, cutoff=0.7)
        near = f"{section}.{inside[0]}" if inside else None
    elif not section and isinstance(value, dict):
        near = next(iter(difflib.get_close_matches(key, Config.model_fields, n=1, cutoff=0.5)), None)
    else:
        near = None
    if near is None and last in ABSENT:
        return Mistake(f"unknown key {key!r}: {ABSENT[last]}", "unknown-key", key)
    if near is None and last in OTHER_TRAINERS:
        here = OTHER_TRAINERS[last]
        return Mistake(f"unknown key {key!r}: use {here}", "unknown-key", key, {"suggestion": here})
    near = near or nearest(key)
    if near:
        return Mistake(f"unknown key {key!r}: did you mean {near!r}?", "unknown-key", key, {"suggestion": near})
    known = list(choice[chosen].model_fields) if chosen else _keys_of(section)
    text = f"{repr(chosen) if chosen else section} has the keys" if section else "the top-level keys are"
    return Mistake(f"unknown key {key!r}: {text} {', '.join(known)}", "unknown-key", key)


def _keys_of(section: str) -> list[str]:
    """The keys directly in a section; of the whole config where there is no such section."""
    inside = [key.removeprefix(f"{section}.") for key in fields() if section and key.startswith(f"{section}.")]
    return [name for name in inside if "." not in name] or list(Config.model_fields)


def nearest(key: str) -> str | None:
    """The known key that ``key`` was probably meant to be: a typo in its section, or a key of another section."""
    section, dot, last = key.rpartition(".")
    names = {known: known.rpartition(".")[2] for known in fields()}
    inside = [name for known, name in names.items() if not dot or known.rpartition(".")[0] == section]
    near = difflib.get_close_matches(last, inside, n=1, cutoff=0.7)
    if near and dot:
        return f"{section}.{near[0]}"
    same = [known for known, name in names.items() if name == (near[0] if near else last)]
    return min(same, key=lambda known: known.count(".")) if same else None
