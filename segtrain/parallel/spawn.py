"""Runs one command as several ranks of a host, one per GPU or core. Rank 0 is this process; the
others are children.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from segtrain.base import stopping
from segtrain.base.cores import cores
from segtrain.base.terminal import Say
from segtrain.config import Config
from segtrain.errors import EXIT_RESUMABLE, ConfigError
from segtrain.parallel.cluster import SEGTRAIN, Cluster, free_port

GRACE_S = 20.0
SAVE_S = 600.0  # at most, if this process uploads the end of its run


def visible_gpus(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> int:
    """The number of GPUs that torch will show a process. Does not import torch, which takes
    seconds.

    CUDA reads CUDA_VISIBLE_DEVICES up to the first entry that names no GPU. If a GPU is split into
    slices (MIG), CUDA shows only one slice to a process. AMD GPUs count if torch is built for ROCm,
    whose own variables limit them too.
    """
    total = len(list((root / "dev").glob("nvidia[0-9]*")))
    if total:
        sliced = any((root / "proc/driver/nvidia/capabilities").glob("gpu*/mig/gi*"))
        return min(_shown(environ.get("CUDA_VISIBLE_DEVICES"), total), 1 if sliced else total)
    if (root / "dev/kfd").exists() and _torch_is_for_rocm():
        # a CPU is a node too, with the id 0
        nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
        count = sum(_text(node).strip() not in ("", "0") for node in nodes)
        for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
            count = _shown(environ.get(name), count)
        return count
    # WSL shows Windows' GPUs through one file, and Jetson has one GPU: more of them need
    # parallel.procs.
    wsl = (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists()
    jetson = any((root / f"dev/{name}").exists() for name in ("nvhost-gpu", "nvgpu/igpu0"))
    return _shown(environ.get("CUDA_VISIBLE_DEVICES"), 1) if wsl or jetson else 0


def _shown(listed: str | None, total: int) -> int:
    """How many of ``total`` GPUs a variable such as CUDA_VISIBLE_DEVICES shows; None: all."""
    if listed is None:
        return total
    count = 0
    for entry in map(str.strip, listed.split(",")):
        if not entry.startswith(("GPU-", "MIG-")) and not (entry.isdigit() and int(entry) < total):
            break
        count += 1
    return min(count, total)


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


def _torch_is_for_rocm() -> bool:
    spec = importlib.util.find_spec("torch")
    places = spec.submodule_search_locations or [] if spec else []
    return any(
        re.search(r"^hip\b[^=\n]*=\s*['\"]", _text(Path(place, "version.py")), re.MULTILINE)
        for place in places
    )


def ranks_to_start(config: Config, say: Say) -> int:
    """Number of ranks that `segtrain train` starts itself: for ``procs: auto``, one per GPU, or per
    core without GPUs.

    On a CPU, ranks with one thread each are faster than one process with all threads, which waits
    at a barrier after each operator. ``say`` gets a line about idle GPUs. Raises ConfigError for
    more processes than GPUs.
    """
    procs = config.parallel.procs
    device = config.train.device
    if config.parallel.strategy in ("single", "dp", "smddp"):
        return 1
    gpus = visible_gpus() if device != "cpu" else 0
    if device == "cuda" and not gpus:
        return 1  # The single process then reports what is missing.
    if procs != "auto":
        if procs > gpus > 0 and config.parallel.backend != "gloo":
            raise ConfigError(
                f"parallel.procs={procs}, but this host shows {gpus} GPU{'s' * (gpus > 1)} "
                "(CUDA_VISIBLE_DEVICES), and each process needs one of its own: lower it, leave it "
                "at auto, or set train.device=cpu",
                code="too-few-gpus",
                found=gpus,
                expected=procs,
            )
        return int(procs)
    if not gpus:
        return even_ranks(config, cores(), on_gpus=False)
    used = even_ranks(config, gpus, on_gpus=True)
    if used < gpus:
        images, least = config.train.batch_size // config.train.accumulate, _least(config)
        say(
            f"{used} of {gpus} GPUs {'is' if used == 1 else 'are'} used: the {images} images of a "
            f"micro-batch cannot be divided evenly among more GPUs with {least} or more on each; a "
            f"train.batch_size that is a multiple of {least * gpus * config.train.accumulate} uses "
            "all, and parallel.procs=N starts N processes"
        )
    return used


def _least(config: Config) -> int:
    """Images of a rank on a GPU: batch norm takes its statistics from them. A single image gives
    poor statistics, and torch refuses it where the feature map has only one value per channel.
    """
    return 1 if config.parallel.sync_bn else 2


def even_ranks(config: Config, places: int, *, on_gpus: bool) -> int:
    """The largest number of ranks, up to ``places``, that divides a micro-batch evenly."""
    images = config.train.batch_size // config.train.accumulate
    least = _least(config) if on_gpus else 1
    return max(
        n for n in range(1, places + 1) if n == 1 or (images % n == 0 and images // n >= least)
    )


def dying_with_parent(number: signal.Signals = signal.SIGKILL) -> Callable[[], None] | None:
    """A ``preexec_fn`` that makes Linux send the child a signal when this process ends
    (PR_SET_PDEATHSIG); None elsewhere.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(1, number)
        if os.getppid() != parent:
            os._exit(1)

    return die_with_parent if sys.platform == "linux" else None


@contextlib.contextmanager
def children(
    cluster: Cluster, count: int, arguments: list[str], lasting: bool = False
) -> Iterator[Cluster]:
    """Start ranks 1..count-1 with the arguments of this command; yield ``cluster`` as the cluster
    of rank 0.

    A child dies with its parent. At the end of the context, the children are waited for; if the
    body raised, they are terminated first. ``lasting``: this process is somebody's Python, such as
    a notebook, and must not end.
    """
    rank_0 = replace(
        cluster, world_size=count, local_world_size=count, master_port=free_port(), source=SEGTRAIN
    )
    started: list[subprocess.Popen[bytes]] = []
    reported, over = threading.Event(), threading.Event()
    stopping.rank_ended.clear()
    before = dying_with_parent()
    # Gloo would look up the host's name, which a Mac changes with its network.
    if sys.platform == "darwin":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0")
    try:
        for rank in range(1, count):
            member = replace(rank_0, rank=rank, local_rank=rank)
            command = [sys.executable, "-m", "segtrain", *arguments]
            environment = {**os.environ, **member.environment(), "SEGTRAIN_SPAWNED": "1"}
            started.append(subprocess.Popen(command, env=environment, preexec_fn=before))
        watched = started, reported, over, lasting
        threading.Thread(target=_watch, args=watched, name="watch-ranks", daemon=True).start()
        yield rank_0
    except BaseException:
        _say_killed(started, reported)
        for child in started:
            child.terminate()
        raise
    finally:
        over.set()
        reported.set()  # From now on, report no killed rank: this process may kill children itself.
        for child in started:
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _say_killed(started: list[subprocess.Popen[bytes]], reported: threading.Event) -> None:
    """Print the first rank that a signal killed, and only once: it could not report the error
    itself.
    """
    for rank, child in enumerate(started, 1):
        number = -(child.poll() or 0)
        if number > 0 and number not in (signal.SIGINT, signal.SIGTERM) and not reported.is_set():
            memory = ", perhaps for lack of memory" if number == signal.SIGKILL else ""
            name = signal.Signals(number).name
            print(f"error: rank {rank} was killed by {name}{memory}", file=sys.stderr, flush=True)
            reported.set()


def _watch(
    started: list[subprocess.Popen[bytes]],
    reported: threading.Event,
    over: threading.Event,
    lasting: bool,
) -> None:
    """End all ranks GRACE_S seconds after one has failed, with its exit code, or later if rank 0
    uploads the end.

    If this process is ``lasting``, rank 0 only ends its wait for the other ranks. ``over``: rank 0
    has ended.

    If it failed before the rendezvous, the other ranks would wait until the rendezvous times out,
    which takes long. If it failed later, they see a broken connection, and this process ends by
    itself well within GRACE_S.
    """
    while True:
        codes = [(rank, child.poll()) for rank, child in enumerate(started, 1)]
        failed = [(rank, code) for rank, code in codes if code and code != EXIT_RESUMABLE]
        if failed:
            _say_killed(started, reported)
            if lasting:
                stopping.rank_ended.set()
                return
            now = time.monotonic()
            end, latest = now + GRACE_S, now + SAVE_S
            while now < end:
                time.sleep(min(0.5, GRACE_S))
                now = time.monotonic()
                if over.is_set():
                    return
                if stopping.uploading.is_set():
                    end = min(now + GRACE_S, latest)
            rank, code = failed[0]
            if not reported.is_set():
                print(
                    f"error: rank {rank} ended with exit code {code}: see its output above",
                    file=sys.stderr,
                )
            for child in started:
                child.kill()
            os._exit(max(1, code))  # a negative code: a signal has killed that rank
        if over.is_set() or all(child.returncode is not None for child in started):
            return
        time.sleep(0.5)
