"""The run folder: made, checked for another run, and given its resolved config."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from segtrain.config import Config, load_config
from segtrain.data.labels import LabelSpace
from segtrain.errors import ConfigError, SegtrainError
from segtrain.train.checkpoint import checkpoints, write_atomically


def refuse_run_dir(config: Config) -> None:
    """Look whether ``config.run_dir`` can become, or is, this run's folder; nothing is written.

    Raises ConfigError when the folder cannot be written or holds a run with other settings (each named).
    """
    run_dir = config.run_dir
    place = next(path for path in (run_dir, *run_dir.absolute().parents) if os.path.lexists(path))
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        reason = f"no right to write to {place}" if place.is_dir() else f"{place} is a file"
        raise ConfigError(f"cannot write to the run folder {run_dir}: {reason}: choose another with out=FOLDER")
    known = run_dir / "config.yaml"
    if not known.is_file() or not checkpoints(run_dir):
        return
    if not config.checkpoint.resume:
        raise ConfigError(
            f"checkpoint.resume=false, but {run_dir} holds a run already: choose another out=FOLDER, or delete that one"
        )
    try:
        other = load_config(known)
    except ConfigError as error:
        raise ConfigError(
            f"{run_dir} holds a run whose config cannot be read: choose another out=FOLDER, or delete that one ({error})"
        ) from None
    if other.hash != config.hash:
        changes = ", ".join(_differences(other.what(), config.what()))
        raise ConfigError(
            f"{run_dir} holds a run with other settings ({changes}): choose another out=FOLDER, or delete that one"
        )


def prepare_run_dir(config: Config, labels: LabelSpace) -> None:
    """Make ``config.run_dir`` with its config and labels. Raises ConfigError or CheckpointError where it cannot be written."""
    run_dir = config.run_dir
    try:
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot write to the run folder {run_dir}: {error.strerror}: choose another with out=FOLDER"
        ) from None
    write_atomically(run_dir / "config.yaml", f"# segtrain run {config.hash}\n{config.to_yaml()}".encode())
    write_atomically(run_dir / "labels.json", json.dumps(labels.to_dict(), indent=1).encode())


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    lines: list[str] = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += _differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key}: {before!r} there, {after!r} here")
    return lines


def open_run(run_dir: str | Path, overrides: list[str] | None = None) -> Config:
    """The config of a run folder, with overrides. Raises SegtrainError when the folder is no run."""
    path = Path(run_dir) / "config.yaml"
    if not path.is_file():
        raise SegtrainError(f"{run_dir} is no run folder: it has no config.yaml (segtrain runs DIR lists runs)")
    return load_config(path, [*(overrides or []), f"out={run_dir}"])
