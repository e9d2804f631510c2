"""Uses of the rendezvous store: a board for the ranks' positions when a collective hangs, and a
wait for rank 0.

The process group's own client of the store may be blocked by the call that hangs, so the board has
its own client, used only by the watchdog's thread, and only as often as the watchdog looks.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from segtrain.base.repeating import repeating
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.places import answered

ANSWER_S = 10.0
BEAT_S = 5.0  # between two signs of life of rank 0 while it works alone
# least silence after which rank 0 counts as lost, even if parallel.timeout_s is shorter
SILENT_S = 60.0


class Board:
    """Notices of the ranks of a job, by ``number`` of the alarm. Methods raise RuntimeError if the
    store is gone.
    """

    def __init__(self, store: Any, world_size: int) -> None:
        # A launcher that restarts ranks keeps its store. The prefix separates the notices of
        # different attempts.
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
        """The notices so far, by rank. Only existing notices are read, because ``get`` waits for a
        missing key.
        """
        ranks = [
            rank
            for rank in range(self._world)
            if self._store.add(f"{self._prefix}/{number}/{rank}", 0)
        ]
        return {
            rank: self._store.get(f"{self._prefix}/{number}/{rank}/text").decode() for rank in ranks
        }


def await_rank_0(store: Any, key: str, rank: int, silent_s: float) -> None:
    """Wait until rank 0 adds ``key`` to the store, however long rank 0 is ``at_work`` before. Each
    wait has a new key.

    Unlike a collective, this wait has no timeout while rank 0 gives signs of life, keeps no GPU
    busy, and lets signal handlers run. Raises RuntimeError if the store is gone, and rank 0 with
    it. If another process keeps the store, or its host has vanished, raises RuntimeError after
    ``silent_s`` seconds (at least SILENT_S) without a sign of life.
    """
    if rank == 0:
        store.add(key, 1)
        return
    pause = 0.005
    signs = 0
    since = time.monotonic()
    silent_s = max(silent_s, SILENT_S)
    try:
        while not _counter(store, key, silent_s):
            time.sleep(pause)
            pause = min(0.5, 1.5 * pause)
            now = _counter(store, f"{key}/alive", silent_s)
            if now != signs:
                signs, since = now, time.monotonic()
            elif time.monotonic() - since > silent_s:
                raise TimeoutError
    except TimeoutError:
        raise RuntimeError(
            f"rank 0 did not respond for {silent_s:g} s: connection timed out"
        ) from None
    except RuntimeError as error:
        raise RuntimeError(
            f"connection closed by rank 0, which keeps the store: {error}"
        ) from error


def _counter(store: Any, key: str, limit_s: float) -> int:
    """The number at ``key``. Raises TimeoutError if the store does not answer within ``limit_s``
    seconds.

    If the host of the store has vanished, torch waits until the kernel gives up the connection: 15
    minutes or more.
    """
    return int(answered(lambda: store.add(key, 0), limit_s))


@contextlib.contextmanager
def at_work(store: Any, key: str) -> Iterator[None]:
    """Context in which rank 0 gives signs of life to the ranks that wait for ``key``."""

    def beat() -> None:
        # If the store is gone, the waiting ranks are gone too. If it was only slow, the next sign
        # comes in time.
        with contextlib.suppress(RuntimeError):
            store.add(f"{key}/alive", 1)

    with repeating(beat, BEAT_S, "rank-0-at-work"):
        yield


def open_board(cluster: Cluster) -> Board | None:
    """The board in the store of the rendezvous; None for a job of one rank, or if no store
    answers.
    """
    if cluster.world_size == 1:
        return None
    try:
        limit = timedelta(seconds=ANSWER_S)
        store = dist.TCPStore(
            cluster.master_addr, cluster.master_port, timeout=limit, wait_for_workers=False
        )
    except (RuntimeError, ValueError):
        return None
    return Board(store, cluster.world_size)
