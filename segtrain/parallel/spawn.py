"""How one command becomes several ranks on a CPU host: this process is rank 0, the others are its children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from segtrain.config import Config
from segtrain.cores import cores
from segtrain.errors import EXIT_RESUMABLE
from segtrain.parallel.cluster import Cluster, free_port

GRACE_S = 20.0


def sees_gpu() -> bool:
    """Whether there is an NVIDIA GPU, without the seconds that importing torch takes."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "all") not in ("", "-1") and any(Path("/dev").glob("nvidia[0-9]*"))


def cpu_ranks(config: Config) -> int:
    """Ranks that `segtrain train` starts by itself. ``procs: auto`` is one for each core on a host without a GPU.

    On a CPU, ranks of one thread beat one process with all threads: no barrier after each operator.
    """
    strategy, procs, device = config.parallel.strategy, config.parallel.procs, config.train.device
    if strategy in ("single", "dp", "smddp") or device == "cuda" or (device == "auto" and sees_gpu()):
        return 1
    images = config.train.batch_size // config.train.accumulate
    if procs == "auto":
        return max(n for n in range(1, cores() + 1) if n <= images and images % n == 0)
    return int(procs)


@contextlib.contextmanager
def children(count: int, arguments: list[str]) -> Iterator[Cluster]:
    """Start ranks 1..count-1 with this command's own arguments; yield rank 0's place.

    A child dies with its parent (PR_SET_PDEATHSIG). On leaving, children are waited for; if the body raised, they are
    terminated first.
    """
    place = Cluster(0, count, 0, count, "127.0.0.1", free_port(), source="segtrain")
    started: list[subprocess.Popen[bytes]] = []
    parent = os.getpid()

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    try:
        for rank in range(1, count):
            member = Cluster(rank, count, rank, count, place.master_addr, place.master_port, source="segtrain")
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "segtrain", *arguments],
                    env={**os.environ, **member.environment(), "SEGTRAIN_SPAWNED": "1"},
                    preexec_fn=die_with_parent if sys.platform == "linux" else None,
                )
            )
        threading.Thread(target=_watch, args=(started,), name="watch-ranks", daemon=True).start()
        yield place
    except BaseException:
        for child in started:
            child.terminate()
        raise
    finally:
        for child in started:
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _watch(started: list[subprocess.Popen[bytes]]) -> None:
    """A rank that dies before all have met leaves the others waiting for the rendezvous's long timeout: end them.

    Once they have met, a lost rank shows as a broken connection, and this process ends by itself well within the grace.
    """
    while True:
        dead = [(rank, child.returncode) for rank, child in enumerate(started, 1) if child.poll()]
        if dead and dead[0][1] != EXIT_RESUMABLE:
            time.sleep(GRACE_S)
            print(f"error: rank {dead[0][0]} ended with exit code {dead[0][1]}: see its output above", file=sys.stderr)
            for child in started:
                child.kill()
            os._exit(1)
        if all(child.returncode is not None for child in started):
            return
        time.sleep(0.5)
