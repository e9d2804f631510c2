"""What is a run, whole: do its sections go together, which hash names it, where is its folder?"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, field_validator, model_validator

from segtrain.config.data import Data
from segtrain.config.loss import Loss
from segtrain.config.optim import AdamWOptim, Optim
from segtrain.config.records import Checkpoint, Eval, Log
from segtrain.config.renamed import with_old_names
from segtrain.config.section import Section, UserPath, outlasts
from segtrain.config.training import Model, Parallel, Train

# Where and how a run goes, not what is trained: no part of the hash, and free to change on resume.
NOT_HASHED: Any = {
    "out": True,
    "name": True,
    "log": True,
    "parallel": True,
    "checkpoint": True,
    "eval": True,
    "data": {
        "root",
        "split",
        "cache",
        "check",
        "faults",
        "overlap",
        "workers",
        "worker_kind",
        "prefetch",
        "color_jitter_on",
    },
    "train": {"device", "compile", "channels_last", "accumulate"},
}


def _changed(section: Section, without: Any) -> dict[str, Any]:
    """The fields that differ from their defaults, but those ``without``. A block's name stands with it."""
    usual = type(section)()
    found: dict[str, Any] = {}
    for name, plain in section.model_dump(mode="json").items():
        value, default = getattr(section, name), getattr(usual, name)
        left_out = without.get(name) if isinstance(without, dict) else name in without
        if left_out is True or value == default:
            continue
        if isinstance(value, Section):
            kind = {} if type(value) is type(default) else {"name": getattr(value, "name", "")}
            found[name] = {**kind, **_changed(value, left_out or ())}
        elif isinstance(value, tuple) and any(isinstance(item, Section) for item in value):
            found[name] = [{"name": item.name, **_changed(item, ())} for item in value]
        else:
            found[name] = plain
    return {name: value for name, value in found.items() if value != {}}


class Config(Section):
    """A run, whole. See docs/config.md for every key."""

    out: UserPath = Field("", description="run folder; empty: runs/NAME-HASH")
    name: str = Field("", description="name in tables and trackers; empty: the config file's")
    data: Data = Field(default_factory=Data)
    model: Model = Field(default_factory=Model)
    loss: Loss = Field(default_factory=Loss)
    optim: Optim = Field(default_factory=AdamWOptim)
    train: Train = Field(default_factory=Train)
    parallel: Parallel = Field(default_factory=Parallel)
    eval: Eval = Field(default_factory=Eval)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    log: Log = Field(default_factory=Log)

    @field_validator("out", "name")
    @classmethod
    def _one_line(cls, value: str) -> str:
        if any(unicodedata.category(character) == "Cc" for character in value):
            raise ValueError("holds a line break or another control character, which no name needs: leave it out")
        return value

    @field_validator("optim", mode="before")
    @classmethod
    def _adamw(cls, value: Any) -> Any:
        return {"name": "adamw", **(value or {})} if isinstance(value, (dict, type(None))) else value

    @model_validator(mode="after")
    def _combinations(self) -> Config:
        train, parallel, loss = self.train, self.parallel, self.loss
        if train.batch_size % train.accumulate:
            raise ValueError(
                f"train.batch_size={train.batch_size} does not divide into train.accumulate={train.accumulate} "
                f"micro-batches: use a multiple of {train.accumulate}"
            )
        if outlasts(self.optim.warmup, train.duration):
            raise ValueError(
                f"optim.warmup={self.optim.warmup} does not end within train.duration={train.duration}: shorten it"
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
        if train.progressive and self.data.transforms and self.data.transforms_mode == "replace":
            raise ValueError(
                "train.progressive changes the crop, data.transforms_mode=replace gives crops of one size: "
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

    @classmethod
    def load(cls, path: str | Path | None = None, *overrides: str) -> Config:
        """Read a YAML file (None: the defaults), apply ``section.key=value`` overrides, and check the result.

        >>> Config.load(None, "train.duration=5ep", "optim.name=sgd").train.duration
        '5ep'

        Raises ConfigError with one line per mistake.
        """
        from segtrain.config.load import load_config

        return load_config(path, overrides)

    def to_yaml(self) -> str:
        return yaml.safe_dump(json.loads(self.model_dump_json()), sort_keys=False)

    @property
    def hash(self) -> str:
        """Eight hex digits that name what is trained: of every setting that changes the result and is not its default.

        So a release that adds a setting, with a default that does what was done before, leaves the hash of every run as it was.
        """
        return hashlib.sha256(
            json.dumps(with_old_names(_changed(self, NOT_HASHED)), sort_keys=True).encode()
        ).hexdigest()[:8]

    def trained_settings(self) -> dict[str, Any]:
        """The settings that change the result of training. The others may change when a run resumes."""
        return self.model_dump(mode="json", exclude=NOT_HASHED)

    @property
    def run_dir(self) -> Path:
        return Path(self.out or f"runs/{self.name or 'run'}-{self.hash}")
