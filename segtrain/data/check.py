"""`segtrain data check`: which layout is this folder, and what is wrong with it?"""

from __future__ import annotations

from dataclasses import replace

from segtrain.config import Data, load_config
from segtrain.data.audit import AuditReport, audit
from segtrain.data.datasets import open_dataset
from segtrain.data.detect import detect
from segtrain.data.shards.reader import ShardDataset


def check_folder(root: str, splits: list[str] | None, overrides: list[str]) -> list[AuditReport]:
    """Audit each split (None: all that the folder holds); of shards the checksums too. Raises what ``settings_of`` raises."""
    data, found = settings_of(root, overrides)
    reports = []
    for split in splits or found:
        dataset = open_dataset(data, split)
        report = audit(dataset)
        faults = report.faults + (dataset.verify() if isinstance(dataset, ShardDataset) else ())
        reports.append(replace(report, faults=faults, notes=(*dataset.notes, *report.notes)))
    return reports


def settings_of(root: str, overrides: list[str]) -> tuple[Data, tuple[str, ...]]:
    """What is known of a folder, and its splits. ``overrides`` (data.layout=..., data.classes=...) beat what is found.

    Raises DataError for a folder of no known layout, ConfigError for a wrong override.
    """
    if any(override.lstrip("-").startswith("data.layout") for override in overrides):
        data = load_config(None, [*overrides, f"data.root={root}"]).data
        return data, tuple(dict.fromkeys((data.train_split, data.split)))
    detected, found = detect(root)
    settings = detected.model_dump(exclude_unset=True, exclude={"root"})
    data = load_config(None, [f"data.root={root}", *(f"data.{k}={v}" for k, v in settings.items()), *overrides]).data
    return data, found
