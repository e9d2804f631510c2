"""Settings that a small machine without GPUs, or a short look, needs to be different.

Reads the config of a job; changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from launch.job import Job, config_file
from segtrain.errors import ConfigError

STEPS = 12  # default: enough for the start, an evaluation, a checkpoint, and the model
MORE = 4  # steps after a planted fault


def load(job: Job, data_root: str = "/data") -> Any:
    """segtrain's own config of the job, or None where its packages are absent. Raises ConfigError for a bad setting.

    ``data_root``: where the machines have the data, for a config that does not say it.
    """
    try:
        from segtrain.config import load_config
    except ImportError:
        return None
    import json

    settings: dict[str, Any] = {**job.settings, "parallel.strategy": job.strategy}
    layout = settings.get("data.layout")
    path = config_file(job) if job.config else None
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    if "data.root" not in settings and (layout or _layout(path)) not in (None, "scenes"):
        overrides.append(f"data.root={data_root}")
    return load_config(path, overrides)


def shorter(job: Job, until: int = 0) -> dict[str, Any]:
    """``train.duration`` for a short look, past step ``until``; {} where the job trains no longer than that, or cannot
    be cut.
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


def _layout(path: Any) -> str | None:
    import yaml

    try:
        written = yaml.safe_load(path.read_text(encoding="utf-8")) if path else None
    except (OSError, yaml.YAMLError):
        return None  # load_config says it better
    section = written.get("data") if isinstance(written, dict) else None
    return section.get("layout") if isinstance(section, dict) else None


def fitting(config: Any, ranks: int) -> dict[str, Any]:
    """Settings that let this config run on ``ranks`` CPU ranks; {} where it can as it is."""
    changes: dict[str, Any] = {}
    if config is None:
        return changes
    if config.parallel.backend == "nccl":
        changes["parallel.backend"] = "gloo"
    if config.train.device == "cuda":
        changes["train.device"] = "auto"
    if config.train.precision == "fp16":
        changes["train.precision"] = "fp32"
    unit = ranks * config.train.accumulate
    if config.train.batch_size % unit:
        changes["train.batch_size"] = max(1, config.train.batch_size // unit) * unit
    return changes
