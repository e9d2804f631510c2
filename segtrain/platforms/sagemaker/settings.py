"""Settings of a training job, read from the files that SageMaker puts into the container. Writes
nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segtrain.errors import ConfigError
from segtrain.platforms.process import config_path
from segtrain.platforms.sagemaker.hosts import base_folder, decoded

if TYPE_CHECKING:
    from segtrain.config import Config

CHANNEL = "train"
TUNED = "_tuning_objective_metric"  # a hyperparameter that only the jobs of a tuning job have
# channels for code instead of data, which version 3 of the SageMaker SDK adds
_NO_DATA = ("code", "sm_drivers")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file. Raises ConfigError if it cannot be
    read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        message = f"cannot read {path}: {error}: SageMaker writes it, so start the job again"
        raise ConfigError(message, code="job-file-unreadable", file=str(path)) from None
    return content


def read_settings(base: Path) -> tuple[str | None, dict[str, str]]:
    """The config file of the job, and its other settings: dotted key -> text as on the command
    line.
    """
    config, settings = None, {}
    for key, text in read_json(base / "input/config/hyperparameters.json").items():
        value = decoded(text)
        # for the toolkit, a tuning job, or helping hosts
        if key.startswith(("sagemaker_", "_", "helpers.")):
            continue
        if key == "config":
            config = str(value) or None
        else:
            # A value without quotes (True, 1e-3) is read as on the command line; a quoted value
            # stays a text.
            settings[key] = str(text) if value is text else json.dumps(value)
    return config, settings


def channel(base: Path, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the training data: the channel "train", else the only channel; None if the job
    has no data.
    """
    if environ.get("SM_CHANNEL_TRAIN"):
        return Path(environ["SM_CHANNEL_TRAIN"])
    data = base / "input/data"
    if (data / CHANNEL).is_dir():
        return data / CHANNEL
    there = sorted(path.name for path in data.iterdir() if path.is_dir()) if data.is_dir() else []
    names = [
        name
        for name in read_json(base / "input/config/inputdataconfig.json") or there
        if name not in _NO_DATA
    ]
    if len(names) > 1:
        message = (
            f"of the channels {', '.join(names)}, none is called {CHANNEL!r}: rename one, "
            "or set data.root=FOLDER"
        )
        raise ConfigError(message, code="several-channels", found=names)
    return data / names[0] if names else None


def run_folder(base: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The run folder: the checkpoint folder that SageMaker copies to S3, if the job has one, or a
    local folder.

    All jobs of a tuning job share the checkpoint folder, so each uses a subfolder with its own
    name.
    """
    copied = read_json(base / "input/config/checkpointconfig.json")
    if not copied and not (base / "checkpoints").is_dir():
        return base / "output/data/run"
    folder = Path(str(copied.get("LocalPath") or "/opt/ml/checkpoints"))
    folder = base / folder.relative_to("/opt/ml") if folder.is_relative_to("/opt/ml") else folder
    tuned = TUNED in read_json(base / "input/config/hyperparameters.json")
    return folder / environ.get("TRAINING_JOB_NAME", "trial") if tuned else folder


def resolve(
    environ: Mapping[str, str] = os.environ, folders: tuple[Path, ...] = ()
) -> tuple[Config, list[str]]:
    """The settings of this job, and remarks about them. ``folders``: where its config file may be.

    ``data.root`` is the folder of the channel, or a folder in it if the job sets a relative path.
    An absolute path or a bucket stays unchanged.
    """
    import yaml

    from segtrain.bucket import is_bucket
    from segtrain.config import load_config, load_yaml

    base = base_folder(environ)
    name, settings = read_settings(base)
    path = config_path(name, folders or (Path.cwd(),)) if name else None
    try:
        written = (load_yaml(path.read_text(encoding="utf-8")) or {}) if path else {}
    except yaml.YAMLError:
        written = {}  # load_config reports it.
    section = written.get("data") if isinstance(written, dict) else None
    layout = decoded(settings.get("data.layout")) or (section or {}).get("layout", "scenes")
    remarks = []
    root = str(decoded(settings.get("data.root", "")))
    data = None if Path(root).is_absolute() or is_bucket(root) else channel(base, environ)
    if data is not None and layout == "scenes":
        remarks.append(
            f"data.layout=scenes draws its own images, and {data} is not used: set data.layout "
            "to use it"
        )
    elif data is not None:
        settings["data.root"] = json.dumps(str(data / root))
    settings.setdefault("out", json.dumps(str(run_folder(base, environ))))
    return load_config(path, [f"{key}={text}" for key, text in settings.items()]), remarks
