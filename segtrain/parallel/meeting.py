"""Waiting until rank 0 can be reached, and one line where it cannot: torch itself prints pages of C++ frames."""

from __future__ import annotations

import socket
import time

from segtrain.errors import SegtrainError
from segtrain.parallel.cluster import Cluster

RESOLVE_S = 60.0  # for a cluster whose names come up while its hosts start
PAUSE_S = 0.2


def reach_rank_0(cluster: Cluster, timeout_s: float) -> None:
    """Return when MASTER_ADDR has an address and, on the other ranks, its port takes connections.

    Raises SegtrainError after ``timeout_s`` seconds (RESOLVE_S for the name).
    """
    begin = time.monotonic()
    while True:
        try:
            socket.getaddrinfo(cluster.master_addr, cluster.master_port)
            break
        except (OSError, UnicodeError) as error:
            if time.monotonic() - begin >= min(timeout_s, RESOLVE_S):
                raise _told_by_each(
                    f"rank {cluster.rank} cannot resolve MASTER_ADDR={cluster.master_addr} ({error}): set it to a name or an "
                    "address of rank 0's host that every host can resolve"
                ) from None
        time.sleep(PAUSE_S)
    while cluster.rank:
        try:
            with socket.create_connection((cluster.master_addr, cluster.master_port), timeout=max(1.0, timeout_s)):
                return
        except OSError as error:
            if time.monotonic() - begin >= timeout_s:
                raise not_met(cluster, timeout_s, error) from None
        time.sleep(PAUSE_S)


def not_met(cluster: Cluster, timeout_s: float, error: Exception) -> SegtrainError:
    """The error for ranks that did not all come. ``error``: what torch or the system said, of which one line is kept."""
    cause = str(error).partition(" Exception raised from")[0]
    cause = next((line.strip() for line in cause.splitlines() if line.strip()), type(error).__name__)
    return _told_by_each(
        f"rank {cluster.rank} of {cluster.world_size} did not meet the other ranks at "
        f"{cluster.master_addr}:{cluster.master_port} within parallel.timeout_s={timeout_s:g} ({cause[:200]}): check that all "
        f"{cluster.world_size} processes were started with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and that every "
        "host can reach that port"
    )


def _told_by_each(text: str) -> SegtrainError:
    error = SegtrainError(text)
    error.silent = False  # no rank knows which others have met this
    return error
