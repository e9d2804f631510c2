"""Loading with a pool of helpers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from batch_bytes import content, kept
from helper_hosts import Hosts

from segtrain.config import Data
from segtrain.data.train_loader import TrainLoader
from segtrain.platforms.ray.helpers import balance, manager, remote_helper
from segtrain.platforms.ray.helpers.pool import HelpedPool

STEPS = 8


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "LOOK_S", 0.05)
    monkeypatch.setattr(remote_helper, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(remote_helper, "LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(balance, "WORTH", 1e9)  # these samples are cheap to make


def load(
    data: Data, source: Any, pool: HelpedPool | None = None, pause: float = 0.0, **settings: Any
) -> list[bytes]:
    options = {"seed": 3, "batch_size": 12, "last_step": STEPS, "prefetch": 3, **settings}
    steps = []
    with TrainLoader(source, data, pool=pool, **options) as loader:
        for step in loader:
            steps += kept([step])
            time.sleep(pause)
    return content(steps)


def pool_of(
    engine: Hosts,
    said: list[str] | None = None,
    notes: list[dict[str, Any]] | None = None,
    **settings: Any,
) -> HelpedPool:
    def note(**fields: Any) -> None:
        if notes is not None:
            notes.append(fields)

    return HelpedPool(
        1, "thread", engine, say=(said if said is not None else []).append, note=note, **settings
    )
