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


def prepare_run_dir(config: Config, labels: LabelSpace) -> list[str]:
    """Make ``config.run_dir``, or accept it when it holds this very run. Returns remarks for the screen.

    Raises ConfigError when the folder cannot be written or holds a run with other settings (each named).
    """
    run_dir = config.run_dir
    try:
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
        probe = run_dir / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"cannot write to the run folder {run_dir}: {error.strerror}: choose another with out=FOLDER"
        ) from None
    remarks: list[str] = []
    known = run_dir / "config.yaml"
    if known.is_file():
        other = load_config(known)
        if other.hash != config.hash and checkpoints(run_dir):
            changes = ", ".join(_differences(other.what(), config.what()))
            raise ConfigError(
                f"{run_dir} holds a run with other settings ({changes}): choose another out=FOLDER, or delete that one"
            )
        if not config.checkpoint.resume and checkpoints(run_dir):
            raise ConfigError(
                f"checkpoint.resume=false, but {run_dir} holds a run already: choose another out=FOLDER, or delete that one"
            )
    write_atomically(known, f"# segtrain run {config.hash}\n{config.to_yaml()}".encode())
    write_atomically(run_dir / "labels.json", json.dumps(labels.to_dict(), indent=1).encode())
    return remarks


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
