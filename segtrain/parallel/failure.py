"""Ranks that do not meet or lose one: one error per job, from the rank that knows the cause. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from segtrain.errors import SegtrainError
from segtrain.parallel.cluster import Cluster

GUARD_S = 10.0
RESOLVE_S = 60.0  # for a cluster whose names come up while its hosts start
PAUSE_S = 0.2


def reach_rank_0(cluster: Cluster, timeout_s: float) -> None:
    """Return when MASTER_ADDR resolves and, on the other ranks, its port takes connections.

    Raises SegtrainError after ``timeout_s`` seconds (RESOLVE_S for the name).
    """
    begin = time.monotonic()
    while True:
        try:
            socket.getaddrinfo(cluster.master_addr, cluster.master_port)
            break
        except (OSError, UnicodeError) as error:
            if time.monotonic() - begin >= min(timeout_s, RESOLVE_S):
                raise _by_each_rank(
                    f"rank {cluster.rank} cannot resolve MASTER_ADDR={cluster.master_addr} ({error}): set it to a name "
                    "or an address of rank 0's host that every host can resolve", "rank-0-not-resolved",
                ) from None  # fmt: skip
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
    """The error for ranks that did not all come. ``error``: that of torch or of the system; one line of it is kept."""
    cause = str(error).partition(" Exception raised from")[0]
    cause = next((line.strip() for line in cause.splitlines() if line.strip()), type(error).__name__)
    return _by_each_rank(
        f"rank {cluster.rank} of {cluster.world_size} did not meet the other ranks at "
        f"{cluster.master_addr}:{cluster.master_port} within parallel.timeout_s={timeout_s:g} ({cause[:200]}): start "
        f"{cluster.world_size} processes with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT, on hosts that reach it",
        "ranks-not-met",
    )  # fmt: skip


def _by_each_rank(text: str, code: str) -> SegtrainError:
    """An error that every rank reports: no rank knows which others have met it."""
    error = SegtrainError(text, code=code)
    error.silent = False
    return error


def elect_error_reporter(error: SegtrainError | RuntimeError, store: Any, cluster: Cluster) -> Exception:
    """What this rank raises, so that one rank says what went wrong, and the others end without an error.

    The first rank that comes here speaks. The others meet the same error, or miss the one that is gone, which is a
    RuntimeError of torch's: they come here in their turn. Any other RuntimeError is returned as it is.
    """
    if not isinstance(error, SegtrainError):
        reason = " ".join(str(error).split())
        if not any(word in reason for word in ("gloo", "onnection", "NCCL", "SMDDP", "Socket", "socket")):
            return error
        found = re.search(r"connection [a-z ]+|timed? ?out[a-z ]*", reason, re.IGNORECASE)
        lost = SegtrainError(
            f"rank {cluster.rank} has lost another rank ({found[0].strip() if found else reason[:160]}): see the "
            "output of that rank, and whether it was killed; the same command continues from the newest checkpoint",
            code="rank-lost", rank=cluster.rank,
        )  # fmt: skip
        time.sleep(0.5)  # a process that ends closes its connections one after the other
        if not _is_there(cluster):  # rank 0 keeps the store: it has failed, and reported its error unless it was killed
            print(lost, file=sys.stderr, flush=True)
            lost.silent = True
            return lost
        error = lost
    try:
        if error.silent is None:
            error.silent = store.add("told", 1) > 1
        store.add("failed", 1)
        end = time.monotonic() + 1
        while cluster.rank == 0 and time.monotonic() < end and store.add("failed", 0) < cluster.world_size:
            time.sleep(0.02)  # those that meet the same error come now, and ask the store, which may end with this rank
    except RuntimeError:
        error.silent = True  # rank 0 has reported its error
    return error


def end_now(error: BaseException, cluster: Cluster, abort: Callable[[], None]) -> NoReturn:
    """End this process for ``error`` without the other ranks: say it, let go of the GPUs with ``abort``, exit.

    What blocks on the way (a collective that never ends, a driver that does not answer) holds it up for GUARD_S at
    most. Only a checkpoint that is being written may take longer.
    """
    code = 1
    if isinstance(error, SegtrainError):
        code = error.exit_code
        if not error.silent and (error.silent is False or cluster.local_rank == 0):
            print(f"error: {error}", file=sys.stderr)
    elif isinstance(error, KeyboardInterrupt):
        code = 130
        print("interrupted", file=sys.stderr)
    elif isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        traceback.print_exception(type(error), error, error.__traceback__)
    with contextlib.suppress(OSError, ValueError):  # an output that is closed or full
        sys.stderr.flush()
        sys.stdout.flush()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name == "checkpoint":
            thread.join()
    guarded = threading.Thread(target=abort, daemon=True)
    guarded.start()
    guarded.join(GUARD_S)
    os._exit(code)


def _is_there(cluster: Cluster) -> bool:
    """Whether the store still answers. torch's own client would print a stack when it does not."""
    try:
        with socket.create_connection((cluster.master_addr, cluster.master_port), timeout=5):
            return True
    except OSError:
        return False
