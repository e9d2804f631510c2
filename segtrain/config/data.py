"""Which settings say where the samples are and how one is drawn?"""

from __future__ import annotations

from typing import Any, Literal, Union

from pydantic import Field, field_validator, model_validator

from segtrain.config.section import Section, Size
from segtrain.config.sources import pinned


class Data(Section):
    """Where the images and masks are, what the labels mean, and how a sample is drawn."""

    root: str = Field("", description="folder of the data set; empty with layout 'scenes'")
    layout: Literal["scenes", "camvid", "cityscapes", "ade20k", "voc", "folders", "list", "shards"] = Field(
        "scenes", description="how images and masks lie in the folder"
    )
    train_split: str = Field("train", description="split to train on")
    split: str = Field("val", description="split to evaluate on")
    images: str = Field("images/{split}", description="layout 'folders': image folder under root")
    masks: str = Field("masks/{split}", description="layout 'folders': mask folder under root")
    index: str = Field("{split}.csv", description="layout 'list': CSV or JSONL with the columns image, mask, ...")
    classes: Union[str, tuple[str, ...]] = Field(
        "", description="class names: a list, or a .txt/.yaml file; empty: the layout's own"
    )
    label_map: dict[int, int] = Field(
        default_factory=dict, description="raw id -> train id; -1 means ignore; empty: the layout's own"
    )
    ignore_index: int = Field(255, ge=0, le=255, description="train id that no loss and no metric counts")
    limit: int = Field(0, ge=0, description="use only this many images of each split, evenly spread; 0: all")
    crop: Size = Field((256, 256), description="height, width of a training sample")
    scale: tuple[float, float] = Field((0.5, 2.0), description="least and most random scale")
    scale_end: Union[tuple[float, float], None] = Field(
        None, description="the scale range slides to this one over the run; null: it stays"
    )
    base_scale: float = Field(1.0, gt=0, description="scale of the image before random scale")
    flip: float = Field(0.5, ge=0, le=1, description="probability of a horizontal flip")
    rotate: float = Field(0.0, ge=0, le=180, description="rotation about the crop's centre: +- degrees")
    scale_law: Literal["log", "uniform"] = Field(
        "log",
        description="how the scale is drawn; log: halving is as likely as doubling; uniform: as most recipes have it",
    )
    jitter: tuple[float, float, float] = Field((0.3, 0.3, 0.3), description="brightness, contrast, saturation: +-")
    hue: float = Field(0.0, ge=0, le=0.5, description="hue: +- turns of the colour circle")
    jitter_p: float = Field(1.0, ge=0, le=1, description="probability that colours are changed at all")
    colour: Literal["auto", "cpu", "device"] = Field(
        "auto", description="where colours are changed; auto: on the device with CUDA, else while decoding"
    )
    balance: float = Field(
        0.0, ge=0, le=1, description="probability that a crop is centred on a pixel of a drawn class"
    )
    transforms: Union[str, dict[str, Any], tuple[dict[str, Any], ...]] = Field(
        "",
        description="your own augmentation: a file of `albumentations.save`, `package.module:attribute`, "
        "`file.py:attribute`, or a list `[{HorizontalFlip: {p: 0.5}}, ...]` of albumentations classes; see transforms.md",
    )
    transforms_at: Literal["after", "instead"] = Field(
        "after", description="'after' scale, crop, flip and colour; or 'instead' of all of them, on whole images"
    )
    cache: Literal["off", "ram"] = Field("off", description="keep decoded images: 'ram' for small sets")
    check: Literal["full", "off"] = Field("full", description="read every image and mask before training")
    faults: Literal["error", "skip"] = Field(
        "error", description="what to do about faulty files: 'error' stops before training, 'skip' trains on the others"
    )
    workers: Union[int, Literal["auto"]] = Field(
        "auto",
        description="decoding workers of a rank; 0: in the loop; auto: as many as are needed of its share of the host",
    )
    worker_kind: Literal["auto", "thread", "process"] = Field(
        "auto", description="auto: threads, but processes where data.transforms is set (Python's lock binds those)"
    )
    prefetch: int = Field(4, ge=1, description="batches a rank keeps ready")
    scenes: int = Field(240, ge=2, description="layout 'scenes': number of training images (a quarter more for val)")
    scene_size: Size = Field((144, 192), description="layout 'scenes': height, width")

    @field_validator("cache", "check", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML reads a bare off as false

    @field_validator("transforms", mode="before")
    @classmethod
    def _transforms(cls, value: Any) -> Any:
        return pinned(value) if isinstance(value, str) else "" if value is None else value

    @field_validator("crop", "scene_size")
    @classmethod
    def _positive(cls, value: Size) -> Size:
        if min(value) < 8:
            raise ValueError("height and width must be at least 8 pixels")
        return value

    @field_validator("scale", "scale_end")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not 0 < value[0] <= value[1]:
            raise ValueError("must be [least, most] with 0 < least <= most")
        return value

    @field_validator("workers")
    @classmethod
    def _workers(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 0 <= value <= 256:
            raise ValueError("must be 'auto' or a number from 0 to 256")
        return value

    @model_validator(mode="after")
    def _root(self) -> Data:
        if self.layout != "scenes" and not self.root:
            raise ValueError(f"data.root is empty, but layout {self.layout!r} reads files: set data.root=FOLDER")
        if self.layout == "scenes" and self.root:
            raise ValueError(
                "data.root is set, but layout 'scenes' draws its own images: "
                "set data.layout to camvid, cityscapes, ade20k, voc, folders or list"
            )
        return self

    @model_validator(mode="after")
    def _policies(self) -> Data:
        if self.faults == "skip" and self.check == "off":
            raise ValueError("data.faults=skip: faulty files are known only after a check: set data.check=full")
        if self.colour == "device" and (self.transforms or self.rotate):
            key = "transforms" if self.transforms else "rotate"
            raise ValueError(
                f"data.colour=device: data.{key} comes after the change of colours, so that must happen before: "
                "set data.colour=auto"
            )
        if self.transforms and self.transforms_at == "instead" and self.balance > 0:
            raise ValueError(
                "data.transforms_at=instead: the transforms choose the crop, so data.balance cannot: set it to 0"
            )
        return self
