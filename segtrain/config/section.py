"""What all sections of a config share: no unknown key, no change afterwards, plain numbers, blocks, sizes, durations."""

from __future__ import annotations

import math
import os
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

from segtrain.errors import ConfigError


def _sides(size: tuple[int, int]) -> tuple[int, int]:
    if not 8 <= min(size) <= max(size) <= 65_536:
        raise ValueError("height and width must be at least 8 pixels, and at most 65,536")
    return size


Size = Annotated[tuple[int, int], AfterValidator(_sides)]  # height, width in pixels


def _at_home(path: str) -> str:
    return os.path.expanduser(path) if path.startswith("~/") else path


# A path in a file, or behind `key=`, where no shell knows ``~``: a folder of that name would be made in the working folder.
UserPath = Annotated[str, AfterValidator(_at_home)]

MOST = 10**9  # epochs or steps of a duration
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ep|st|%)")
_UNITS = {"ep": "'20ep' (epochs)", "st": "'500st' (optimizer steps)", "%": "'15%' (of the run)"}


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        """A section of a file without a line in it, or with comments alone, is null to YAML: it is at its defaults."""
        return {} if value is None else value


def is_section(kind: Any) -> TypeGuard[type[Section]]:
    """Whether an annotation is a section. On Python 3.10 ``tuple[str, str]`` passes for a class as well, and then is none."""
    return typing.get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, Section)


def members(kind: Any, containers: bool = False) -> set[Any]:
    """The plain types that occur in an annotation: {int, str} of ``Union[int, tuple[str, ...]]``.

    ``containers``: those at its top instead, tuple and dict among them: {int, tuple}.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return set()
    if origin is Annotated:
        return members(inner[0], containers)
    if containers and origin in (tuple, dict):
        return {origin}
    return set().union(*(members(member, containers) for member in inner)) if inner else {kind}


def blocks(field: FieldInfo) -> dict[str, type[Section]]:
    """Name -> section, of a field (or a list) whose settings depend on its name, as an optimizer's do; else empty."""
    return _blocks(field.annotation)


def _blocks(kind: Any) -> dict[str, type[Section]]:
    found: dict[str, type[Section]] = {}
    for member in typing.get_args(kind):
        if is_section(member):
            found[typing.get_args(member.model_fields["name"].annotation)[0]] = member
        else:
            found.update(_blocks(member))
    return found


def durations(*units: str, zero: bool = False, auto: bool = False) -> Callable[[Any], Any]:
    """A check for durations in these units; ``zero``: of none as well; ``auto``: the word as well."""

    def check(value: Any) -> Any:
        if auto and value == "auto":
            return value
        match = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if match is None or match["unit"] not in units:
            known = [_UNITS[unit] for unit in units]
            words = f"{', '.join(known[:-1])} or {known[-1]}"
            raise ValueError(f"a duration is a number with a unit: {words}{'; or auto' if auto else ''}")
        if not zero and not float(match["number"]):
            raise ValueError("that is no step at all: use at least '1st'")
        if len(match["number"]) > 15 or float(match["number"]) > MOST:
            raise ValueError(f"that is more than {MOST:,}")
        return value

    return check


def outlasts(part: str, whole: str) -> bool:
    """Whether a duration cannot be a part of another one, as far as can be told without counting images."""
    one, other = _DURATION.fullmatch(part), _DURATION.fullmatch(whole)
    if one is None or other is None:
        return False
    if one["unit"] == "%":
        return float(one["number"]) >= 100
    return one["unit"] == other["unit"] and float(one["number"]) >= float(other["number"])


def duration_in_steps(text: str, samples: int, batch_size: int, steps: int | None = None) -> int:
    """Optimizer steps in a duration: ``20ep`` rounds up so that every sample is seen 20 times; ``500st`` is 500;
    ``15%`` is of ``steps``, the whole run."""
    match = _DURATION.fullmatch(text)
    if match is None or (match["unit"] == "%" and steps is None):
        raise ConfigError(f"{text!r} is no duration here: write '20ep' or '500st'")
    number = float(match["number"])
    if match["unit"] == "%":
        return math.ceil(number / 100 * steps)  # type: ignore[operator]
    return math.ceil(number * samples / batch_size - 1e-9) if match["unit"] == "ep" else math.ceil(number)
