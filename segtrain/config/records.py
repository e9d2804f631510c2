"""Which settings say how a run is scored, saved and written down?"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import Field, field_validator

from segtrain.config.section import Section, Size, durations

Scale = Annotated[float, Field(ge=0.01, le=16)]

AUTO = "auto: each epoch, in small sets after as many epochs as have 25 steps, but at least 4 times; always at the end"


class Eval(Section):
    """How a model is scored."""

    every: str = Field("auto", description=f"'1ep' or '500st'; {AUTO}")
    batch_size: int = Field(
        1, ge=1, le=65_536, description="images of one forward; groups are the same on any number of ranks"
    )
    tile: Union[Size, None] = Field(None, description="sliding window; null: whole image")
    overlap: float = Field(0.5, ge=0, le=0.95, description="share of a tile that its neighbor covers too")
    scales: tuple[Scale, ...] = Field((1.0,), min_length=1, description="multi-scale test")
    flip: bool = Field(False, description="average with the mirrored image")
    size: Union[Size, None] = Field(
        None, description="score at this size (labels resized by nearest); null: the mask's"
    )

    _check_duration = field_validator("every", mode="before")(durations("ep", "st", auto=True))


class Checkpoint(Section):
    """What is saved, and when."""

    every: str = Field("auto", description=f"'1ep' or '500st'; {AUTO}; a signal saves at once")
    keep: int = Field(2, ge=1, description="newest checkpoints that stay; the best stays as well")
    background: bool = Field(True, description="write while training goes on")
    resume: bool = Field(True, description="go on from the newest whole checkpoint of the run folder")
    data_changed: Literal["refuse", "accept"] = Field(
        "refuse",
        description="a resumed run finds other data than it was trained on: an error, or go on and say what no longer holds",
    )

    _check_duration = field_validator("every", mode="before")(durations("ep", "st", auto=True))


class Log(Section):
    """What is written down while training."""

    every: int = Field(10, ge=1, description="optimizer steps between two log lines")
    tensorboard: bool = Field(True, description="scalars and pictures into RUN/tensorboard")
    mlflow: str = Field("", description="tracking URI; empty: off")
    wandb: str = Field("", description="project of Weights & Biases; empty: off")
    pictures: int = Field(
        8,
        ge=0,
        description="validation images on the contact sheet; at the end half as many of the worst, and of the best",
    )
    digest: bool = Field(False, description="journal a checksum of each step's samples and pixels (costs a little CPU)")
    spans: bool = Field(True, description="what each rank and its workers did, second by second, into RUN/spans")
    sentinel: int = Field(
        500, ge=0, description="steps between two looks whether all ranks still train the same network; 0: off"
    )
    hang_s: Union[float, Literal["auto"]] = Field(
        "auto",
        description="seconds without progress until each rank reports what it waits for; auto: parallel.timeout_s / 2; 0: off",
    )
    profile_ms: int = Field(
        500,
        ge=0,
        le=60_000,
        description="milliseconds between samples of the system profile, from 100; 0: off at the start",
    )

    @field_validator("hang_s")
    @classmethod
    def _not_before_now(cls, seconds: Any) -> Any:
        if seconds != "auto" and not 0 <= seconds < float("inf"):
            raise ValueError("a number of seconds, auto, or 0 for no report")
        return seconds

    @field_validator("profile_ms")
    @classmethod
    def _legal(cls, ms: int) -> int:
        if 0 < ms < 100:
            raise ValueError("samples are 100 to 60000 ms apart: use 500, or 0 to start without a profile")
        return ms
