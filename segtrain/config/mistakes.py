"""A mistake in the settings in words: the key, the value, the nearest right key, the fix."""

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
from segtrain.config.section import Section, blocks, is_section
from segtrain.config.wanted import inside, wrong_kind

# A setting's name in other trainers -> the setting here.
ELSEWHERE = {
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
    "num_classes": "data.classes, the names",
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
    "weights": "model.init, or model.encoder_weights for the encoder alone",
}
_STOP = "there is no early stopping: the best checkpoint stays, and Ctrl-C saves the state and stops"
_PROCESSES = "start one process per GPU: torchrun --nproc-per-node N -m segtrain train ..."
# pydantic's names of mistakes in the kind of a value, which `segtrain.config.wanted` says in words.
_OF_KIND = re.compile(
    r"(int|float|string|bool|tuple|dict)_(type|parsing|parsing_size|from_float)|model_(attributes_)?type|"
    r"none_required|missing|literal_error|too_long"
)
ABSENT = {"early_stop": _STOP, "early_stopping": _STOP, "patience": _STOP, "devices": _PROCESSES, "gpus": _PROCESSES}


def parts(field: FieldInfo) -> list[type[Section]]:
    """The section behind a field, or its blocks; nothing for a plain value, and for a list of blocks."""
    kind = field.annotation
    if is_section(kind):
        return [kind]
    return [] if typing.get_origin(kind) is tuple else list(blocks(field).values())


@functools.lru_cache(maxsize=1)
def fields() -> dict[str, FieldInfo]:
    """Every key of a run (``out``, ``data.root``, ``data.split_by.val``, ...) with its field, sections among them."""
    found: dict[str, FieldInfo] = {}

    def walk(kind: type[Section], prefix: str) -> None:
        for name, field in kind.model_fields.items():
            found.setdefault(f"{prefix}{name}", field)
            for part in parts(field):
                walk(part, f"{prefix}{name}.")

    walk(Config, "")
    return found


def known_keys() -> list[str]:
    """Every key that takes a value."""
    return [key for key, field in fields().items() if not parts(field)]


def explained(error: ValidationError, source: str) -> str:
    """One line for each mistake."""
    found = [(_place(item["loc"]), item) for item in error.errors(include_url=False)]
    # A union reports one error for each of its members: the first says enough, and of two the one that lies deeper.
    lines = {
        place.key: _explain(place, item)
        for place, item in reversed(found)
        if not any(other.key.startswith(f"{place.key}.") for other, _ in found)
    }
    return "\n".join(f"{source}: {line}" for line in dict.fromkeys(reversed(lines.values())))


class _Place(NamedTuple):
    """Where a mistake lies."""

    key: str  # loss.terms.0.gamma
    choice: dict[str, type[Section]]  # the blocks among which the last section of the path was chosen
    chosen: str  # the name of that one
    field: FieldInfo | None  # the last setting of the path
    rest: list[str]  # the parts of the path behind it: places in a list, keys of a mapping


def _place(loc: tuple[Any, ...]) -> _Place:
    """Without pydantic's own names of union members and of blocks."""
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


def _explain(place: _Place, item: Any) -> str:
    key, choice, chosen, field, rest = place
    value, message, kind = item.get("input"), item["msg"].removeprefix("Value error, "), item["type"]
    if kind in ("extra_forbidden", "invalid_key"):
        return _unknown(key, value, choice, chosen, str(item["loc"][-1]))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        name = value.get("name") if isinstance(value, dict) else value
        near = difflib.get_close_matches(str(name), choice, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}? It is one of " if near else "use "
        return f"{key}.name={name!r}: {hint}{', '.join(map(repr, choice))}"
    if kind == "value_error" and (isinstance(value, (dict, Section)) or message.startswith(key)):
        return message
    if kind == "too_short":
        return f"{key}={value!r}: must have at least {item['ctx']['min_length']}"
    if "[key]" in item["loc"]:
        return f"{key}: the key {value!r} must be text: quote it, as '{value}'"
    if field is not None and _OF_KIND.fullmatch(kind):
        if kind == "missing":  # in a list that is too short
            key, rest = key.rpartition(".")[0], rest[:-1]
        default = None if rest else field.get_default(call_default_factory=True)
        return wrong_kind(key, value, functools.reduce(inside, rest, field.annotation), default)
    return f"{key}={value!r}: {message[:1].lower() + message[1:]}".replace(": input should be", ": must be")


def _unknown(key: str, value: Any, choice: dict[str, type[Section]], chosen: str, name: str) -> str:
    """An unknown key: one of another block, one of another trainer, or the nearest; no guess where nothing is near.

    ``name``: the key as it stands in its section.
    """
    if "." in name:
        nested = in_yaml({nearest(key) or key: value})
        return f"unknown key {key!r}: dots are for the command line; in a file it is nested: {nested}"
    section, _, last = key.rpartition(".")
    owners = [repr(name) for name, kind in choice.items() if last in kind.model_fields]
    if owners and chosen:
        return (
            f"{key}={value!r}: {chosen!r} has no setting {last!r}, {' and '.join(owners)} "
            f"{'has' if len(owners) == 1 else 'have'}: remove it, or set {section}.name={owners[0][1:-1]}"
        )
    if chosen:
        inside = difflib.get_close_matches(last, choice[chosen].model_fields, n=1, cutoff=0.7)
        near = f"{section}.{inside[0]}" if inside else None
    elif not section and isinstance(value, dict):
        near = next(iter(difflib.get_close_matches(key, Config.model_fields, n=1, cutoff=0.5)), None)
    else:
        near = None
    if near is None and last in ABSENT:
        return f"unknown key {key!r}: {ABSENT[last]}"
    if near is None and last in ELSEWHERE:
        return f"unknown key {key!r}: here it is {ELSEWHERE[last]}"
    near = near or nearest(key)
    if near:
        return f"unknown key {key!r}: did you mean {near!r}?"
    if chosen:
        return f"unknown key {key!r}: {chosen!r} has {', '.join(choice[chosen].model_fields)}"
    inside = [known.removeprefix(f"{section}.") for known in fields() if section and known.startswith(f"{section}.")]
    if inside:
        return f"unknown key {key!r}: {section} has {', '.join(name for name in inside if '.' not in name)}"
    return f"unknown key {key!r}: the sections are {', '.join(Config.model_fields)}"


def nearest(key: str) -> str | None:
    """The known key that ``key`` was probably meant to be: a slip of the pen in its section, or its name in another one."""
    section, dot, last = key.rpartition(".")
    names = {known: known.rpartition(".")[2] for known in fields()}
    inside = [name for known, name in names.items() if not dot or known.rpartition(".")[0] == section]
    near = difflib.get_close_matches(last, inside, n=1, cutoff=0.7)
    if near and dot:
        return f"{section}.{near[0]}"
    same = [known for known, name in names.items() if name == (near[0] if near else last)]
    return min(same, key=lambda known: known.count(".")) if same else None
