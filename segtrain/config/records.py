"""Settings of evaluation, checkpoints, and logging."""

from __future__ import annotations

from typing import Annotated, Literal, Union

from pydantic import Field, field_validator

from segtrain.config.section import Section, Size, durations

Scale = Annotated[float, Field(ge=0.01, le=16)]

AUTO = "auto: every epoch; with few images, every few epochs (about 25 steps), but at least 4 times; always at the end"


class Eval(Section):
    """How the model is evaluated."""

    every: str = Field("auto", description=f"'1ep' or '500st'; {AUTO}")
    batch_size: int = Field(1, ge=1, le=65_536, description="images per forward pass; does not change the score")
    tile: Union[Size, None] = Field(None, description="height and width of a sliding window; null: the whole image")
    overlap: float = Field(0.5, ge=0, le=0.95, description="fraction of a window that overlaps its neighbor")
    scales: tuple[Scale, ...] = Field(
        (1.0,), min_length=1, description="scale factors for multi-scale evaluation; the predictions are averaged"
    )
    flip: bool = Field(False, description="average with the prediction of the mirrored image")
    size: Union[Size, None] = Field(
        None, description="score at this height and width, with masks resized by nearest neighbor; null: their own size"
    )

    _check_duration = field_validator("every", mode="before")(durations("ep", "st", auto=True))


class Checkpoint(Section):
    """What is saved, and when."""

    every: str = Field("auto", description=f"'1ep' or '500st'; {AUTO}. SIGTERM and Ctrl-C also save")
    keep: int = Field(2, ge=1, description="number of recent checkpoints to keep; the best one is also kept")
    background: bool = Field(True, description="write checkpoints in a thread while training continues")
    resume: bool = Field(True, description="continue from the newest complete checkpoint in the run folder")
    data_changed: Literal["refuse", "accept"] = Field(
        "refuse",
        description="if the data changed since the run began: 'refuse' is an error; 'accept' continues, and prints "
        "which guarantees no longer hold",
    )

    _check_duration = field_validator("every", mode="before")(durations("ep", "st", auto=True))


class Log(Section):
    """What is recorded during training."""

    every: int = Field(10, ge=1, description="optimizer steps between two log lines")
    tensorboard: bool = Field(True, description="write scalars and pictures to RUN/tensorboard")
    mlflow: str = Field("", description="MLflow tracking URI; empty: off")
    wandb: str = Field("", description="Weights & Biases project; empty: off")
    pictures: int = Field(
        8, ge=0, description="validation images to draw; at the end, also half as many of the worst and of the best"
    )
    digest: bool = Field(False, description="write a checksum of the samples and pixels of each step to the journal")
    spans: bool = Field(True, description="record the time of each phase, by rank and worker, in RUN/spans")
    sentinel: int = Field(
        500, ge=0, description="optimizer steps between two checks that all ranks still hold the same weights; 0: off"
    )
    hang_s: Union[Annotated[float, Field(ge=0)], Literal["auto"]] = Field(
        "auto",
        description="seconds without progress until each rank reports what it waits for; 0: never. auto: "
        "parallel.timeout_s / 2",
    )
    profile_ms: int = Field(
        500,
        ge=0,
        le=60_000,
        description="milliseconds between system samples, at least 100. 0: `segtrain profile on` only",
    )

    @field_validator("profile_ms")
    @classmethod
    def _legal(cls, ms: int) -> int:
        if 0 < ms < 100:
            raise ValueError("must be from 100 to 60000, or 0 to start without a profile")
        return ms
