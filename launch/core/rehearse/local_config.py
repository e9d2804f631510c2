"""Settings to change for a rehearsal: for a small machine without GPUs, and for a short run.

Reads the config of a job, and writes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from launch.core.bundle import all_settings
from launch.core.job import Job, config_file
from segtrain.errors import ConfigError

STEPS = 12  # of a short run: enough for the start, an evaluation, a checkpoint, and the model
MORE = 4  # steps that follow a planted fault


def load(job: Job, data_root: str = "/data") -> Any:
    """The training config of the job, or None if its packages are not installed. Raises ConfigError
    for a bad setting.

    ``data_root``: the place of the data on the machines, if the settings do not name one.
    """
    try:
        from segtrain.config import load_config
    except ImportError:
        return None
    import json

    settings: dict[str, Any] = {**job.settings, "parallel.strategy": job.strategy}
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    if "data.root" not in settings and all_settings(job).get("data.layout", "scenes") != "scenes":
        overrides.append(f"data.root={data_root}")
    return load_config(config_file(job) if job.config else None, overrides)


def shorter(job: Job, until: int = 0) -> dict[str, Any]:
    """A ``train.duration`` for a short rehearsal that goes beyond step ``until``; {} if the job's
    own duration is not longer, or cannot be shortened.
    """
    config, steps = load(job), max(STEPS, until + MORE)
    if config is None:
        return {}
    duration = str(config.train.duration)
    if duration.endswith("st") and float(duration.removesuffix("st")) <= steps:
        return {}
    changes = {"train.duration": f"{steps}st"}
    try:
        load(replace(job, settings={**job.settings, **changes}))
    except ConfigError:  # a warm-up that is longer, for example
        return {}
    return changes


def fitting(config: Any, ranks: int) -> dict[str, Any]:
    """The settings to change so that this config runs on ``ranks`` CPU ranks; {} if it runs
    unchanged.
    """
    changes: dict[str, Any] = {}
    if config is None:
        return changes
    if config.parallel.backend == "nccl":
        changes["parallel.backend"] = "gloo"
    if config.train.device == "cuda":
        changes["train.device"] = "auto"
    if config.train.precision in ("fp16", "tf32"):
        changes["train.precision"] = "fp32"
    unit = ranks * config.train.accumulate
    if config.train.batch_size % unit:
        changes["train.batch_size"] = max(1, config.train.batch_size // unit) * unit
    return changes
