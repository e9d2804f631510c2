"""How do ranks tell each other where they stand while a collective hangs? Through the store in which they met, by a line of their own.

A process group's own client of the store may be held by the very call that hangs; this one serves the watchdog's thread alone. Nothing
here is asked more often than the watchdog looks.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from segtrain.parallel.cluster import Cluster

ANSWER_S = 10.0


class Board:
    """Notices of one job. ``number`` counts its alarms: each has notices of its own. Raises RuntimeError when the store is gone."""

    def __init__(self, store: Any, world_size: int) -> None:
        # A launcher that starts ranks again keeps its store: what an attempt left there is not for the next one.
        self._prefix = f"segtrain/hang/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._store, self._world = store, world_size

    def raise_alarm(self, number: int) -> None:
        self._store.add(f"{self._prefix}/{number}/raised", 1)

    def is_raised(self, number: int) -> bool:
        return bool(self._store.add(f"{self._prefix}/{number}/raised", 0))

    def post(self, number: int, rank: int, text: str) -> None:
        self._store.set(f"{self._prefix}/{number}/{rank}/text", text)
        self._store.add(f"{self._prefix}/{number}/{rank}", 1)

    def posted(self, number: int) -> dict[int, str]:
        """Notices so far, by rank. Asking for one that is not there would wait for it."""
        there = [rank for rank in range(self._world) if self._store.add(f"{self._prefix}/{number}/{rank}", 0)]
        return {rank: self._store.get(f"{self._prefix}/{number}/{rank}/text").decode() for rank in there}


def open_board(cluster: Cluster) -> Board | None:
    """None for a rank that is alone, and where the ranks met in no store that answers."""
    if cluster.world_size == 1:
        return None
    try:
        store = dist.TCPStore(
            cluster.master_addr,
            cluster.master_port,
            None,
            False,
            timedelta(seconds=ANSWER_S),
            wait_for_workers=False,
        )
    except (RuntimeError, ValueError):
        return None
    return Board(store, cluster.world_size)
