"""Settings that divide a data set without splits into train, val, and test."""

from __future__ import annotations

import re
import warnings
from typing import Any, Union

from pydantic import Field, field_validator, model_validator

from segtrain.config.section import Section, SettingError

Part = Union[int, float, str]
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")


def share(part: Part) -> float | None:
    """A part as a fraction: 0.2 for ``20%`` and for 0.2; None for a number of images."""
    if isinstance(part, str):
        match = _PERCENT.fullmatch(part)
        return float(match[1]) / 100 if match else 0.0
    return part if isinstance(part, float) else None


class SplitBy(Section):
    """Splits a data set, or one of its splits, by a hash of the image names.

    Off unless `val` is set. The resulting splits are `data.train_split` (the rest), `val`, and
    `test`.
    """

    val: Part = Field(
        "",
        description="images to validate on: a share (`20%` or 0.2) or a number. Empty: the data "
        "set has its own splits",
    )
    test: Part = Field(
        "", description="images to hold out for testing: a share or a number. Empty: none"
    )
    seed: int = Field(0, ge=0, description="a different seed gives a different split")
    group: str = Field(
        "",
        description="regular expression for image names: images with the same first group (or "
        "match), such as those of a patient, stay in one split",
    )
    of: str = Field(
        "", description="split to divide, such as `train`, if the layout has splits of its own"
    )

    @property
    def on(self) -> bool:
        return self.val != ""

    @field_validator("val", "test", mode="before")
    @classmethod
    def _part(cls, value: Any) -> Any:
        if value is None or value == "":
            return ""
        number = share(value) if isinstance(value, (str, float)) else None
        counted = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not counted and not (number is not None and 0 < number < 1):
            raise ValueError(
                "must be a share of the images ('20%' or 0.2), or their number (1 or more)"
            )
        return value

    @field_validator("group")
    @classmethod
    def _group(cls, value: str) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                re.compile(value)
        except (re.error, DeprecationWarning) as error:
            raise ValueError(f"is not a valid regular expression ({error})") from None
        # A later version of Python may read `[[a-z]` as a nested set, and `[a||b]` as a union.
        except FutureWarning as warning:
            fix = "inside [...], write a backslash before each plain [, -, &, ~, or |"
            raise ValueError(
                f"a later Python may split the data differently ({warning}): {fix}"
            ) from None
        return value

    @model_validator(mode="after")
    def _together(self) -> SplitBy:
        if not self.on and (self.test or self.group or self.of):
            raise SettingError(
                "data.split_by.val is empty: set the share to validate on: data.split_by.val=20%"
            )
        if sum(share(part) or 0.0 for part in (self.val, self.test)) >= 1:
            raise SettingError(
                f"data.split_by: val={self.val} and test={self.test} leave no images to train on"
            )
        return self

    def text(self) -> str:
        """One line of text, such as ``val 20%, test 10%, seed 0, by 'scene_(.*)_'``."""
        parts = [
            f"{name} {part}" for name, part in (("val", self.val), ("test", self.test)) if part
        ]
        parts += (
            [f"of {self.of}"] * bool(self.of)
            + [f"seed {self.seed}"]
            + [f"by '{self.group}'"] * bool(self.group)
        )
        return ", ".join(parts)


def from_short(value: Any) -> Any:
    """The setting in full: ``data.split_by=20%`` gives the share of val."""
    if isinstance(value, (str, int, float)) and value != "":
        return {"val": value}
    return value or {}
