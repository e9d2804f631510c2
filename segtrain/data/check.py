"""`segtrain data check`: which layout is this folder, and what is wrong with it?"""

from __future__ import annotations

from segtrain.config import load_config
from segtrain.data.audit import AuditReport, audit
from segtrain.data.datasets import open_dataset
from segtrain.data.detect import detect


def check_folder(root: str, splits: list[str] | None, overrides: list[str]) -> list[AuditReport]:
    """Audit each split (None: all that the folder holds). ``overrides`` (data.layout=..., data.classes=...) beat what is found.

    Raises DataError for a folder of no known layout, ConfigError for a wrong override.
    """
    if any(override.lstrip("-").startswith("data.layout") for override in overrides):
        data = load_config(None, [*overrides, f"data.root={root}"]).data
        found: tuple[str, ...] = tuple(dict.fromkeys((data.train_split, data.split)))
    else:
        detected, found = detect(root)
        settings = detected.model_dump(exclude_unset=True, exclude={"root"})
        data = load_config(
            None, [f"data.root={root}", *(f"data.{k}={v}" for k, v in settings.items()), *overrides]
        ).data
    return [audit(open_dataset(data, split)) for split in splits or found]
