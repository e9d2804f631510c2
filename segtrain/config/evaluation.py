"""Settings of the evaluation."""

from __future__ import annotations

from typing import Annotated, Union

from pydantic import Field, field_validator, model_validator

from segtrain.config.facts import setting
from segtrain.config.section import LocalPath, Section, SettingError, Size, durations

Scale = Annotated[float, Field(ge=0.01, le=16)]

AUTO = (
    "auto: each epoch, or every 25 steps if epochs are shorter (at least 4 times if "
    "possible); always at the end"
)


class Eval(Section):
    """How the model is evaluated."""

    every: str = Field("auto", description=f"'1ep' or '500st'; {AUTO}")
    batch_size: int = setting(
        ["eval"],
        1,
        ge=1,
        le=65_536,
        description="images per forward pass; does not change the score",
    )
    tile: Union[Size, None] = setting(
        ["eval", "predict"],
        None,
        description="height and width of a sliding window; null: the whole image",
    )
    overlap: float = setting(
        ["eval", "predict"],
        0.5,
        ge=0,
        le=0.95,
        description="fraction of a window that overlaps its neighbor",
    )
    scales: tuple[Scale, ...] = setting(
        ["eval", "predict"],
        (1.0,),
        min_length=1,
        description="scale factors; predictions are averaged",
    )
    flip: bool = setting(
        ["eval", "predict"], False, description="average with the prediction of the mirrored image"
    )
    size: Union[Size, None] = setting(
        ["eval"],
        None,
        description=(
            "score at this height and width, with resized masks; null: the size of each mask"
        ),
    )
    mean_over: tuple[str, ...] = setting(
        ["eval"],
        (),
        description="classes that the mean scores are over; the others still count as errors; "
        "empty: all",
    )
    leave_out: tuple[str, ...] = setting(
        ["eval"],
        (),
        description="classes that the mean scores leave out, such as `[background]`; they still "
        "count as errors",
    )
    region: LocalPath = setting(
        ["eval"],
        "",
        description="count only pixels where a mask file of each image is not 0: a folder in "
        "data.root, or a pattern such as '{split}/mask/{name}_mask.gif'; empty: everywhere",
    )
    hausdorff: bool = setting(
        ["eval"],
        False,
        description="also measure the Hausdorff distance (95 %) of each class, which takes time",
    )
    best: str = Field(
        "miou",
        description="the score that decides which checkpoint is the best: miou, accuracy, "
        "mean_accuracy, mean_precision, mean_dice, mean_image_dice, loss, mean_hausdorff; of a "
        "class: iou/NAME, dice/NAME, recall/NAME, precision/NAME",
    )

    @model_validator(mode="after")
    def _one_choice(self) -> Eval:
        if self.mean_over and self.leave_out:
            raise SettingError("eval.mean_over and eval.leave_out: set only one of them")
        return self

    _check_duration = field_validator("every", mode="before")(durations("ep", "st", auto=True))
