"""When a rank fails, which one says so? One error for the job, from the rank that knows, and an end of all of them. Imports no torch."""

from __future__ import annotations

import re
import socket
import sys
import time
from typing import Any

from segtrain.errors import SegtrainError
from segtrain.parallel.cluster import Cluster


def one_voice(error: SegtrainError | RuntimeError, store: Any, cluster: Cluster) -> Exception:
    """What this rank shall raise, so that one rank of the job says what went wrong, and the others end without an error.

    The first rank that comes here speaks. The others meet the same error, or miss the one that is gone, which is a
    RuntimeError of torch's: they come here in their turn. Any other RuntimeError is returned as it is.
    """
    if not isinstance(error, SegtrainError):
        reason = " ".join(str(error).split())
        if not any(word in reason for word in ("gloo", "onnection", "NCCL", "SMDDP", "Socket", "socket")):
            return error
        found = re.search(r"connection [a-z ]+|timed? ?out[a-z ]*", reason, re.IGNORECASE)
        lost = SegtrainError(
            f"rank {cluster.rank} has lost another rank ({found[0].strip() if found else reason[:160]}): see that one's "
            "output, and whether it was killed; the same command goes on from the newest checkpoint"
        )
        time.sleep(0.5)  # a process that ends closes its connections one after the other
        if not _is_there(cluster):  # rank 0 keeps the store: it is the one, and had its say unless it was killed
            print(lost, file=sys.stderr, flush=True)
            lost.silent = True
            return lost
        error = lost
    try:
        if error.silent is None:
            error.silent = store.add("segtrain/told", 1) > 1
        store.add("segtrain/failed", 1)
        end = time.monotonic() + 1
        while cluster.rank == 0 and time.monotonic() < end and store.add("segtrain/failed", 0) < cluster.world_size:
            time.sleep(0.02)  # those that meet the same error come now, and ask the store, which may end with this rank
    except RuntimeError:
        error.silent = True  # rank 0 had its say
    return error


def _is_there(cluster: Cluster) -> bool:
    """Whether the store still answers. torch's own client would print a stack when it does not."""
    try:
        with socket.create_connection((cluster.master_addr, cluster.master_port), timeout=5):
            return True
    except OSError:
        return False
