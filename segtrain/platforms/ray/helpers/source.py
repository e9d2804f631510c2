"""Helpers of a run, as the session and the loop use them: those of ``data.helpers=ray``, and of
``ray-data``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segtrain.base.terminal import Say
from segtrain.config import Data
from segtrain.data.train_loader import TrainLoader
from segtrain.data.workers.pool import WorkerPool
from segtrain.platforms.ray.helpers.cluster import RayEngine, join_ray
from segtrain.platforms.ray.helpers.pool import HelpedPool
from segtrain.platforms.ray.helpers.raydata import START, RayDataLoader
from segtrain.training.provided import Helpers, OnRank0


class RayHelpers:
    """Helpers that get single samples from the queue of the local workers."""

    def __init__(self, engine: RayEngine, limit_s: float) -> None:
        self._engine, self._limit_s = engine, limit_s

    def pool(self, count: int, kind: str, say: Say, note: Callable[..., None]) -> WorkerPool:
        return HelpedPool(count, kind, self._engine, limit_s=self._limit_s, say=say, note=note)

    def loader(self, say: Say, on_rank_0: OnRank0, *args: Any, **settings: Any) -> TrainLoader:
        return TrainLoader(*args, **settings)


class RayDataHelpers:
    """Ray Data makes all samples of training; the local workers copy them into batches."""

    def pool(self, count: int, kind: str, say: Say, note: Callable[..., None]) -> WorkerPool:
        return WorkerPool(count, kind)

    def loader(self, say: Say, on_rank_0: OnRank0, *args: Any, **settings: Any) -> TrainLoader:
        say(START)
        return RayDataLoader(*args, on_rank_0=on_rank_0, **settings)


def open_helpers(data: Data, rank: int, world: int) -> Helpers:
    """Join the Ray cluster. Raises MissingExtra without ray, ConfigError if no cluster answers."""
    joined = join_ray(data.helpers)
    if data.helpers == "ray-data":
        return RayDataHelpers()
    return RayHelpers(RayEngine(data, rank, world, joined), data.helper_timeout_s)
