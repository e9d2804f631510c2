"""Checks that a run folder holds no other run, makes it, and writes the resolved config into it.
Imports no torch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from shlex import quote
from typing import Any

import segtrain
from segtrain.base.files import write_atomically
from segtrain.config import (
    PARTS,
    PLAN,
    RUN_HEADER,
    Config,
    joined,
    keys_with,
    load_saved,
    read_parts,
    refuse_older_run,
)
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.index.split_by import splits as by_rule
from segtrain.data.labels.space import LabelSpace
from segtrain.errors import ConfigError, SegtrainError
from segtrain.observe.journal import FILE as JOURNAL

NAMES = "splits"  # folder with a list of the image names of each split that data.split_by makes
# Files and folders that a run replaces in its folder.
_WRITTEN = ("config.yaml", "labels.json", PARTS, "best.json", "pictures", "report.html", NAMES)


def refuse_run_dir(config: Config, parts: dict[str, str] | None = None) -> None:
    """Check that ``config.run_dir`` can become, or is, this run's folder. Nothing is written.

    ``parts``: qualified names of the parts that were passed in. Raises ConfigError if the folder
    cannot be written, or holds a run with other settings or parts (each named).
    """
    run_dir, place = config.run_dir, config.run_place
    nearest = next(path for path in (run_dir, *run_dir.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = (
            f"no permission to write to {nearest}" if nearest.is_dir() else f"{nearest} is a file"
        )
        raise _not_writable(run_dir, reason)
    refuse_older_run(run_dir)
    config_file = run_dir / "config.yaml"
    begun = any((run_dir / "checkpoints").glob("step-*.pt"))
    if not begun:
        _refuse_foreign_files(run_dir, place)
    # A run that was scored has saved checkpoints, which somebody has removed.
    scored = (run_dir / "best.json").is_file()
    if not (begun or scored) or not config_file.is_file():
        return
    if not config.checkpoint.resume:
        raise ConfigError(
            f"checkpoint.resume=false, but {place} already contains a run: choose another "
            "out=FOLDER, or resume it",
            code="run-folder-used",
            run=place,
        )
    try:
        before = load_saved(config_file).trained_settings()
        now = config.trained_settings()
    except ConfigError as error:
        raise ConfigError(
            f"{place} holds a run whose config cannot be read ({error}): choose another out=FOLDER",
            code="run-config-not-read",
            run=place,
        ) from None
    # Compare all values instead of the hash: this also finds a default that a newer version has
    # changed.
    changes = ", ".join(differences(before, now))
    if changes and not _packed_alone(before, now):
        text = f"{place} holds a run with other settings ({changes}): choose another out=FOLDER"
        more = joined(now["train"]["duration"], before["train"]["duration"], -1)
        if more:
            text += (
                "; to train this run longer, leave train.duration as it was, and add "
                f"train.extend={more}"
            )
        if not config.out_bucket:  # which model.init does not read
            text += (
                f"; to begin there with the weights of this run, add {quote(f'model.init={place}')}"
            )
        raise ConfigError(text, code="run-settings-changed", run=place, changes=changes)
    _refuse_other_parts(run_dir, parts or {})


def _refuse_foreign_files(run_dir: Path, place: str) -> None:
    """Raise ConfigError if a folder that is not a run folder holds a file that the run would
    replace.

    ``place``: its name in the message, which differs from ``run_dir`` for a copy of a bucket.
    """
    config_file = run_dir / "config.yaml"
    readable = config_file.is_file() and os.access(config_file, os.R_OK)
    # A run that was killed at its start may have left only its config.
    is_run = (run_dir / JOURNAL).is_file() or (
        readable and config_file.read_bytes().startswith(RUN_HEADER.encode())
    )
    foreign = [] if is_run else [name for name in _WRITTEN if os.path.lexists(run_dir / name)]
    if foreign:
        names = ", ".join(foreign)
        raise ConfigError(
            f"{place} is not a run folder, and the run would replace {names} there: choose "
            "another out=FOLDER",
            code="folder-not-a-run",
            folder=place,
            found=foreign,
        )


def _refuse_other_parts(run_dir: Path, parts: dict[str, str]) -> None:
    before = read_parts(run_dir)
    # A run may go on with other validation data, as with another data.split.
    for role in sorted({*before, *parts} - {"val_data"}):
        if before.get(role) != parts.get(role):
            was, now = (names.get(role, "what the config describes") for names in (before, parts))
            raise ConfigError(
                f"{run_dir} holds a run whose {role} is {was}, but now it is {now}: pass the same "
                "part to segtrain.train, or choose another out=FOLDER",
                code="parts-changed",
                part=role,
                expected=before.get(role),
            )


def _packed_alone(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether two runs differ only in how samples are stored: one reads files and the other one
    shards.

    same_data.py compares the samples themselves.
    """
    stored = keys_with("storage")
    before, after = (
        {
            **settings,
            "data": {
                key: value for key, value in settings["data"].items() if f"data.{key}" not in stored
            },
        }
        for settings in (old, new)
    )
    layouts = {old["data"]["layout"], new["data"]["layout"]}
    return before == after and len(layouts) == 2 and "shards" in layouts


def other_layout(config: Config) -> str:
    """The data.layout of the run in ``config.run_dir`` if it differs from that of ``config``, else
    "".
    """
    config_file = config.run_dir / "config.yaml"
    layout = load_saved(config_file).data.layout if config_file.is_file() else config.data.layout
    return layout if layout != config.data.layout else ""


def make_run_dir(config: Config) -> None:
    """Make ``config.run_dir``. Raises ConfigError if that fails."""
    run_dir = config.run_dir
    try:
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(run_dir, error.strerror) from None


def _not_writable(run_dir: Path, reason: str | None) -> ConfigError:
    return ConfigError(
        f"cannot write to the run folder {run_dir}: {reason}: choose another with out=FOLDER",
        code="run-folder-not-writable",
        run=str(run_dir),
        reason=reason,
    )


def prepare_run_dir(config: Config, labels: LabelSpace, parts: dict[str, str]) -> None:
    """Write the run's config, labels and names of the user's parts into its folder. Raises
    CheckpointError.
    """
    run_dir = config.run_dir
    for name in ("best.json", "config.yaml", "labels.json", "images-*.csv"):
        # left by a run that was killed while it wrote
        for partial in run_dir.glob(f".{name}.*.part"):
            partial.unlink(missing_ok=True)
    write_atomically(
        run_dir / "config.yaml", f"{RUN_HEADER}{config.hash}\n{config.to_yaml()}".encode()
    )
    write_atomically(run_dir / "labels.json", json.dumps(labels.to_dict(), indent=1).encode())
    if parts:
        write_atomically(run_dir / PARTS, (json.dumps(parts, indent=1) + "\n").encode())
    else:
        (run_dir / PARTS).unlink(missing_ok=True)
    _keep_plan(run_dir)


def _keep_plan(run_dir: Path) -> None:
    """Copy what a launcher predicted, which came in the package of its bundle. A resumed run keeps
    its first plan.
    """
    carried = Path(segtrain.__file__).with_name(PLAN)
    if carried.is_file() and not (run_dir / PLAN).is_file():
        write_atomically(run_dir / PLAN, carried.read_bytes())


def keep_names(config: Config, splits: dict[str, Dataset]) -> None:
    """Write the names of the images of each split that ``data.split_by`` makes into
    ``splits/SPLIT.txt``.
    """
    folder = config.run_dir / NAMES
    folder.mkdir(exist_ok=True)
    for split in by_rule(config.data):
        dataset = splits.get(split) or open_dataset(config.data, split)
        lines = "".join(f"{entry.meta['name']}\n" for entry in dataset.entries)
        write_atomically(folder / f"{split}.txt", lines.encode(errors="surrogateescape"))


def differences(
    old: dict[str, Any], new: dict[str, Any], suffix: str = "here", prefix: str = ""
) -> list[str]:
    """``optim.lr: 0.1 there, 0.2 here`` for each setting that differs; ``suffix``: the words after
    the second value.
    """
    lines: list[str] = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += differences(before, after, suffix, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key}: {before!r} there, {after!r} {suffix}")
    return lines


def open_run(run_dir: str | Path, overrides: list[str]) -> Config:
    """The config of a run folder, with overrides. Raises SegtrainError if it is not a run
    folder.
    """
    path = Path(run_dir) / "config.yaml"
    if not path.is_file():
        raise SegtrainError(
            f"{run_dir} is not a run folder: it has no config.yaml (segtrain runs DIR lists runs)",
            code="not-a-run-folder",
            found=str(run_dir),
        )
    return load_saved(path, [*overrides, f"out={run_dir}"])
