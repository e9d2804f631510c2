"""`segtrain data pack`: the splits of a folder, packed with the chosen options, and measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from segtrain.data.audit.check import settings_of
from segtrain.data.datasets import open_dataset
from segtrain.data.shards.pack import pack
from segtrain.data.shards.pack_estimate import estimate
from segtrain.data.shards.pack_sample import Form, Packing
from segtrain.errors import ConfigError


def pack_folder(
    root: str,
    folder: str,
    splits: list[str] | None,
    overrides: list[str],
    *,
    image: Form = "keep",
    quality: int = 95,
    cap: int = 0,
    shard_mb: float = 256,
    workers: int = 0,
    skip_faults: bool = False,
    only_estimate: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Pack each split (None: all splits of ``root``) into ``folder``, unless ``only_estimate``; measure each form.

    Returns plain values by split. Raises DataError, ConfigError.
    """
    for name, value, least, most in (
        ("--quality", quality, 1, 100),
        ("--cap", cap, 0, 1 << 16),
        ("--shard-mb", shard_mb, 0.001, 1 << 20),
        ("--workers", workers, 0, 256),
    ):
        if not least <= value <= most:
            raise ConfigError(
                f"{name} {value}: give a number from {least} to {most}",
                code="number-out-of-range", key=name, found=value, expected=(least, most),
            )  # fmt: skip
    data, found = settings_of(root, overrides)
    choice = Packing(image, quality, cap)
    workers = workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    datasets = [open_dataset(data, split) for split in splits or found]  # opened before the first byte is written
    result: dict[str, Any] = {}
    for dataset in datasets:
        for note in dataset.notes:
            say(note)
        result[dataset.split] = {}
        if not only_estimate:
            done = pack(
                dataset, folder, choice, shard_mb=shard_mb, workers=workers, skip_faults=skip_faults, say=say
            )  # fmt: skip
            say(done.text())
            result[dataset.split]["packed"] = vars(done)
        measured = estimate(dataset, data, choice, workers, skip_faults)
        say(measured.text())
        result[dataset.split]["estimate"] = measured.to_dict()
    return result
