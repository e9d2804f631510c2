"""A board on which ranks post where they stand while a collective hangs, in the store in which they met.

A process group's own client of the store may be held by the very call that hangs; this one serves the watchdog's thread
alone. Nothing here is asked more often than the watchdog looks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from segtrain.parallel.cluster import Cluster

ANSWER_S = 10.0
BEAT_S = 5.0  # between two signs of life of a rank 0 that works alone
SILENT_S = 60.0  # without one it is not given up, however short parallel.timeout_s is


class Board:
    """Notices of one job, by the ``number`` of its alarm. Raises RuntimeError without the store."""

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


def await_rank_0(store: Any, key: str, rank: int, silent_s: float) -> None:
    """Wait until rank 0 adds ``key`` (another one each time) to the store, however long it is ``at_work`` before.

    Unlike a collective this ends with no timeout, keeps no GPU busy, and hears signals. Raises RuntimeError when the
    store is gone, and rank 0 with it, or where another process keeps the store when rank 0 gave no sign of life for
    ``silent_s`` seconds (at least SILENT_S).
    """
    if rank == 0:
        store.add(key, 1)
        return
    pause, signs, since, silent_s = 0.005, 0, time.monotonic(), max(silent_s, SILENT_S)
    try:
        while not store.add(key, 0):
            time.sleep(pause)
            pause = min(0.5, 1.5 * pause)
            now = store.add(f"{key}/alive", 0)
            if now != signs:
                signs, since = now, time.monotonic()
            elif time.monotonic() - since > silent_s:
                break
        else:
            return
    except RuntimeError as error:
        raise RuntimeError(f"connection closed by rank 0, which keeps the store: {error}") from error
    raise RuntimeError(f"rank 0 did not respond for {silent_s:g} s: connection timed out")


@contextlib.contextmanager
def at_work(store: Any, key: str) -> Iterator[None]:
    """Rank 0 gives signs of life to those that wait for ``key``, for as long as the context lasts."""
    done = threading.Event()

    def beat() -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone: so are those that wait
            while not done.wait(BEAT_S):
                store.add(f"{key}/alive", 1)

    thread = threading.Thread(target=beat, name="rank-0-at-work", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def open_board(cluster: Cluster) -> Board | None:
    """None for a rank that is alone, and where the ranks met in no store that answers."""
    if cluster.world_size == 1:
        return None
    try:
        limit = timedelta(seconds=ANSWER_S)
        store = dist.TCPStore(cluster.master_addr, cluster.master_port, timeout=limit, wait_for_workers=False)
    except (RuntimeError, ValueError):
        return None
    return Board(store, cluster.world_size)
