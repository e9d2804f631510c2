"""Which settings say where the samples are and how one is drawn?"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from segtrain.config.label_values import refuse_ids, refuse_names
from segtrain.config.section import Section, Size, UserPath
from segtrain.config.sources import pinned
from segtrain.config.split_by import SplitBy

Share = Annotated[float, Field(ge=0, le=1)]
Channel = Annotated[int, Field(ge=0, le=255)]
Color = tuple[Channel, Channel, Channel]  # red, green, blue


class Data(Section):
    """Where the images and masks are, what the labels mean, and how a sample is drawn."""

    root: UserPath = Field("", description="folder of the data set; empty with layout 'scenes'")
    layout: Literal["scenes", "camvid", "cityscapes", "ade20k", "voc", "folders", "list", "shards"] = Field(
        "scenes", description="how images and masks lie in the folder"
    )
    train_split: str = Field("train", description="split to train on")
    split: str = Field("val", description="split to evaluate on")
    images: str = Field("images/{split}", description="layout 'folders': image folder under root")
    masks: str = Field("masks/{split}", description="layout 'folders': mask folder under root")
    pair: Union[tuple[str, str], None] = Field(
        None,
        description="layout 'folders': names of an image and its mask, as `['{name}_frame.jpg', '{name}_mask.png']`; without an ending "
        "any fits; null: the same name, or a mask's with a usual ending such as _mask",
    )
    index: str = Field("{split}.csv", description="layout 'list': CSV or JSONL with the columns image, mask, ...")
    classes: Union[str, tuple[str, ...], dict[str, Union[Color, tuple[Color, ...]]]] = Field(
        "",
        description="class names: a list; a mapping of name to the color, or colors, in RGB masks (`{road: [128, 64, 128]}`; "
        "'void' is ignored); or a .txt/.yaml file; empty: the layout's own",
    )
    label_map: dict[int, int] = Field(
        default_factory=dict, description="raw id -> train id; -1 means ignore; empty: the layout's own"
    )
    ignore_index: int = Field(255, ge=0, le=255, description="train id that no loss and no metric counts")
    bits: Union[int, Literal["auto"]] = Field(
        "auto",
        description="bits of the values in images that store 16 a band, 8 to 16: 12 for 0..4095; "
        "auto: 16, and images that would turn nearly black are refused",
    )
    extra_bands: Literal["error", "drop"] = Field(
        "error", description="TIFF images with bands beyond RGB: 'error' refuses them, 'drop' reads the first three"
    )
    split_by: SplitBy = Field(
        default_factory=SplitBy, description="divide a set without splits: `{val: 20%}`; see below"
    )
    overlap: Literal["refuse", "accept"] = Field(
        "refuse",
        description="training images that are validation images too: 'refuse' stops; 'accept' goes on and says so",
    )
    limit: int = Field(0, ge=0, description="use only this many images of each split, evenly spread; 0: all")
    crop: Size = Field((256, 256), description="height, width of a training sample")
    scale: tuple[float, float] = Field((0.5, 2.0), description="least and most random scale")
    scale_end: Union[tuple[float, float], None] = Field(
        None, description="the scale range slides to this one over the run; null: it stays"
    )
    base_scale: float = Field(1.0, ge=0.01, le=100, description="scale of the image before random scale")
    flip: float = Field(0.5, ge=0, le=1, description="probability of a horizontal flip")
    rotate: float = Field(0.0, ge=0, le=180, description="rotation about the crop's center: +- degrees")
    scale_sampling: Literal["log", "uniform"] = Field(
        "log",
        description="how the scale is drawn; log: halving is as likely as doubling; uniform: as most recipes have it",
    )
    jitter: tuple[Share, Share, Share] = Field((0.3, 0.3, 0.3), description="brightness, contrast, saturation: +-")
    hue: float = Field(0.0, ge=0, le=0.5, description="hue: +- turns of the color circle")
    color_jitter_prob: float = Field(1.0, ge=0, le=1, description="probability that colors are changed at all")
    color_jitter_on: Literal["auto", "cpu", "device"] = Field(
        "auto", description="where colors are changed; auto: on the device with CUDA, else while decoding"
    )
    class_balanced_crop_prob: float = Field(
        0.0, ge=0, le=1, description="probability that a crop is centered on a pixel of a drawn class"
    )
    transforms: Union[str, dict[str, Any], tuple[dict[str, Any], ...]] = Field(
        "",
        description="your own augmentation: a file of `albumentations.save`, `package.module:attribute`, "
        "`file.py:attribute`, or a list `[{HorizontalFlip: {p: 0.5}}, ...]` of albumentations classes; see transforms.md",
    )
    transforms_mode: Literal["after", "replace"] = Field(
        "after", description="'after' scale, crop, flip and color; or 'replace' all of them, on whole images"
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
    prefetch: int = Field(4, ge=1, le=1024, description="batches a rank keeps ready")
    scenes: int = Field(
        240, ge=2, le=1_000_000, description="layout 'scenes': number of training images (a quarter more for val)"
    )
    scene_size: Size = Field((144, 192), description="layout 'scenes': height, width")

    @property
    def own_splits(self) -> bool:
        """Whether the layout tells one split from another, so that ``data.split_by`` must name the one to divide."""
        named = {"folders": (self.images, self.masks), "list": (self.index,)}.get(self.layout)
        return named is None or any("{split}" in text for text in named)

    @field_validator("classes", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        refuse_names(value)
        return value

    @field_validator("label_map", mode="before")
    @classmethod
    def _ids(cls, value: Any) -> Any:
        refuse_ids(value)
        return value

    @field_validator("cache", "check", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML reads a bare off as false

    @field_validator("transforms", mode="before")
    @classmethod
    def _transforms(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and (info.context or {}).get("saved"):  # nothing beside a run's config is looked up
            return value
        return pinned(value) if isinstance(value, str) else "" if value is None else value

    @field_validator("scale", "scale_end")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not 0.01 <= value[0] <= value[1] <= 100:
            raise ValueError("must be [least, most] with 0.01 <= least <= most <= 100")
        return value

    @field_validator("workers")
    @classmethod
    def _workers(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 0 <= value <= 256:
            raise ValueError("must be 'auto' or a number from 0 to 256")
        return value

    @field_validator("pair")
    @classmethod
    def _pair(cls, value: tuple[str, str] | None) -> tuple[str, str] | None:
        for text in value or ():
            if text.count("{name}") != 1 or "/" in text:
                raise ValueError(
                    f"{text!r} must be a file name with one {{name}}, as '{{name}}_mask.png'; folders stand in data.images and data.masks"
                )
        if value and value[0] == value[1]:
            raise ValueError("an image and its mask would be the same file: give the mask another name")
        return value

    @field_validator("bits")
    @classmethod
    def _bits(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 8 <= value <= 16:
            raise ValueError("must be 'auto' or a number from 8 to 16")
        return value

    @model_validator(mode="after")
    def _root(self) -> Data:
        if self.layout != "scenes" and not self.root:
            raise ValueError(f"data.root is empty, but layout {self.layout!r} reads files: set data.root=FOLDER")
        if self.layout == "scenes" and self.root:
            layouts = [name for name in get_args(Data.model_fields["layout"].annotation) if name != "scenes"]
            raise ValueError(
                "data.root is set, but layout 'scenes' draws its own images: "
                f"set data.layout to {', '.join(layouts[:-1])} or {layouts[-1]}"
            )
        return self

    @field_validator("split_by", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, (str, int, float)) and value != "":  # data.split_by=20%
            return {"val": value}
        return value or {}

    @model_validator(mode="after")
    def _divided(self) -> Data:
        if not self.split_by.on:
            return self
        if self.layout == "scenes":
            raise ValueError("data.split_by: layout 'scenes' draws splits of its own: leave data.split_by out")
        if not self.split_by.of and self.own_splits:
            keys = {"folders": "data.images or data.masks has {split}", "list": "data.index has {split}"}
            whole = " (of: all, where shards were packed without splits)" if self.layout == "shards" else ""
            raise ValueError(
                f"data.split_by: layout {self.layout!r} has splits of its own ({keys.get(self.layout, 'by its folders')}): say "
                f"which one to divide, as in data.split_by={{of: train, val: 20%}}{whole}"
            )
        if self.train_split in ("val", "test"):
            raise ValueError(f"data.train_split={self.train_split}: data.split_by makes that one: name it 'train'")
        return self

    @model_validator(mode="after")
    def _policies(self) -> Data:
        if self.faults == "skip" and self.check == "off":
            raise ValueError("data.faults=skip: faulty files are known only after a check: set data.check=full")
        if self.color_jitter_on == "device" and (self.transforms or self.rotate):
            key = "transforms" if self.transforms else "rotate"
            raise ValueError(
                f"data.color_jitter_on=device: data.{key} comes after the change of colors, so that must happen before: "
                "set data.color_jitter_on=auto"
            )
        if self.transforms and self.transforms_mode == "replace" and self.class_balanced_crop_prob > 0:
            raise ValueError(
                "data.transforms_mode=replace: the transforms choose the crop, so data.class_balanced_crop_prob cannot: set it to 0"
            )
        return self
