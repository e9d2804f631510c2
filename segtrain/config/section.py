"""Base class of all config sections, and the types that several sections share: sizes, paths,
durations.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from segtrain.bucket import CLOUDS, SCHEMES, typed_name, typed_place
from segtrain.errors import ConfigError


def _sides(size: tuple[int, int]) -> tuple[int, int]:
    if not 8 <= min(size) <= max(size) <= 65_536:
        raise ValueError("height and width must be from 8 to 65,536 pixels")
    return size


Size = Annotated[tuple[int, int], AfterValidator(_sides)]  # height, width in pixels


def _typed(check: Callable[[str], str]) -> AfterValidator:
    def checked(text: str, info: ValidationInfo) -> str:
        try:
            return check(text)
        except ValueError:
            # The config of a run folder is right where it was made: see load_saved.
            if (info.context or {}).get("saved"):
                return text
            raise

    return AfterValidator(checked)


# Paths on the disk, and also URLs: of buckets that can be written, of all that can be read, or any.
LocalPath = Annotated[str, _typed(typed_place)]
WritablePlace = Annotated[str, _typed(partial(typed_place, schemes=CLOUDS))]
ReadablePlace = Annotated[str, _typed(partial(typed_place, schemes=SCHEMES))]
AnyPlace = Annotated[str, _typed(partial(typed_place, schemes=None))]
PlainName = Annotated[str, _typed(typed_name)]

MAX_DURATION = 10**9  # epochs or steps
# least steps between automatic evaluations or checkpoints: more frequent ones would take much of
# the
# time
RARE = 25
OFTEN = 4  # least number of automatic evaluations or checkpoints in a run that is long enough
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ep|st|%)")
_UNITS = {"ep": "'20ep' (epochs)", "st": "'500st' (optimizer steps)", "%": "'15%' (of the run)"}


class SettingError(ValueError):
    """An error whose message starts with the key and is shown as it is.

    mistakes.py passes ``code`` and ``values`` on to the ConfigError. ``advice``: settings that the
    message advises, such as "train.precision" -> "fp32"; they are tried before they are printed.
    """

    def __init__(
        self,
        message: str,
        code: str = "conflicting-settings",
        advice: dict[str, Any] | None = None,
        **values: Any,
    ) -> None:
        super().__init__(message)
        key = re.match(r"[\w.]*\w", message)
        self.code, self.values, self.advice = (
            code,
            {"key": key[0] if key else "", **values},
            advice or {},
        )


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys, infinity, and NaN."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    def __setattr__(self, name: str, value: Any) -> None:
        fix = f"load another one with Config.load(FILE, 'section.{name}={value}')"
        raise ConfigError(
            f"{name}={value!r}: a config is immutable: {fix}", code="config-is-frozen", key=name
        )

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, settings: Any) -> Any:
        """Read null (an empty section in YAML) as the defaults, and refuse booleans in place of
        numbers.
        """
        for name, value in settings.items() if isinstance(settings, dict) else ():
            kinds = (
                members(cls.model_fields[name].annotation) if name in cls.model_fields else set()
            )
            if kinds & {int, float} and not kinds & {bool, str} and _has_boolean(value):
                text = "expected a number (YAML reads on, off, yes, and no as true and false)"
                raise PydanticCustomError(
                    "boolean-for-number", text, {"name": name, "value": value}
                )
        return {} if settings is None else settings


def _has_boolean(value: Any) -> bool:
    items = (
        (*value, *value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, (list, tuple))
        else ()
    )
    return isinstance(value, bool) or any(map(_has_boolean, items))


def is_section(kind: Any) -> TypeGuard[type[Section]]:
    """Whether an annotation is a section."""
    # On Python 3.10, ``isinstance(tuple[str, str], type)`` is true.
    return typing.get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, Section)


def members(kind: Any, containers: bool = False) -> set[Any]:
    """The types in an annotation: {int, str} for ``Union[int, tuple[str, ...]]``, {int, tuple} with
    ``containers``.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return set()
    if origin is Annotated:
        return members(inner[0], containers)
    if containers and origin in (tuple, dict):
        return {origin}
    return set().union(*(members(member, containers) for member in inner)) if inner else {kind}


def blocks(kind: Any) -> dict[str, type[Section]]:
    """The sections that a setting chooses from by name: {"adamw": AdamWOptim, ...}. Empty for other
    annotations.
    """
    sections: dict[str, type[Section]] = {}
    for member in typing.get_args(kind):
        if is_section(member):
            sections[typing.get_args(member.model_fields["name"].annotation)[0]] = member
        else:
            sections.update(blocks(member))
    return sections


def sections_of(kind: Any) -> list[type[Section]]:
    """The section that an annotation names, or those to choose from. Empty for a plain value and a
    list of sections.
    """
    if is_section(kind):
        return [kind]
    return [] if typing.get_origin(kind) is tuple else list(blocks(kind).values())


def durations(*units: str, zero: bool = False, auto: bool = False) -> Callable[[Any], Any]:
    """A validator for durations in ``units``. ``zero`` allows 0, ``auto`` the word auto."""

    def check(value: Any) -> Any:
        if auto and value == "auto":
            return value
        match = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if match is None or match["unit"] not in units:
            unit_names = [_UNITS[unit] for unit in units]
            words = f"{', '.join(unit_names[:-1])} or {unit_names[-1]}"
            raise ValueError(f"must be a number with a unit: {words}{'; or auto' if auto else ''}")
        if not zero and not float(match["number"]):
            raise ValueError("must be longer than 0: use at least '1st' (one optimizer step)")
        if len(match["number"]) > 15 or float(match["number"]) > MAX_DURATION:
            raise ValueError(f"must be at most {MAX_DURATION:,}")
        return value

    return check


def outlasts(part: str, whole: str) -> bool:
    """Whether duration ``part`` is at least as long as ``whole``. False if that depends on the
    number of images.
    """
    match, whole_match = _DURATION.fullmatch(part), _DURATION.fullmatch(whole)
    if match is None or whole_match is None:
        return False
    if match["unit"] == "%":
        return float(match["number"]) >= 100
    return match["unit"] == whole_match["unit"] and float(match["number"]) >= float(
        whole_match["number"]
    )


def joined(first: str, second: str, sign: int = 1) -> str:
    """The sum of two durations of one unit, or with ``sign`` -1 their difference; "" if the units
    differ, or if it is not above 0.
    """
    a, b = _DURATION.fullmatch(first), _DURATION.fullmatch(second)
    if a is None or b is None or a["unit"] != b["unit"]:
        return ""
    total = float(a["number"]) + sign * float(b["number"])
    return f"{total:.12g}{a['unit']}" if total > 0 else ""


def duration_in_steps(text: str, samples: int, batch_size: int, steps: int | None = None) -> int:
    """Optimizer steps in a duration, rounded up. ``15%`` is a share of ``steps``, the length of the
    run.

    Raises ConfigError for an invalid text, and for a percentage without ``steps``.
    """
    match = _DURATION.fullmatch(text)
    if match is None or (match["unit"] == "%" and steps is None):
        why = f"{text!r} is not a valid duration: write '20ep' or '500st'"
        raise ConfigError(why, code="invalid-duration", found=text)
    number = float(match["number"])
    if match["unit"] == "%":
        return math.ceil(number / 100 * steps)  # type: ignore[operator]
    return (
        math.ceil(number * samples / batch_size - 1e-9)
        if match["unit"] == "ep"
        else math.ceil(number)
    )


def interval_in_steps(text: str, samples: int, batch_size: int, steps: int) -> int:
    """Steps between two evaluations or checkpoints.

    With auto, this is one epoch. If an epoch is short, it is the least number of whole epochs with
    RARE steps or more. In a short run it is fewer epochs, so that there are OFTEN evaluations or
    checkpoints if possible.
    The result depends on data and settings only, so it is the same in a resumed run.
    """
    if text == "auto":
        epoch = samples / batch_size
        text = f"{max(1, min(math.ceil(RARE / epoch), math.floor(steps / OFTEN / epoch)))}ep"
    return max(1, duration_in_steps(text, samples, batch_size))
