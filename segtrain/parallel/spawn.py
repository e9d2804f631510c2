"""One command as several ranks of a host, one per GPU or core: rank 0 is this process, the others are its children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from segtrain.config import Config
from segtrain.cores import cores
from segtrain.errors import EXIT_RESUMABLE, ConfigError
from segtrain.parallel.cluster import Cluster, free_port

GRACE_S = 20.0


def visible_gpus(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> int:
    """The number of NVIDIA GPUs that CUDA will show a process, without the seconds that importing torch takes.

    CUDA reads CUDA_VISIBLE_DEVICES up to the first entry that names no GPU. Of GPUs that are cut into slices (MIG) it
    shows one slice to a process.
    """
    there = len(list((root / "dev").glob("nvidia[0-9]*")))
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    entries = map(str, range(there)) if listed is None else map(str.strip, listed.split(","))
    count = 0
    for entry in entries:
        if not entry.startswith(("GPU-", "MIG-")) and not (entry.isdigit() and int(entry) < there):
            break
        count += 1
    sliced = any((root / "proc/driver/nvidia/capabilities").glob("gpu*/mig/gi*"))
    return min(count, there, 1 if sliced else there)


def ranks_here(config: Config, say: Callable[[str], None]) -> int:
    """Ranks that `segtrain train` starts by itself. ``procs: auto`` is one per GPU, or on a CPU host one per core.

    On a CPU, ranks of one thread beat one process with all threads: no barrier after each operator. ``say`` gets a
    line about idle GPUs. Raises ConfigError for more processes than GPUs.
    """
    strategy, procs, device = config.parallel.strategy, config.parallel.procs, config.train.device
    if strategy in ("single", "dp", "smddp"):
        return 1
    gpus = visible_gpus() if device != "cpu" else 0
    if device == "cuda" and not gpus:
        return 1  # which then says what is missing
    if procs != "auto":
        if procs > gpus > 0 and config.parallel.backend != "gloo":
            raise ConfigError(
                f"parallel.procs={procs}, but this host shows {gpus} GPU{'s' * (gpus > 1)} (CUDA_VISIBLE_DEVICES), and "
                "each process needs one of its own: lower it, leave it at auto, or set train.device=cpu",
                code="too-few-gpus", found=gpus, expected=procs,
            )  # fmt: skip
        return int(procs)
    images = config.train.batch_size // config.train.accumulate
    if not gpus:
        return _most(cores(), images, 1)
    # Batch norm takes its statistics from the images of a rank: a single one would be a poor, and sometimes an illegal,
    # sample.
    used = _most(gpus, images, 1 if config.parallel.sync_bn else 2)
    if used < gpus:
        say(
            f"{used} of {gpus} GPUs {'is' if used == 1 else 'are'} used: the {images} images of a micro-batch do not "
            "spread evenly, 2 or more on each, over more of them; a train.batch_size that is a multiple of "
            f"{2 * gpus * config.train.accumulate} uses all, and parallel.procs=N starts N processes"
        )
    return used


def _most(places: int, images: int, least: int) -> int:
    """The largest number of ranks, up to ``places``, over which ``images`` spread evenly, ``least`` or more on each."""
    return max(n for n in range(1, places + 1) if n == 1 or (images % n == 0 and images // n >= least))


@contextlib.contextmanager
def children(count: int, arguments: list[str]) -> Iterator[Cluster]:
    """Start ranks 1..count-1 with the arguments of this command; yield the cluster of rank 0.

    A child dies with its parent (PR_SET_PDEATHSIG). On leaving, children are waited for; if the body raised, they are
    terminated first.
    """
    rank_0 = Cluster(0, count, 0, count, "127.0.0.1", free_port(), source="segtrain")
    started: list[subprocess.Popen[bytes]] = []
    said = threading.Event()
    parent = os.getpid()

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    try:
        for rank in range(1, count):
            member = replace(rank_0, rank=rank, local_rank=rank)
            command = [sys.executable, "-m", "segtrain", *arguments]
            environment = {**os.environ, **member.environment(), "SEGTRAIN_SPAWNED": "1"}
            before = die_with_parent if sys.platform == "linux" else None
            started.append(subprocess.Popen(command, env=environment, preexec_fn=before))
        threading.Thread(target=_watch, args=(started, said), name="watch-ranks", daemon=True).start()
        yield rank_0
    except BaseException:
        _say_killed(started, said)
        for child in started:
            child.terminate()
        raise
    finally:
        said.set()  # What this process kills from now on is not a lost rank.
        for child in started:
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _say_killed(started: list[subprocess.Popen[bytes]], said: threading.Event) -> None:
    """Name the ranks that a signal killed, once: they have said nothing themselves."""
    for rank, child in enumerate(started, 1):
        number = -(child.poll() or 0)
        if number > 0 and number not in (signal.SIGINT, signal.SIGTERM) and not said.is_set():
            memory = ", perhaps for lack of memory" if number == signal.SIGKILL else ""
            name = signal.Signals(number).name
            print(f"error: rank {rank} was killed by {name}{memory}", file=sys.stderr, flush=True)
            said.set()


def _watch(started: list[subprocess.Popen[bytes]], said: threading.Event) -> None:
    """A rank that dies before all have met leaves the others waiting for the rendezvous's long timeout: end them.

    Once they have met, a lost rank shows as a broken connection, and this process ends by itself well within the grace.
    """
    while True:
        dead = [(rank, child.returncode) for rank, child in enumerate(started, 1) if child.poll()]
        if dead and dead[0][1] != EXIT_RESUMABLE:
            _say_killed(started, said)
            time.sleep(GRACE_S)
            if not said.is_set():
                rank, code = dead[0]
                print(f"error: rank {rank} ended with exit code {code}: see its output above", file=sys.stderr)
            for child in started:
                child.kill()
            os._exit(1)
        if all(child.returncode is not None for child in started):
            return
        time.sleep(0.5)
