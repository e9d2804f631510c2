"""Settings of the data set, its labels, and the augmentation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import Field, ValidationInfo, field_validator, model_validator

from segtrain.bucket import url_forms
from segtrain.config.facts import setting
from segtrain.config.label_values import Patterns, check_class_names, check_label_map, check_pair
from segtrain.config.rules import check_data
from segtrain.config.section import LocalPath, ReadablePlace, Section, Size
from segtrain.config.sources import pinned
from segtrain.config.split_by import SplitBy, from_short

Share = Annotated[float, Field(ge=0, le=1)]
Channel = Annotated[int, Field(ge=0, le=255)]
Positive = Annotated[float, Field(gt=0)]
Color = tuple[Channel, Channel, Channel]  # red, green, blue
Auto = Literal["auto"]
MaskCode = Literal["none", "ade20k", "cityscapes", "mapillary", "mots", "cut", "objects"]


class Data(Section):
    """Where images and masks are, what the labels mean, and how training samples are augmented."""

    root: ReadablePlace = setting(
        ["untrained", "per_host", "listing", "eval", "plan_neutral"],
        "",
        description=f"folder of the data set, {url_forms('FOLDER')}; empty for layout 'scenes'",
    )
    layout: Literal[
        "scenes",
        "camvid",
        "cityscapes",
        "ade20k",
        "voc",
        "folders",
        "list",
        "shards",
        "coco",
        "coco-panoptic",
        "yolo",
        "cvat",
        "labelme",
        "via",
        "supervisely",
        "geojson",
        "label-studio",
        "kaggle-rle",
        "objects",
    ] = setting(
        ["storage", "listing", "eval"],
        "scenes",
        description="how images and masks are stored; see layouts.md. 'scenes' generates images",
    )
    train_split: str = setting(["eval"], "train", description="split to train on")
    split: str = setting(["untrained", "eval"], "val", description="split to evaluate on")
    images: str = setting(
        ["storage", "listing", "eval"],
        "images/{split}",
        description="layout 'folders': folder of the images, relative to data.root",
    )
    masks: str = setting(
        ["storage", "listing", "eval"],
        "masks/{split}",
        description="layout 'folders': folder of the masks, relative to data.root",
    )
    pair: Union[Patterns, None] = setting(
        ["listing", "eval"],
        None,
        description="layout 'folders': name patterns of an image and its mask, such as "
        "`['{name}_frame.jpg', '{name}_mask.png']`; a pattern without an extension matches any. "
        "null: same name, or a mask with a common suffix such as _mask. `{split}` stands for the "
        "split. A list in place of a pattern: several, of which the longest that matches counts. "
        "`*/masks/{name}`: files in any folder `masks`",
    )
    files: tuple[str, ...] = setting(
        ["listing", "eval"], (), description="patterns of the files of an image; see bands.md"
    )
    leave_out: tuple[str, ...] = setting(
        ["storage", "listing", "eval"],
        (),
        description="names of files and folders to leave out, or paths below data.root, with `*` "
        "for any text, such as `[preview, '*/raw/*']`",
    )
    index: str = setting(
        ["storage", "listing", "eval"],
        "{split}.csv",
        description="layout 'list': CSV or JSONL file with columns image and mask",
    )
    annotations: str = setting(
        ["storage", "listing", "eval"],
        "",
        description="layouts of annotations, such as 'coco': the annotation file, or the folder of "
        "them, relative to data.root; `{split}` stands for the split",
    )
    paint: Literal["auto", "file", "smallest", "void"] = setting(
        ["storage", "eval"],
        "auto",
        description="annotations: the shape that wins where several overlap. 'file': the last in "
        "the file; 'smallest': the one with the fewest pixels; 'void': none, the pixels are "
        "ignored. auto: see annotations.md",
    )
    label_key: str = setting(
        ["storage", "listing", "eval"],
        "",
        description="annotations whose shapes have several attributes: the one that names the "
        "class. Empty: the only one",
    )
    rle_order: Literal["columns", "rows"] = setting(
        ["storage", "listing", "eval"],
        "columns",
        description="layout 'kaggle-rle': whether pixels count down the columns, as in most "
        "competitions, or along the rows",
    )
    absent_mask: Literal["auto", "leave-out", "background", "error"] = setting(
        ["listing", "eval"],
        "auto",
        description="images without any annotation or mask: left out (with a warning), all "
        "background (in masks: the id of a class of this name, else 0), or an error. auto: an "
        "error for files of masks, else left out",
    )
    classes: Union[str, tuple[str, ...], dict[str, Union[Color, tuple[Color, ...]]]] = setting(
        ["storage", "eval"],
        "",
        description="class names: a list; or a mapping of each name to its color (or colors) in "
        "RGB masks, such as `{road: [128, 64, 128]}`; or a text, CSV, YAML, or JSON file. Names "
        "such as 'void' and 'ignore' are not classes: their pixels are ignored. Empty: the classes "
        "of the layout",
    )
    label_map: dict[int, int] = setting(
        ["storage", "eval", "speed_neutral"],
        default_factory=dict,
        description="raw id -> train id; -1 means ignore. Empty: the mapping of the layout",
    )
    mask_code: MaskCode = setting(
        ["storage", "eval", "speed_neutral"],
        "none",
        description="masks whose values hide the class id, as in these data sets: R // 10 * 256 + "
        "G (ADE20K, full), v // 1000 (Cityscapes instanceIds, MOTS), v // 256 (Mapillary). cut: "
        "colors that are cut at 128 to 0 or 255 in each channel. objects: all ids but 0 become 1",
    )
    ignore_index: int = setting(
        ["eval", "speed_neutral"],
        255,
        ge=0,
        le=65535,
        description="class id of pixels that losses and metrics ignore. With more than 255 "
        "classes, 255 means 65535",
    )
    bits: Union[Annotated[int, Field(ge=8, le=16)], Auto] = setting(
        ["eval", "predict"],
        "auto",
        description="bits used in 16-bit images, 8 to 16. auto: 16; nearly black ones are refused",
    )
    extra_bands: Literal["error", "drop"] = setting(
        ["eval", "predict"],
        "error",
        description="TIFF images with more than three bands: an error, or only the first three "
        "bands are used",
    )
    channels: int = setting(
        ["eval", "listing"],
        3,
        ge=1,
        le=16,
        description="bands of the images",
    )
    values: Literal["auto", "8-bit", "stored"] = setting(
        ["eval", "listing"],
        "auto",
        description="'8-bit': images become 8-bit RGB. 'stored': values of 8 or 16 bits, or "
        "floating-point numbers, are kept; see bands.md. auto: 8-bit for 3 channels, else stored",
    )
    nodata: Union[Annotated[float, Field(allow_inf_nan=False)], Literal["nan"], None] = setting(
        ["eval"],
        None,
        description="stored values: the value of pixels without data, whose labels are ignored. "
        "null: as the tag of each file says. NaN and infinite values never count as data",
    )
    mean: Union[tuple[float, ...], None] = Field(
        None,
        description="mean of the images (red, green, blue; 0 to 1) that the network expects. null: "
        "as its pretrained weights do, else ImageNet's. Stored values: a number for each band",
    )
    std: Union[tuple[Positive, ...], None] = Field(
        None, description="standard deviation of the images, like data.mean"
    )
    split_by: SplitBy = setting(
        ["storage", "eval"],
        default_factory=SplitBy,
        description="how to make splits: `{val: 20%}`; see below",
    )
    overlap: Literal["refuse", "accept"] = setting(
        ["untrained", "plan_neutral"],
        "refuse",
        description="training images that are also in the validation split: an error, or a warning",
    )
    limit: int = setting(
        ["listing", "eval"],
        0,
        ge=0,
        description="use only this many images of each split, evenly spaced; 0: all",
    )
    crop: Size = Field((256, 256), description="height and width of a training crop in pixels")
    scale: tuple[float, float] = Field((0.5, 2.0), description="range of the random scale factor")
    scale_end: Union[tuple[float, float], None] = Field(
        None,
        description=(
            "the scale range moves linearly to this range over the run; null: it does not change"
        ),
    )
    base_scale: float = setting(
        ["eval", "predict"],
        1.0,
        ge=0.01,
        le=100,
        description="fixed scale factor of all images, in training and evaluation; the random "
        "scale multiplies it",
    )
    flip: Share = Field(0.5, description="probability of a horizontal flip")
    flip_pairs: tuple[tuple[Union[int, str], Union[int, str]], ...] = setting(
        ["eval", "predict"],
        (),
        description="pairs of classes, by name or train id, that a mirrored image exchanges, such "
        "as `[[left arm, right arm]]`: in data.flip and eval.flip, not in your own transforms",
    )
    rotate: float = Field(
        0.0, ge=0, le=180, description="largest random rotation, either way, in degrees"
    )
    scale_sampling: Literal["log", "uniform"] = Field(
        "log",
        description="random scale. log: 0.5x is as likely as 2x; uniform: uniform in the factor",
    )
    jitter: tuple[Share, Share, Share] = Field(
        (0.3, 0.3, 0.3),
        description=(
            "random brightness, contrast, and saturation: 0.3 draws factors from 0.7 to 1.3"
        ),
    )
    hue: float = Field(
        0.0, ge=0, le=0.5, description="largest random hue shift, in turns of the color wheel"
    )
    color_jitter_prob: Share = Field(
        1.0, description="probability of color jitter (data.jitter and data.hue)"
    )
    color_jitter_on: Literal["auto", "cpu", "device"] = setting(
        ["untrained", "per_host", "plan_neutral"],
        "auto",
        description="where color jitter is computed. auto: on CUDA without rotate or transforms, "
        "else workers",
    )
    class_balanced_crop_prob: Share = Field(
        0.0,
        description="probability that a crop is centered on a pixel of a random class, which "
        "favors rare classes",
    )
    transforms: Union[str, dict[str, Any], tuple[dict[str, Any], ...]] = Field(
        "",
        description="your own augmentation: a file written by `albumentations.save`, "
        "`package.module:attribute`, `file.py:attribute`, or a list of albumentations classes such "
        "as `[{HorizontalFlip: {p: 0.5}}]`; see transforms.md",
    )
    transforms_mode: Literal["after", "replace"] = Field(
        "after",
        description=(
            "whether transforms run 'after' scale, crop, flip, and color jitter, or 'replace' them"
        ),
    )
    cache: Literal["off", "ram", "disk"] = setting(
        ["untrained", "per_host"],
        "off",
        description="'ram' keeps decoded images in memory, for small data sets. 'disk' keeps what "
        "was read from a bucket on the local disk; see layouts.md. For data on a disk, 'disk' "
        "changes nothing",
    )
    cache_dir: LocalPath = Field(
        "",
        description="folder of cache 'disk', which all runs may share; empty: `buckets` in the "
        "user's cache folder",
    )
    cache_gb: Union[Annotated[float, Field(gt=0)], Auto] = setting(
        ["plan_neutral"],
        "auto",
        description=(
            "bound of cache 'disk' in GB (1e9 bytes). auto: most of the free space of its disk"
        ),
    )
    check: Literal["full", "off"] = setting(
        ["untrained", "speed_neutral", "plan_neutral"],
        "full",
        description=(
            "'full' reads and checks all images and masks before training, and caches the result"
        ),
    )
    faults: Literal["error", "skip"] = setting(
        ["untrained", "listing", "speed_neutral", "plan_neutral"],
        "error",
        description="faulty files: stop before training, or skip them",
    )
    outage_s: float = setting(
        ["untrained", "plan_neutral"],
        300.0,
        gt=0,
        description="buckets: seconds without an answer after which the run ends with an error",
    )
    workers: Union[Annotated[int, Field(ge=0, le=256)], Auto] = setting(
        ["untrained", "per_host", "eval"],
        "auto",
        description="loader workers per rank; 0: the training loop loads. auto: adapts, up to "
        "the rank's cores",
    )
    worker_kind: Literal["auto", "thread", "process"] = setting(
        ["untrained", "per_host"],
        "auto",
        description=(
            "auto: threads, because decoding releases the GIL; processes if data.transforms is set"
        ),
    )
    helpers: Literal["none", "ray", "ray-data"] = setting(
        ["untrained"],
        "none",
        description="'ray': hosts without GPUs make samples too, in the Ray cluster at "
        "RAY_ADDRESS. 'ray-data': Ray Data makes all samples there, in an order of its own, and "
        "the run cannot resume; see helpers.md",
    )
    helper_cores: Union[Annotated[int, Field(ge=1, le=65536)], Auto] = setting(
        ["untrained"],
        "auto",
        description="cores of helping hosts that the ranks use together. auto: all of them",
    )
    helper_timeout_s: float = setting(
        ["untrained"],
        2.0,
        gt=0,
        le=600,
        description="seconds without a sign of life after which a helper's samples are made again",
    )
    prefetch: int = setting(
        ["untrained", "per_host"],
        4,
        ge=1,
        le=1024,
        description="batches that each rank keeps ready",
    )
    scenes: int = setting(
        ["eval"],
        240,
        ge=2,
        le=1_000_000,
        description="layout 'scenes': training images; a quarter as many for validation",
    )
    scene_size: Size = setting(
        ["eval"], (144, 192), description="layout 'scenes': height and width of an image in pixels"
    )

    _check_classes = field_validator("classes", mode="before")(check_class_names)
    _check_label_map = field_validator("label_map", mode="before")(check_label_map)
    _check_pair = field_validator("pair")(check_pair)
    _short_split_by = field_validator("split_by", mode="before")(from_short)

    @property
    def stored(self) -> bool:
        """Whether images keep their stored values, of any number of bands."""
        return self.values == "stored" or (self.values == "auto" and self.channels != 3)

    @property
    def own_splits(self) -> bool:
        """Whether the layout has splits of its own, so that ``data.split_by.of`` must name the one
        to divide.
        """
        named = {"folders": (self.images, self.masks), "list": (self.index,)}.get(
            self.layout, (self.images, self.annotations) if self.annotations else None
        )
        return named is None or any("{split}" in text for text in named)

    @field_validator("cache", "check", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML reads a bare off as false

    @field_validator("transforms", mode="before")
    @classmethod
    def _transforms(cls, value: Any, info: ValidationInfo) -> Any:
        # The config of a run folder is read without any other file: see load_saved.
        if isinstance(value, str) and (info.context or {}).get("saved"):
            return value
        return pinned(value) if isinstance(value, str) else "" if value is None else value

    @field_validator("scale", "scale_end")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not 0.01 <= value[0] <= value[1] <= 100:
            raise ValueError("must be [low, high] with 0.01 <= low <= high <= 100")
        return value

    _check_rules = model_validator(mode="after")(check_data)
