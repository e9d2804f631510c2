"""Errors for ranks that do not meet or lose each other, and the choice of the reporting rank.
Imports no torch.
"""

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
from pathlib import Path
from typing import Any, NoReturn

from segtrain.errors import EXIT_CODES, RankLost, SegtrainError, one_line
from segtrain.parallel.cluster import Cluster

GUARD_S = 10.0
RESOLVE_UP_S = 3.0  # for clusters whose hosts have all started
RESOLVE_S = 60.0  # for clusters whose host names resolve only once their hosts have started
PAUSE_S = 0.2


def reach_rank_0(cluster: Cluster, timeout_s: float) -> None:
    """Wait until MASTER_ADDR resolves and, on all ranks but 0, until its port accepts connections.

    Raises SegtrainError after ``timeout_s`` seconds. For the name, it waits at most RESOLVE_S
    seconds, or RESOLVE_UP_S if all hosts are up.
    """
    begin = time.monotonic()
    while True:
        try:
            socket.getaddrinfo(cluster.master_addr, cluster.master_port)
            break
        except (OSError, UnicodeError) as error:
            if time.monotonic() - begin >= min(
                timeout_s, RESOLVE_UP_S if cluster.source.hosts_are_up else RESOLVE_S
            ):
                raise _by_each_rank(
                    SegtrainError,
                    f"rank {cluster.rank} cannot resolve MASTER_ADDR={cluster.master_addr} "
                    f"({error}): set it to a name "
                    "or an address of rank 0's host that every host can resolve",
                    "rank-0-not-resolved",
                ) from None
        time.sleep(PAUSE_S)
    while cluster.rank:
        try:
            with socket.create_connection(
                (cluster.master_addr, cluster.master_port), timeout=max(1.0, timeout_s)
            ):
                return
        except OSError as error:
            if time.monotonic() - begin >= timeout_s:
                raise rendezvous_error(cluster, timeout_s, error) from None
        time.sleep(PAUSE_S)


def rendezvous_error(cluster: Cluster, timeout_s: float, error: Exception) -> SegtrainError:
    """The error for ranks that did not all arrive. It quotes one line of ``error``, from torch or
    the system.
    """
    cause = str(error).partition(" Exception raised from")[0]
    cause = next(
        (line.strip() for line in cause.splitlines() if line.strip()), type(error).__name__
    )
    who = f"rank {cluster.rank} of {cluster.world_size}"
    text = (
        f"{who} did not meet the other ranks at {cluster.master_addr}:{cluster.master_port} within "
        f"parallel.timeout_s={timeout_s:g} ({cause[:200]}): start {cluster.world_size} processes "
        "with one WORLD_SIZE, MASTER_ADDR and MASTER_PORT, on hosts that can reach it"
    )
    if cluster.hosts > 1 and "loo" in cause and "GLOO_SOCKET_IFNAME" not in os.environ:
        text += (
            "; gloo takes the address of a host's own name, which may be 127.*: set the "
            "environment variable GLOO_SOCKET_IFNAME to the network interface between the hosts "
            "(ip -br a), or correct /etc/hosts"
        )
    return _by_each_rank(RankLost, text, "ranks-not-met")


def _by_each_rank(kind: type[SegtrainError], text: str, code: str) -> SegtrainError:
    """An error that every rank reports for itself, because a rank cannot know whether others have
    the same error.
    """
    error = kind(text, code=code)
    error.silent = False
    return error


def elect_error_reporter(
    error: SegtrainError | RuntimeError, store: Any, cluster: Cluster
) -> Exception:
    """The error that this rank raises, so that one rank reports what went wrong, and the others end
    silently.

    The first rank that calls this function reports its error. The other ranks call it later, with
    the same error, or with the RuntimeError of torch for a lost connection. Any other RuntimeError
    is returned unchanged.
    """
    if not isinstance(error, SegtrainError):
        reason = one_line(error)
        if not any(
            word in reason for word in ("gloo", "onnection", "NCCL", "SMDDP", "Socket", "socket")
        ):
            return error
        match = re.search(r"connection [a-z ]+|timed? ?out[a-z ]*", reason, re.IGNORECASE)
        lost = RankLost(
            f"rank {cluster.rank} has lost another rank "
            f"({match[0].strip() if match else reason[:160]}): see the output of that rank, and "
            "whether it was killed; the same command continues from the newest checkpoint",
            code="rank-lost",
            rank=cluster.rank,
        )
        # A process that ends closes its connections one by one: wait before asking for its store.
        time.sleep(0.5)
        # Rank 0 had the store, so it has failed, and reported why unless it was killed.
        if not _store_answers(cluster):
            print(lost, file=sys.stderr, flush=True)
            lost.silent = True
            return lost
        error = lost
    try:
        if error.silent is None:
            error.silent = store.add("told", 1) > 1
        store.add("failed", 1)
        end = time.monotonic() + 1
        while (
            cluster.rank == 0
            and time.monotonic() < end
            and store.add("failed", 0) < cluster.world_size
        ):
            # Ranks with the same error now ask the store, which may end with this rank.
            time.sleep(0.02)
    except RuntimeError:
        error.silent = True  # rank 0 has reported its error
    return error


def report_exit(code: int) -> None:
    """Leave an empty file CODE-HOST-PID in the folder that the variable EXIT_CODES names, if a job
    script has set it.

    The job script needs the file, because srun and torchrun return only one exit code for all
    ranks. The code is in the name of the file, because a full disk often still has room for a name.
    """
    folder = os.environ.get(EXIT_CODES)
    if folder:
        with contextlib.suppress(OSError):  # The job script then knows only the exit code of srun.
            Path(folder, f"{code}-{socket.gethostname()}-{os.getpid()}").touch()


def end_now(
    error: BaseException,
    cluster: Cluster,
    abort: Callable[[], None],
    report: Callable[[Exception], int] | None = None,
) -> NoReturn:
    """End this process because of ``error``, without the other ranks: print it, free the GPUs with
    ``abort``, and exit.

    ``report``: prints an error and returns the exit code, in place of this function.

    An ``abort`` that blocks (a collective that never ends, a driver that does not answer) delays
    the end by at most GUARD_S seconds. Only the wait for a checkpoint that is being written may
    take longer.
    """
    code = 1
    if report is not None and isinstance(error, Exception):
        code = report(error)
    elif isinstance(error, SegtrainError):
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
    report_exit(code)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name == "checkpoint":
            thread.join()
    guarded = threading.Thread(target=abort, daemon=True)
    guarded.start()
    guarded.join(GUARD_S)
    os._exit(code)


def _store_answers(cluster: Cluster) -> bool:
    """Whether the store still answers. Asked by a plain socket, because torch's client would print
    a stack trace.
    """
    try:
        with socket.create_connection((cluster.master_addr, cluster.master_port), timeout=5):
            return True
    except OSError:
        return False
