"""The complete config of a run: checks between sections, the hash, and the run folder."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, field_validator, model_validator

from segtrain.base.files import cache_folder, read_text
from segtrain.bucket import CLOUDS, is_bucket, split_url
from segtrain.config.data import Data
from segtrain.config.loss import Loss
from segtrain.config.optim import AdamWOptim, Optim
from segtrain.config.section import Section, SettingError, UserPath, outlasts
from segtrain.config.training import Checkpoint, Eval, Log, Model, Parallel, Train
from segtrain.errors import ConfigError

PARTS = "parts.json"
# What was predicted for the run before it began (segtrain.insight.plan.saved).
PLAN = "plan.json"

# Settings that do not change what is trained. They are not part of the hash, and may change when a run resumes.
_UNHASHED_DATA = "root split cache check faults overlap outage_s workers worker_kind prefetch color_jitter_on"
_UNHASHED_DATA += " helpers helper_cores helper_timeout_s"
NOT_HASHED: Any = {
    **dict.fromkeys(("out", "name", "log", "parallel", "checkpoint", "eval"), True),
    "data": set(_UNHASHED_DATA.split()),
    "loss": {"upsample"},
    "train": {"device", "compile", "cuda_graph", "channels_last", "accumulate", "deadline", "budget", "price"},
}


def _changed(section: Section, without: Any) -> dict[str, Any]:
    """Settings that differ from their defaults, except those in ``without``.

    If a section has another type than the default one (such as another optimizer), its name is included.
    """
    defaults = type(section)()
    found: dict[str, Any] = {}
    for name, dumped in section.model_dump(mode="json").items():
        value, default = getattr(section, name), getattr(defaults, name)
        left_out = without.get(name) if isinstance(without, dict) else name in without
        if left_out is True or value == default:
            continue
        if isinstance(value, Section):
            kind = {} if type(value) is type(default) else {"name": getattr(value, "name", "")}
            found[name] = {**kind, **_changed(value, left_out or ())}
        elif isinstance(value, tuple) and any(isinstance(item, Section) for item in value):
            found[name] = [{"name": item.name, **_changed(item, ())} for item in value]
        else:
            found[name] = dumped
    return {name: value for name, value in found.items() if value != {}}


class Config(Section):
    """All settings of a run. docs/config.md lists every key."""

    out: UserPath = Field("", description="run folder, also in a bucket (gs://BUCKET/FOLDER); empty: runs/NAME-HASH")
    name: str = Field("", description="name in tables and trackers; empty: the name of the config file")
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
            raise ValueError("must not contain a line break or another control character")
        return value

    @field_validator("out")
    @classmethod
    def _writable(cls, value: str) -> str:
        if is_bucket(value) and (not value.startswith(CLOUDS) or not split_url(value)[0].partition("://")[2]):
            raise ValueError("must be a folder, s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, or az://CONTAINER/FOLDER")
        return value

    @field_validator("optim", mode="before")
    @classmethod
    def _adamw(cls, value: Any) -> Any:
        return {"name": "adamw", **(value or {})} if isinstance(value, (dict, type(None))) else value

    @model_validator(mode="after")
    def _combinations(self) -> Config:
        """Refuse settings that do not go together: all of them at once, each with its fix if one setting is enough."""
        found = [(reason, fix) for holds, reason, fix in (*self._of_training(), *self._of_strategy()) if holds]
        if found:
            fixes = {key: value for _, fix in found for key, value in fix.items()}
            raise SettingError("; ".join(reason for reason, _ in found), advice=fixes)
        return self

    def _of_training(self) -> list[tuple[bool, str, dict[str, Any]]]:
        """Rules: whether the settings break it, what to say, and the settings that fix it."""
        train, parallel, loss, cpu = self.train, self.parallel, self.loss, self.train.device == "cpu"
        micro, timeout = train.accumulate, f"{parallel.timeout_s:g}"
        weights, classes = loss.class_weights, self.data.classes
        named = isinstance(weights, tuple) and isinstance(classes, tuple)
        numbers = f"{len(weights)} numbers for {len(classes)} classes" if named else ""  # type: ignore[arg-type]
        hang_s = self.log.hang_s
        return [
            (
                bool(train.batch_size % micro),
                f"train.batch_size={train.batch_size} does not divide into equal micro-batches: make it a multiple of "
                f"train.accumulate={micro}",
                {"train.batch_size": micro * -(-train.batch_size // micro)},
            ),
            (
                outlasts(self.optim.warmup, train.duration),
                f"optim.warmup={self.optim.warmup} must be shorter than train.duration={train.duration}",
                {},
            ),
            (
                hang_s != "auto" and hang_s >= parallel.timeout_s,
                f"log.hang_s={hang_s} is too long: set it below parallel.timeout_s={timeout}, or to auto",
                {"log.hang_s": "auto"},
            ),
            (
                bool(train.progressive and self.data.transforms and self.data.transforms_mode == "replace"),
                "train.progressive and data.transforms_mode=replace both set the crop: use only one",
                {},
            ),
            (
                cpu and train.precision in ("fp16", "tf32"),
                f"train.precision={train.precision} needs a GPU: use fp32, or bf16 on a CPU with bf16 units",
                {"train.precision": "fp32"},
            ),
            (cpu and loss.upsample == "fused", "loss.upsample=fused needs a GPU: use auto", {"loss.upsample": "auto"}),
            (
                named and len(weights) != len(classes),  # type: ignore[arg-type]
                f"loss.class_weights has {numbers}: give one number per class",
                {},
            ),
        ]

    def _of_strategy(self) -> list[tuple[bool, str, dict[str, Any]]]:
        """Rules of the parallel strategy, the backend, and the compiler, as ``_of_training``."""
        train, parallel, strategy = self.train, self.parallel, self.parallel.strategy
        cpu, micro, ray_data = train.device == "cpu", train.accumulate > 1, self.data.helpers == "ray-data"
        rows: list[tuple[bool, str, dict[str, Any]]] = [
            (
                strategy == "smddp" and cpu,
                "parallel.strategy=smddp needs GPUs: use ddp on a CPU",
                {"parallel.strategy": "ddp"},
            ),
            (
                cpu and parallel.backend == "nccl",
                "parallel.backend=nccl needs GPUs: set parallel.backend=gloo or auto",
                {"parallel.backend": "auto"},
            ),
            (
                ray_data and train.deterministic,
                "train.deterministic=true: data.helpers=ray-data has no fixed order: use ray",
                {"data.helpers": "ray"},
            ),
            (
                ray_data and bool(train.progressive),
                "train.progressive: data.helpers=ray-data makes crops of one size: use ray",
                {"data.helpers": "ray"},
            ),
            (
                self.optim.name == "muon" and strategy == "fsdp",
                "optim.name=muon needs whole weight matrices, but fsdp shards them: use ddp, or optim.name=adamw",
                {"parallel.strategy": "ddp"},
            ),
            (
                train.channels_last is True and strategy == "fsdp",
                "train.channels_last=true: fsdp shards contiguous weights only: use train.channels_last=auto",
                {"train.channels_last": "auto"},
            ),
            (
                train.compile == "reduce-overhead" and micro,
                "train.compile=reduce-overhead: with train.accumulate>1, each micro-batch would overwrite the last "
                "gradients: use true or regions",
                {"train.compile": True},
            ),
            (
                isinstance(train.compile, str) and strategy in ("dp", "fsdp"),
                f"train.compile={train.compile}: parallel.strategy={strategy} takes only the whole network: use true",
                {"train.compile": True},
            ),
            (
                parallel.compress != "none" and strategy in ("single", "dp", "fsdp"),
                f"parallel.compress={parallel.compress}: parallel.strategy={strategy} does not compress: use none",
                {"parallel.compress": "none"},
            ),
        ]
        graphs = {
            "train.device=cpu, which has no CUDA graphs": cpu,
            "train.accumulate>1, which draws dropout for each micro-batch": micro,
            "loss.stride>1, which reads other pixels in each step": self.loss.stride > 1,
            "train.compile=reduce-overhead, which has its own CUDA graphs": train.compile == "reduce-overhead",
            f"parallel.strategy={strategy}, which is not one process on one GPU": strategy not in ("auto", "single"),
        }
        for setting, conflict in graphs.items():
            text = f"train.cuda_graph=true does not go with {setting}: set one of them back"
            rows.append((train.cuda_graph and conflict, text, {"train.cuda_graph": False}))
        return rows

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
        """Eight hex digits from the settings that change the result and are not at their defaults.

        So the hash of a run stays the same in a release that adds a setting whose default keeps the behavior.
        """
        settings = _changed(self, NOT_HASHED)
        if self.data.helpers == "ray-data":  # the only kind of helpers that changes the batches
            settings.setdefault("data", {})["helpers"] = self.data.helpers
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]

    def trained_settings(self) -> dict[str, Any]:
        """The settings that change the result of training. The others may change when a run resumes."""
        settings = self.model_dump(mode="json", exclude=NOT_HASHED)
        settings["data"]["helpers"] = self.data.helpers if self.data.helpers == "ray-data" else "none or ray"
        return settings

    @property
    def run_dir(self) -> Path:
        """The run folder on this host. For a run in a bucket, it is in the cache folder."""
        if self.out_bucket:
            digest = hashlib.sha256(self.out_bucket.encode()).hexdigest()[:12]
            return cache_folder() / "runs" / f"{self._name_there}-{digest}"
        return Path(self.out or f"runs/{self.name or 'run'}-{self.hash}")

    @property
    def out_bucket(self) -> str:
        """The run folder as a URL, or "" if it is not in a bucket."""
        return self.out.rstrip("/") if is_bucket(self.out) else ""

    @property
    def run_place(self) -> str:
        """The run folder, as the user named it."""
        return self.out_bucket or str(self.run_dir)

    @property
    def _name_there(self) -> str:
        return self.out_bucket.rpartition("/")[2]

    @property
    def title(self) -> str:
        """The name of the run, or that of its folder."""
        return self.name or self._name_there or self.run_dir.resolve().name


def read_parts(run_dir: Path) -> dict[str, str]:
    """The parts of a run that were passed in from Python. Empty if the config described all parts.

    Maps the role of a part (model, criterion, train_data, val_data) to its qualified name.
    """
    try:
        return dict(json.loads(read_text(run_dir / PARTS)))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        why = f"cannot read {run_dir / PARTS} ({error}): choose another out=FOLDER"
        raise ConfigError(why, code="parts-unreadable") from None
