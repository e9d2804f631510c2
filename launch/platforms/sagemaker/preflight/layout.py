"""Check that the S3 keys of a channel have the folders that the config's data.layout needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from launch.core.findings import Finding, warning
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.job_parts import Channel
from launch.platforms.sagemaker.request import CHANNELS, data_place, settings
from segtrain.errors import ConfigError


def layout_checks(job: SageMakerJob, channel: Channel, keys: Sequence[str]) -> Iterator[Finding]:
    """``keys``: all S3 keys below the channel's prefix, relative to it."""
    config = _config(job)
    if config is None or not keys:
        return
    place = f"{CHANNELS}/{channel.name}"
    if f"{config.data.root}/".startswith(f"{place}/"):
        inner = f"{config.data.root}/".removeprefix(f"{place}/").lstrip("/")
        yield from _compare(channel, keys, inner, config.data)


def _config(job: SageMakerJob) -> Any:
    """The training config of the job. None if it is invalid or packages are missing (other checks report that)."""
    from launch.core.rehearse.fit import load

    try:
        return load(replace(job, settings=settings(job)), data_place(job))
    except ConfigError:
        return None


def _compare(channel: Channel, keys: Sequence[str], inner: str, data: Any) -> Iterator[Finding]:
    needed = expected(data)
    missing = [start for start in needed if not any(key.startswith(inner + start) for key in keys)]
    if not missing:
        return
    where = f"data.{channel.name}={channel.uri!r}"
    there = ", ".join(dict.fromkeys(_top(key) for key in keys))
    yield warning(
        "data-layout",
        f"{where}: data.layout={data.layout} reads {', '.join(inner + start for start in needed)}, and nothing "
        f"begins with {', '.join(inner + start for start in missing)}; there is {_short(there)}",
        "--data of the folder that holds them, or data.layout and its folders as the data are",
    )


def expected(data: Any) -> list[str]:
    """The prefixes that the layout needs: at least one key must begin with each."""
    from segtrain.data.index.layouts import LAYOUTS

    # With split_by, the validation images are taken out of the training images: there is no folder for data.split.
    splits = list(dict.fromkeys((data.train_split, *([] if data.split_by.on else [data.split]))))
    return LAYOUTS[data.layout].needed(data, splits)


def _top(key: str) -> str:
    first, slash, _ = key.partition("/")
    return first + slash


def _short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
