"""One typed description of a run: flat YAML, ``section.key=value`` overrides, and a hash.

pydantic was chosen over jsonargparse, tyro and OmegaConf: it checks types and ranges with errors that name
the key, writes a JSON schema, is on most machines already, and leaves the command line to us (jsonargparse and
tyro make a flag of every field and import slowly; OmegaConf checks neither ranges nor combinations).
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Union

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from segtrain.errors import ConfigError

Size = tuple[int, int]  # height, width in pixels

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ep|st|%)")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def _duration(value: Any) -> Any:
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


def transform_source(text: str) -> tuple[Path, str, str]:
    """The Python file of ``file.py:attribute`` or ``package.module:attribute``, the attribute, and the digest
    behind an ``@`` ("" where there is none). Raises ValueError for another text and for a file that is not there."""
    text, _, digest = text.partition("@")
    place, colon, attribute = text.rpartition(":")
    if not colon or not attribute.isidentifier():
        raise ValueError(
            "must be a file of albumentations.save (.yaml, .json), file.py:attribute, package.module:attribute, or a list"
        )
    if place.endswith(".py"):
        path = Path(place)
    else:
        with importable():
            try:
                found = importlib.util.find_spec(place)
            except (ImportError, ValueError) as error:
                raise ValueError(f"there is no module {place!r} ({error}): check its name and PYTHONPATH") from None
        path = Path((found and found.origin) or place)
    if not path.is_file():
        raise ValueError(f"there is no Python file {str(path)!r}: check the path, the module's name and PYTHONPATH")
    return path, attribute, digest


@contextmanager
def importable() -> Iterator[None]:
    """The working directory can be imported from, as with ``python -m``; the ``segtrain`` command leaves it out."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def file_digest(path: Path) -> str:
    """Eight hex digits of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def _pinned(text: str) -> Any:
    """The content of a saved pipeline; or the name of Python code with the digest of its file: a run is known by what it
    trains with, not by where that lay."""
    if text.endswith((".yaml", ".yml", ".json")):
        try:
            content = yaml.safe_load(Path(text).read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"cannot be read ({error.strerror}): check the path") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"is no YAML or JSON: {' '.join(str(error).split())}") from None
        if not isinstance(content, (dict, list)):
            raise ValueError("holds no pipeline: write it with albumentations.save")
        return content
    if not text or re.search(r"@[0-9a-f]{8}$", text):  # a run folder's config: looked at when it trains
        return text
    path, _, _ = transform_source(text)
    return f"{text}@{file_digest(path)}"


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
        return _pinned(value) if isinstance(value, str) else "" if value is None else value

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


class Model(Section):
    """The network: ``pico`` (ours), an SMP architecture (``unet``, ``fpn``, ...) or ``torchvision/NAME``."""

    arch: str = Field("pico", description="pico, an SMP architecture, or torchvision/NAME")
    encoder: str = Field("resnet18", description="SMP encoder")
    encoder_weights: Union[str, None] = Field(
        None, description="'imagenet' or another name that SMP knows; null: scratch"
    )
    fast: bool = Field(True, description="use exact rewrites of slow layers (same weights, same gradients)")
    options: dict[str, Any] = Field(default_factory=dict, description="passed to the architecture's constructor")


class LossTerm(Section):
    """One term of the loss: its name, its weight in the sum, and the settings of that name."""

    name: Literal["ce", "ohem", "focal", "dice", "jaccard", "lovasz", "tversky"] = Field("ce", description="which loss")
    weight: float = Field(1.0, gt=0, description="its factor in the sum")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="ce")
    keep: float = Field(0.25, gt=0, le=1, description="ohem: least share of valid pixels kept")
    threshold: float = Field(0.7, gt=0, le=1, description="ohem: pixels below this probability are always kept")
    gamma: float = Field(2.0, ge=0, description="focal")
    alpha: float = Field(0.5, ge=0, description="tversky: weight of false positives")
    beta: float = Field(0.5, ge=0, description="tversky: weight of false negatives")


class Loss(Section):
    """A weighted sum of terms over the valid pixels of the global batch."""

    terms: tuple[LossTerm, ...] = Field((LossTerm(),), min_length=1, description="what is added up; see below")
    class_weights: Union[Literal["none", "auto"], tuple[float, ...]] = Field(
        "none", description="'auto': from the training masks; or one number a class"
    )
    class_weight_power: float = Field(0.5, ge=0, le=1, description="auto: (median share / share) ** power")
    aux_weight: float = Field(0.4, ge=0, description="weight of auxiliary heads, where the model has them")
    stride: int = Field(
        1, ge=1, le=8, description="count every n-th pixel in each direction, from a corner drawn for each step; 1: all"
    )
    full_logits: bool = Field(False, description="hold full-size logits of the whole batch (the plain way)")

    @field_validator("terms", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """``ce`` and ``[ce, dice]`` are short for terms of weight 1."""
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, (list, tuple)):
            return value
        return [{"name": item} if isinstance(item, str) else item for item in value]


class Optim(Section):
    """Optimizer, schedule and what is done to the gradient."""

    name: Literal["sgd", "adamw", "muon"] = Field("adamw", description="optimizer")
    lr: float = Field(1e-3, gt=0, description="learning rate, before the schedule")
    encoder_lr: float = Field(1.0, ge=0, description="multiplier of lr for the encoder")
    weight_decay: float = Field(1e-2, ge=0, description="not applied to biases and norms")
    muon_lr: float = Field(2e-2, gt=0, description="muon: learning rate of the convolution filters; lr is for the rest")
    momentum: float = Field(0.9, ge=0, lt=1, description="sgd and muon")
    betas: tuple[float, float] = Field((0.9, 0.999), description="adamw")
    schedule: Literal["constant", "poly", "cosine", "onecycle", "linear"] = Field(
        "poly", description="learning rate over the run; after the warm-up it falls to 0 (but constant)"
    )
    poly_power: float = Field(0.9, gt=0, description="poly: (1 - step / steps) ** power")
    warmup: str = Field("0st", description="linear warm-up (onecycle: its rise): '1ep', '500st' or '15%'")
    clip: float = Field(0.0, ge=0, description="global gradient norm; 0: off")
    ema: float = Field(0.0, ge=0, lt=1, description="decay of the moving average of the weights; 0: off")

    _check_duration = field_validator("warmup", mode="before")(_duration)


class Train(Section):
    """How long, how many at once, in which numbers."""

    duration: str = Field("20ep", description="'20ep' or '5000st'")
    batch_size: int = Field(16, ge=1, description="images in one optimizer step, over all ranks and micro-batches")
    accumulate: int = Field(1, ge=1, description="micro-batches in one optimizer step")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="numbers of forward and backward; weights stay fp32"
    )
    seed: int = Field(0, ge=0, description="of weights, order and augmentation")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda where there is a GPU")
    channels_last: Union[bool, Literal["auto"]] = Field(
        "auto", description="auto: on with CUDA and on CPUs with AVX512"
    )
    compile: bool = Field(False, description="torch.compile: slower to start, faster after")
    deterministic: bool = Field(False, description="refuse kernels whose result varies from run to run")
    progressive: tuple[tuple[float, float], ...] = Field(
        (), description="[[until share of steps, size factor], ...]: smaller crops at first"
    )

    _check_duration = field_validator("duration", mode="before")(_duration)

    @field_validator("progressive")
    @classmethod
    def _stages(cls, value: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        ends = [end for end, _ in value]
        if ends != sorted(set(ends)) or any(not 0 < end <= 1 for end in ends) or any(not 0 < f <= 1 for _, f in value):
            raise ValueError("must be [[until, factor], ...] with rising 0 < until <= 1 and 0 < factor <= 1")
        return value


class Parallel(Section):
    """How the ranks share the work."""

    strategy: Literal["auto", "single", "dp", "ddp", "fsdp", "smddp"] = Field(
        "auto", description="auto: ddp where there are several ranks, else single"
    )
    backend: Literal["auto", "nccl", "gloo"] = Field("auto", description="auto: nccl with CUDA, else gloo")
    procs: Union[int, Literal["auto"]] = Field(
        "auto", description="ranks that `segtrain train` starts by itself on a CPU host; auto: one a core"
    )
    threads: Union[int, Literal["auto"]] = Field("auto", description="compute threads of a rank; auto: cores / ranks")
    sync_bn: bool = Field(False, description="batch norm statistics over all ranks")
    bucket_mb: float = Field(25.0, gt=0, description="ddp: MiB of gradients that travel together")
    bucket_view: bool = Field(True, description="ddp: gradients live in the buckets (saves memory)")
    static_graph: bool = Field(False, description="ddp: promise that every step uses the same layers")
    compress: Literal["none", "fp16", "bf16", "powersgd"] = Field("none", description="gradient compression (ddp)")
    broadcast_buffers: bool = Field(False, description="ddp: copy rank 0's batch-norm statistics before every forward")
    timeout_s: float = Field(600.0, gt=0, description="how long a collective may wait")


class Eval(Section):
    """How a model is scored."""

    every: str = Field("1ep", description="'1ep' or '500st'")
    batch_size: int = Field(1, ge=1, description="images of one forward; groups are the same on any number of ranks")
    tile: Union[Size, None] = Field(None, description="sliding window; null: whole image")
    overlap: float = Field(0.5, ge=0, lt=1, description="share of a tile that its neighbour covers too")
    scales: tuple[float, ...] = Field((1.0,), min_length=1, description="multi-scale test")
    flip: bool = Field(False, description="average with the mirrored image")
    size: Union[Size, None] = Field(
        None, description="score at this size (labels resized by nearest); null: the mask's"
    )

    _check_duration = field_validator("every", mode="before")(_duration)


class Checkpoint(Section):
    """What is saved, and when."""

    every: str = Field("1ep", description="'1ep' or '500st'; a signal saves at once")
    keep: int = Field(2, ge=1, description="newest checkpoints that stay; the best stays as well")
    background: bool = Field(True, description="write while training goes on")
    resume: bool = Field(True, description="go on from the newest whole checkpoint of the run folder")

    _check_duration = field_validator("every", mode="before")(_duration)


class Log(Section):
    """What is written down while training."""

    every: int = Field(10, ge=1, description="optimizer steps between two log lines")
    tensorboard: bool = Field(True, description="scalars and pictures into RUN/tensorboard")
    mlflow: str = Field("", description="tracking URI; empty: off")
    pictures: int = Field(8, ge=0, description="validation images on the contact sheet")
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


class Config(Section):
    """A run, whole. See docs/config.md for every key."""

    out: str = Field("", description="run folder; empty: runs/NAME-HASH")
    name: str = Field("", description="name in tables and trackers; empty: the config file's")
    data: Data = Field(default_factory=Data)
    model: Model = Field(default_factory=Model)
    loss: Loss = Field(default_factory=Loss)
    optim: Optim = Field(default_factory=Optim)
    train: Train = Field(default_factory=Train)
    parallel: Parallel = Field(default_factory=Parallel)
    eval: Eval = Field(default_factory=Eval)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    log: Log = Field(default_factory=Log)

    @model_validator(mode="after")
    def _combinations(self) -> Config:
        train, parallel, loss = self.train, self.parallel, self.loss
        if train.batch_size % train.accumulate:
            raise ValueError(
                f"train.batch_size={train.batch_size} does not divide into train.accumulate={train.accumulate} "
                f"micro-batches: use a multiple of {train.accumulate}"
            )
        if self.log.hang_s != "auto" and self.log.hang_s >= parallel.timeout_s:
            raise ValueError(
                f"log.hang_s={self.log.hang_s:g} comes too late: parallel.timeout_s={parallel.timeout_s:g} ends the job first; "
                "lower log.hang_s, or set it to auto"
            )
        if parallel.strategy == "smddp" and parallel.sync_bn:
            raise ValueError("parallel.sync_bn=true: the smddp backend has no SyncBatchNorm; set it to false")
        if parallel.strategy == "smddp" and train.device == "cpu":
            raise ValueError("parallel.strategy=smddp runs on GPUs only: use ddp on a CPU")
        if train.device == "cpu" and parallel.backend == "nccl":
            raise ValueError("parallel.backend=nccl needs GPUs: set parallel.backend=gloo or auto")
        if train.progressive and self.data.transforms and self.data.transforms_at == "instead":
            raise ValueError(
                "train.progressive changes the crop, data.transforms_at=instead gives crops of one size: "
                "use one of the two"
            )
        if train.device == "cpu" and train.precision == "fp16":
            raise ValueError("train.precision=fp16 needs a GPU: use fp32 (or bf16 where the CPU has bf16 units)")
        if self.optim.name == "muon" and parallel.strategy == "fsdp":
            raise ValueError("optim.name=muon needs whole weight matrices, which fsdp cuts: use ddp, or adamw")
        if train.channels_last is True and parallel.strategy == "fsdp":
            raise ValueError(
                "train.channels_last=true: fsdp shards contiguous weights only; set it to auto, or use ddp"
            )
        if parallel.compress != "none" and parallel.strategy in ("single", "dp", "fsdp"):
            raise ValueError(f"parallel.compress={parallel.compress} works with ddp and smddp, not {parallel.strategy}")
        weights, classes = loss.class_weights, self.data.classes
        if isinstance(weights, tuple) and isinstance(classes, tuple) and len(weights) != len(classes):
            raise ValueError(f"loss.class_weights has {len(weights)} numbers for {len(classes)} classes")
        return self

    def to_yaml(self) -> str:
        return yaml.safe_dump(json.loads(self.model_dump_json()), sort_keys=False)

    @property
    def hash(self) -> str:
        """Eight hex digits that name what is trained: every setting that changes the result."""
        return hashlib.sha256(json.dumps(self.what(), sort_keys=True).encode()).hexdigest()[:8]

    def what(self) -> dict[str, Any]:
        """The settings that change what is trained; the others say where and how it runs, and may change on resume."""
        elsewhere: Any = {
            "out": True,
            "name": True,
            "log": True,
            "parallel": True,
            "checkpoint": True,
            "eval": True,
            "data": {"root", "split", "cache", "check", "faults", "workers", "worker_kind", "prefetch", "colour"},
            "train": {"device", "compile", "channels_last", "accumulate"},
        }
        return self.model_dump(mode="json", exclude=elsewhere)

    @property
    def run_dir(self) -> Path:
        return Path(self.out or f"runs/{self.name or 'run'}-{self.hash}")


def _known_keys() -> list[str]:
    keys = []
    for name, field in Config.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            keys += [f"{name}.{key}" for key in section.model_fields]
        else:
            keys.append(name)
    return keys


def parse_overrides(arguments: list[str]) -> dict[str, Any]:
    """``section.key=value``, ``--section.key=value`` and ``--section.key value`` to nested settings; values are YAML."""
    settings: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        key, equals, text = argument.lstrip("-").partition("=")
        if not equals:
            if not argument.startswith("--") or not rest:
                raise ConfigError(f"cannot read the argument {argument!r}: write section.key=value")
            text = rest.pop(0)
        try:
            value = yaml.safe_load(text) if text else ""
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {key}={text} is no YAML: {error}".replace("\n", " ")) from None
        # YAML 1.1 reads 1e-3 as a string: a number is meant.
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
            value = float(value)
        *path, last = key.split(".")
        place = settings
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{key}: {part!r} has a value already and cannot hold {last!r}")
        place[last] = value
    return settings


def _merge(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in extra.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def load_config(path: str | Path | None = None, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Read a YAML file (or only defaults), apply overrides, check everything.

    Raises ConfigError with one line for each mistake: the key, the value, the nearest right key, the cure.
    """
    settings: dict[str, Any] = {}
    if path is not None:
        try:
            loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read the config {path}: {error.strerror}: {_near_file(Path(path))}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
        if loaded is not None and not isinstance(loaded, dict):
            raise ConfigError(f"{path} holds a {type(loaded).__name__}, not sections with keys")
        settings = loaded or {}
        settings.setdefault("name", Path(path).stem)
    return make_config(_merge(settings, parse_overrides(list(overrides))), source=str(path or "the command line"))


def _near_file(path: Path) -> str:
    folder = path.parent
    there = sorted(p.name for p in folder.glob("*.y*ml")) if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, there, n=1, cutoff=0.4)
    return f"did you mean {str(folder / near[0])!r}?" if near else "check the path and its rights"


def make_config(settings: dict[str, Any], source: str = "the settings") -> Config:
    """Check nested settings. Raises ConfigError as ``load_config`` does."""
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        # A union reports one error for each of its members: the first says enough.
        lines = {_key(item): _explain(item, source) for item in reversed(error.errors(include_url=False))}
        raise ConfigError("\n".join(reversed(lines.values()))) from None


def _key(item: Any) -> str:
    """``loss.terms.0.name``: where in the settings, without pydantic's names of union members."""
    members = {"int", "float", "bool", "str", "none"}
    parts = [str(part) for part in item["loc"] if part not in members]
    return ".".join(part for part in parts if not re.match(r"(function-|tuple\[|literal\[|constrained-|dict\[)", part))


def _explain(item: Any, source: str) -> str:
    key = _key(item)
    value = item.get("input")
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, _known_keys(), n=1, cutoff=0.5)
        if not near:
            near = [k for k in _known_keys() if k.rpartition(".")[2] == key.rpartition(".")[2]][:1]
        hint = f"did you mean {near[0]!r}?" if near else f"the sections are {', '.join(Config.model_fields)}"
        return f"{source}: unknown key {key!r}: {hint}"
    message = item["msg"].removeprefix("Value error, ")
    if isinstance(value, (dict, Section)) and item["type"] == "value_error":
        return f"{source}: {message}"
    return f"{source}: {key}={value!r}: {message[:1].lower() + message[1:]}"
