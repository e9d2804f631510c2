"""The complete config of a run: checks between sections, the hash, and the run folder."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, field_validator, model_validator

from segtrain.base.files import cache_folder, digest_of, read_text
from segtrain.bucket import is_bucket
from segtrain.config.data import Data
from segtrain.config.evaluation import Eval
from segtrain.config.facts import Fact, has, setting
from segtrain.config.loss import Loss
from segtrain.config.optim import AdamWOptim, Optim
from segtrain.config.rules import rules_of_strategy, rules_of_training
from segtrain.config.section import PlainName, Section, SettingError, WritablePlace, sections_of
from segtrain.config.training import Checkpoint, Log, Model, Parallel, Train
from segtrain.errors import ConfigError

PARTS = "parts.json"
# What was predicted for the run before it began (segtrain.insight.plan.saved).
PLAN = "plan.json"


def _changed(section: Section, left_out: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Settings that differ from their defaults, except the keys in ``left_out``. ``prefix``: of the
    section's keys.

    If a section has another type than the default one (such as another optimizer), its name is
    included.
    """
    defaults = type(section)()
    changes: dict[str, Any] = {}
    for name, dumped in section.model_dump(mode="json").items():
        key, value, default = f"{prefix}{name}", getattr(section, name), getattr(defaults, name)
        if key in left_out or value == default:
            continue
        if isinstance(value, Section):
            kind = {} if type(value) is type(default) else {"name": getattr(value, "name", "")}
            changes[name] = {**kind, **_changed(value, left_out, f"{key}.")}
        elif isinstance(value, tuple) and any(isinstance(item, Section) for item in value):
            changes[name] = [{"name": item.name, **_changed(item, ())} for item in value]
        else:
            changes[name] = dumped
    return {name: value for name, value in changes.items() if value != {}}


class Config(Section):
    """All settings of a run. docs/config.md lists every key."""

    out: WritablePlace = setting(
        ["untrained", "per_host", "speed_neutral"],
        "",
        description="run folder, also in a bucket (gs://BUCKET/FOLDER); empty: runs/NAME-HASH",
    )
    name: PlainName = setting(
        ["untrained", "per_host", "eval", "speed_neutral"],
        "",
        description="name in tables and trackers; empty: the name of the config file",
    )
    data: Data = Field(default_factory=Data)
    model: Model = Field(default_factory=Model)
    loss: Loss = Field(default_factory=Loss)
    optim: Optim = Field(default_factory=AdamWOptim)
    train: Train = Field(default_factory=Train)
    parallel: Parallel = setting(["untrained", "eval"], default_factory=Parallel)
    eval: Eval = setting(["untrained"], default_factory=Eval)
    checkpoint: Checkpoint = setting(["untrained"], default_factory=Checkpoint)
    log: Log = setting(["untrained"], default_factory=Log)

    @field_validator("model", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """``model: auto`` names the architecture."""
        return {"arch": value} if isinstance(value, str) else value

    @field_validator("optim", mode="before")
    @classmethod
    def _adamw(cls, value: Any) -> Any:
        return (
            {"name": "adamw", **(value or {})} if isinstance(value, (dict, type(None))) else value
        )

    @model_validator(mode="after")
    def _combinations(self) -> Config:
        """Refuse settings that do not go together: all of them at once, each with its fix if one
        setting is enough.
        """
        refusals = [
            (reason, fix)
            for holds, reason, fix in (*rules_of_training(self), *rules_of_strategy(self))
            if holds
        ]
        if refusals:
            fixes = {key: value for _, fix in refusals for key, value in fix.items()}
            raise SettingError("; ".join(reason for reason, _ in refusals), advice=fixes)
        return self

    @classmethod
    def load(cls, path: str | Path | None = None, *overrides: str) -> Config:
        """Read a YAML file (None: the defaults), apply ``section.key=value`` overrides, and check
        the result.

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

        So the hash of a run stays the same in a release that adds a setting whose default keeps the
        behavior.
        """
        settings = _changed(self, keys_with("untrained"))
        # The default was pico before it was auto, and still is on a CPU.
        if settings.get("model", {}).get("arch") == "pico":
            del settings["model"]["arch"]
        if not settings.get("model"):
            settings.pop("model", None)
        if self.data.helpers == "ray-data":  # the only kind of helpers that changes the batches
            settings.setdefault("data", {})["helpers"] = self.data.helpers
        return digest_of(json.dumps(settings, sort_keys=True), 8)

    def trained_settings(self) -> dict[str, Any]:
        """The settings that change the result of training, and the score that its best checkpoint
        is chosen by. The others may change when a run resumes.
        """
        settings = self.dump_without("untrained")
        if settings["model"]["arch"] == "auto":
            settings["model"]["arch"] = "pico"  # what a network without a machine is
        settings["eval"] = {"best": self.eval.best}
        settings["data"]["helpers"] = (
            self.data.helpers if self.data.helpers == "ray-data" else "none or ray"
        )
        return settings

    def dump_without(self, fact: Fact) -> dict[str, Any]:
        """All settings as JSON values, except those with a fact."""
        settings = self.model_dump(mode="json")
        for key in keys_with(fact):
            section, _, name = key.rpartition(".")
            (settings[section] if section else settings).pop(name, None)
        return settings

    @property
    def run_dir(self) -> Path:
        """The run folder on this host. For a run in a bucket, it is in the cache folder."""
        if self.out_bucket:
            digest = digest_of(self.out_bucket, 12)
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


@functools.lru_cache
def keys_with(fact: Fact) -> frozenset[str]:
    """The keys with a fact (see facts.py): ``name``, ``data.root``, ``data.split_by``, ..."""
    keys = set[str]()
    for name, field in Config.model_fields.items():
        sections = sections_of(field.annotation)
        if not sections and has(field, fact):
            keys.add(name)
        for section in sections:
            below = section.model_fields.items()
            keys |= {
                f"{name}.{key}" for key, inner in below if has(field, fact) or has(inner, fact)
            }
    return frozenset(keys)


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
