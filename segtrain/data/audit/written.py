"""The config that `segtrain data check --write` writes, and where it may be written."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from segtrain.config import FEW_STEPS, Data, Train, duration_in_steps
from segtrain.config.paste import Settings, set_nested
from segtrain.data.dataset import Dataset
from segtrain.data.index.split_by import POOL
from segtrain.errors import ConfigError


def first_run(data: Data, datasets: Mapping[str, Dataset]) -> Settings:
    """The settings with which a small data set has a first score that is worth having: of at least
    FEW_STEPS steps, with weights for rare classes.
    """
    divided = data.split_by.of or POOL if data.split_by.on else data.train_split
    whole, train = datasets.get(divided) or datasets.get(data.train_split), Train()
    steps = duration_in_steps(train.duration, len(whole) if whole else 0, train.batch_size)
    if not 0 < steps < FEW_STEPS:
        return {}
    return {"loss.class_weights": "auto", "train.duration": f"{FEW_STEPS}st"}


def config_of(data: Data, datasets: Mapping[str, Dataset], **more: Any) -> str:
    """The settings of ``data``, updated with ``more``, as a config file."""
    values = {"data": data.model_dump(exclude_defaults=True) | more}
    for key, value in first_run(data, datasets).items():
        set_nested(values, key, value)
    return yaml.safe_dump(
        values, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True
    )


def refuse_existing(**files: Path | None) -> None:
    """Raise ConfigError if the file of an option, such as ``write`` for ``--write``, exists, or if
    two options name the same one. A config in which all classes still lack names is replaced.
    """
    paths = [file.resolve() for file in files.values() if file]
    if len({*paths}) < len(paths):
        message = f"--{' and --'.join(files)} are one file, {paths[0]}: name two"
        raise ConfigError(message, code="file-twice", file=str(paths[0]))
    for option, file in files.items():
        if file and file.exists() and not (option == "write" and _without_names(file)):
            message = f"--{option} {file}: exists already: name another file, or remove it"
            raise ConfigError(message, code="file-exists", file=str(file))


def _without_names(file: Path) -> bool:
    """Whether the file is a config of the check in which each class still is a ``?``."""
    with suppress(OSError, ValueError, TypeError, LookupError, yaml.YAMLError):
        names = yaml.safe_load(file.read_text())["data"]["classes"]
        return bool(names) and all(name.startswith("?") for name in names)
    return False
