"""Data, from files to batches. ``segtrain.data.loader(config)`` returns batches for any training
loop.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segtrain.data.batches import BatchLoader

    loader = BatchLoader


def __getattr__(name: str) -> Any:
    if name == "loader":
        return import_module("segtrain.data.batches").BatchLoader
    raise AttributeError(f"module 'segtrain.data' has no attribute {name!r}")
