"""The ranks of one host of a job: started together, signaled, watched to their end, and judged by
their exit codes.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from segtrain.base.stopping import UPLOADING
from segtrain.base.terminal import Say
from segtrain.errors import EXIT_RANK_LOST, EXIT_RESUMABLE
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.spawn import dying_with_parent
from segtrain.platforms.vertex.rounds import News

GRACE_S = 20.0  # for the other ranks to end by themselves after one has failed
LOST_S = 10.0  # for all ranks to end by themselves after another host was lost
# for a rank that saves its state or uploads it: rank 0 may need this long after the others' end
SAVE_S = 600.0
_PAUSE_S = 0.1
# Exit codes of a rank that has lost another one. If the main thread does not notice that first, a
# thread of torch ends the process by SIGABRT as soon as NCCL reports that a peer is gone.
_LOST_CODES = (EXIT_RANK_LOST, 128 + signal.SIGABRT)


@dataclass(frozen=True)
class Ending:
    """How the ranks of this host ended.

    ``early``: the reason why another host made them end early, or "". ``cause``: whether a rank of
    this host failed by itself, and not because another rank was lost.
    """

    code: int
    early: str = ""
    cause: bool = False


def run(
    command: Sequence[str],
    first: Cluster,
    received: list[int],
    say: Say,
    heard: Callable[[], News | None] = lambda: None,
) -> Ending:
    """Run ``command`` once for each rank of this host. ``first`` is the first of these ranks.

    Each signal in ``received`` is passed on to the ranks as SIGTERM. ``heard`` is called
    repeatedly; when it returns news of the other hosts, the ranks get LOST_S seconds to end, or
    SAVE_S if they may be saving their state. After a rank of this host has failed, the others get
    GRACE_S seconds; if one uploads the end of the run, up to SAVE_S.
    """
    places = [
        replace(first, rank=first.rank + k, local_rank=k) for k in range(first.local_world_size)
    ]
    with tempfile.TemporaryDirectory(prefix="segtrain-") as scratch:
        uploading = Path(scratch, "uploading")
        ranks = _Ranks()
        try:
            for place in places:
                ranks.start(
                    command, {**os.environ, **place.environment(), UPLOADING: str(uploading)}
                )
            early = _watch(ranks, received, say, heard, uploading)
        finally:
            ranks.end()
    for rank, number in ranks.killed():
        say(f"error: rank {first.rank + rank} was ended by {signal.Signals(number).name}")
    return _judged(ranks.codes(bool(received)), early)


class _Ranks:
    """The processes of the ranks. ``_ours``: the indices of those that this process has killed."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ours: set[int] = set()

    def start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._processes.append(
            subprocess.Popen(command, env=environment, preexec_fn=dying_with_parent())
        )

    @property
    def running(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    @property
    def failed(self) -> bool:
        return any(process.poll() not in (None, 0, EXIT_RESUMABLE) for process in self._processes)

    def tell(self, number: int) -> None:
        for rank, process in enumerate(self._processes):
            if process.poll() is None:
                process.send_signal(number)
                self._ours |= {rank} if number == signal.SIGKILL else set()

    def end(self) -> None:
        self.tell(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def killed(self) -> list[tuple[int, int]]:
        """Index and signal of each process that was ended by a signal from elsewhere, except
        SIGTERM.
        """
        return [
            (rank, -process.returncode)
            for rank, process in enumerate(self._processes)
            if process.returncode < 0
            and rank not in self._ours
            and process.returncode != -signal.SIGTERM
        ]

    def codes(self, stopped: bool) -> list[int | None]:
        """Exit codes, 128 + N after signal N; None for a rank that this process killed.

        A rank that was ended by SIGTERM before it could handle the signal counts as stopped, like
        the others.
        """
        codes: list[int | None] = []
        for rank, process in enumerate(self._processes):
            code = process.returncode
            if stopped and code == -signal.SIGTERM:
                code = EXIT_RESUMABLE
            codes.append(None if rank in self._ours else code if code >= 0 else 128 - code)
        return codes

    def reap(self) -> None:
        """Reap ended processes whose parents have ended. Such processes become children of process
        1.

        In a container, this process may be process 1. The method is called only then.
        """
        own = {process.pid for process in self._processes}
        with contextlib.suppress(ChildProcessError):
            while (
                child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            ) is not None:
                if child.si_pid in own:
                    return  # The Popen object of this rank reaps it.
                os.waitpid(child.si_pid, 0)


def _watch(
    ranks: _Ranks,
    received: list[int],
    say: Say,
    heard: Callable[[], News | None],
    uploading: Path,
) -> str:
    early, handled, end, latest = "", 0, math.inf, 0.0
    while ranks.running:
        if len(received) > handled:
            say(f"{signal.Signals(received[handled]).name}: the ranks save their state")
            handled = len(received)
            ranks.tell(signal.SIGTERM)
        now = time.monotonic()
        if not early and (news := heard()):
            early, end = news.why, now + (SAVE_S if handled or news.saving else LOST_S)
        if end == math.inf and ranks.failed:
            end, latest = now + GRACE_S, now + SAVE_S
        if now < latest and uploading.exists():
            end = now + GRACE_S
        if now >= end:
            ranks.tell(signal.SIGKILL)
        if os.getpid() == 1:
            ranks.reap()
        time.sleep(_PAUSE_S)
    return early


def _judged(codes: list[int | None], early: str) -> Ending:
    """The ending of the host. Ranks that lost another rank, or saved their state with the others,
    are not the cause.
    """
    failed = [code for code in codes if code and code != EXIT_RESUMABLE]
    first = [code for code in failed if code not in _LOST_CODES]
    if first or failed:
        return Ending((first or failed)[0], early, cause=bool(first))
    return Ending(EXIT_RESUMABLE if EXIT_RESUMABLE in codes else 1 if None in codes else 0, early)
