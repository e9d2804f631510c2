"""The places of the ranks: each tells the others its host and its GPUs, and learns its place.
Imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from segtrain.base import stopping
from segtrain.parallel.cluster import Cluster

READ_S = 5.0
CHECK_S = 0.2
BOOT = Path("/proc/sys/kernel/random/boot_id")

T = TypeVar("T")


@dataclass(frozen=True)
class RankPlace:
    """What a rank tells the others. ``local_rank``: None if unknown. ``gpus``: an id of each GPU
    that it sees.
    """

    host_id: str
    local_rank: int | None
    gpus: list[str]


def host_id() -> str:
    """A name of this host that no other host has. Hosts may have one name, and containers of a host
    one kernel.
    """
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {BOOT.read_text().strip()}"
    return socket.gethostname()


def answered(call: Callable[[], T], limit_s: float) -> T:
    """What ``call`` returns or raises. Raises TimeoutError after ``limit_s`` seconds.

    ``call`` runs in a thread of its own, because torch's store waits for the first answer of a
    server without a limit, and because the handlers of signals run only while the main thread waits
    in Python.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="await-answer", daemon=True).start()
    end = time.monotonic() + limit_s
    while not wait([outcome], CHECK_S).done:
        if stopping.rank_ended.is_set():
            raise TimeoutError("another rank has ended: see its output above")
        if time.monotonic() >= end:
            raise TimeoutError("no answer")
    return outcome.result()


def exchange(store: Any, cluster: Cluster, row: RankPlace) -> list[RankPlace]:
    """The rows of all ranks, in the order of ranks. ``store``: one that this call alone uses."""
    store.set(str(cluster.rank), json.dumps(vars(row)))
    if cluster.rank == 0:
        rows = [json.loads(store.get(str(rank))) for rank in range(cluster.world_size)]
        store.set("all", json.dumps(rows))
    rows = json.loads(store.get("all"))
    store.add("read", 1)
    end = time.monotonic() + READ_S
    while (
        cluster.rank == 0 and store.add("read", 0) < cluster.world_size and time.monotonic() < end
    ):
        # Let the others read the rows before an error that they cause ends the store with this
        # rank.
        time.sleep(0.02)
    return [RankPlace(**row) for row in rows]


def local_ranks(rows: list[RankPlace]) -> list[int]:
    """Of each rank: what its launcher says, else its number among the ranks of its host."""
    hosts = [row.host_id for row in rows]
    return [
        hosts[:rank].count(row.host_id) if row.local_rank is None else row.local_rank
        for rank, row in enumerate(rows)
    ]


def placed(cluster: Cluster, rows: list[RankPlace]) -> Cluster:
    """``cluster`` with its hosts, and with its local rank and size if the launcher has not said
    them.
    """
    local, rank = local_ranks(rows), cluster.rank
    local_world_size = cluster.local_world_size or sum(
        row.host_id == rows[rank].host_id for row in rows
    )
    hosts, host = max(1, local.count(0)), local[:rank].count(0)
    return replace(
        cluster, local_rank=local[rank], local_world_size=local_world_size, hosts=hosts, host=host
    )
