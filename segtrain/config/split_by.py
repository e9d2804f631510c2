"""How is a set without splits divided into train, val and test?"""

from __future__ import annotations

import re
import warnings
from typing import Any, Union

from pydantic import Field, field_validator, model_validator

from segtrain.config.section import Section

Part = Union[int, float, str]
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")


def share(part: Part) -> float | None:
    """0.2 of ``20%`` and of 0.2; None of a number of images."""
    if isinstance(part, str):
        match = _PERCENT.fullmatch(part)
        return float(match[1]) / 100 if match else 0.0
    return part if isinstance(part, float) else None


class SplitBy(Section):
    """Divides the images of a set that has no splits, by their names: an image stays in its split when others are added.

    Off unless ``val`` is given. The splits are `data.train_split` (what is left), `val` and `test`.
    """

    val: Part = Field(
        "",
        description="images to validate on: a share (`20%`, 0.2) or a number (50); empty: the set has splits of its own",
    )
    test: Part = Field("", description="images to keep for a test, likewise; empty: none")
    seed: int = Field(0, ge=0, description="another seed gives another division")
    group: str = Field(
        "",
        description="regular expression; images whose names give the same first group (or match) stay in one split: scene, "
        "patient, drive",
    )
    of: str = Field("", description="the split to divide, where the layout has splits of its own, such as `train`")

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
            raise ValueError("give a share above 0% and below 100% ('20%' or 0.2), or a number of images from 1")
        return value

    @field_validator("group")
    @classmethod
    def _group(cls, value: str) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                re.compile(value)
        except (re.error, DeprecationWarning) as error:
            raise ValueError(f"no regular expression ({error})") from None
        except FutureWarning as told:  # of `[[a-z]` and `[a||b]`: nested sets and unions, one day
            raise ValueError(
                f"a later Python may read it otherwise ({told}), and divide the set otherwise: put a backslash before "
                "each [, -, &, ~ or | that is meant as a character of a set"
            ) from None
        return value

    @model_validator(mode="after")
    def _together(self) -> SplitBy:
        if not self.on and (self.test or self.group or self.of):
            raise ValueError("data.split_by.val is empty: say how many images are for validation, as in {val: 20%}")
        shares = [share(part) or 0.0 for part in (self.val, self.test)]
        if sum(shares) >= 1:
            raise ValueError(
                f"data.split_by: val={self.val} and test={self.test} leave nothing to train on: lower them"
            )
        return self

    def text(self) -> str:
        """``val 20%, test 10%, seed 0, by 'scene_(.*)_'``."""
        parts = [f"{name} {part}" for name, part in (("val", self.val), ("test", self.test)) if part]
        parts += [f"of {self.of}"] * bool(self.of) + [f"seed {self.seed}"] + [f"by '{self.group}'"] * bool(self.group)
        return ", ".join(parts)
