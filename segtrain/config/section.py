"""What do all sections of a config share: no unknown key, no change afterwards, sizes and durations?"""

from __future__ import annotations

import math
import re
from typing import Any

from pydantic import BaseModel, ConfigDict

from segtrain.errors import ConfigError

Size = tuple[int, int]  # height, width in pixels

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ep|st|%)")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def check_duration(value: Any) -> Any:
    if not isinstance(value, str) or not _DURATION.fullmatch(value):
        raise ValueError(
            "a duration is a number with a unit: '20ep' (epochs), '500st' (optimizer steps) or '15%' (of the run)"
        )
    return value


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
