"""How does a function run on several CPU ranks of this machine? In forks of this process, which has imported torch already."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch._dynamo  # optimizers and DDP import it at their first use, which would be in each rank anew (2 CPU-s)  # noqa: F401

import segtrain.models.pico  # noqa: F401
from segtrain.errors import SegtrainError
from segtrain.files import writing
from segtrain.parallel.cluster import Cluster, free_port

TIMEOUT_S = 300.0  # for one group of ranks; far more than any of them needs


class RankFailed(Exception):
    """A rank raised, or did not end in time. The message is that of the first rank that failed."""


class Ranks:
    """``world`` processes that each call ``function(place, *arguments)``; a killed one is no error until its result is asked for.

    This process must not have computed with torch: threads do not survive a fork.
    """

    def __init__(self, folder: Path, world: int, function: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self.folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=folder))
        port = free_port()
        source = "segtrain" if world > 1 else "none"
        places = [Cluster(rank, world, rank, world, "127.0.0.1", port, source) for rank in range(world)]
        self._processes = [
            context.Process(target=_child, args=(self.folder, os.getpid(), place, function, arguments), daemon=True)  # type: ignore[attr-defined]
            for place in places
        ]
        for process in self._processes:
            process.start()

    @property
    def running(self) -> bool:
        return any(process.is_alive() for process in self._processes)

    def signal(self, number: int) -> None:
        for process in self._processes:
            os.kill(process.pid, number)

    def wait(self) -> list[int]:
        """Exit codes; minus the signal's number where one ended a rank. Ranks that do not end are killed."""
        end = time.monotonic() + TIMEOUT_S
        for process in self._processes:
            process.join(max(0.0, end - time.monotonic()))
        for process in self._processes:
            if process.is_alive():
                process.kill()
                process.join()
        return [process.exitcode for process in self._processes]

    def results(self) -> list[Any]:
        """What each rank returned. Raises RankFailed."""
        codes = self.wait()
        values: list[Any] = []
        errors: list[str] = []
        for rank, code in enumerate(codes):
            place = self.folder / f"result-{rank}"
            if not place.is_file():
                errors.append(f"rank {rank} of {len(codes)} ended with code {code}, without a result")
                continue
            kind, value = pickle.loads(place.read_bytes())
            (values if kind == "value" else errors).append(value)
        if errors:
            raise RankFailed(errors[0])
        return values


def on_ranks(folder: Path, world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``function(place, *arguments)`` on each of ``world`` ranks; what each returned. Raises RankFailed."""
    return Ranks(folder, world, function, *arguments).results()


def _child(folder: Path, parent: int, place: Cluster, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no rank outlives its parent
        if os.getppid() != parent:
            os._exit(1)
    output = os.open(folder / f"output-{place.rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    if place.world_size > 1:
        os.environ.update(place.environment())
    outcome: tuple[str, Any]
    try:
        outcome = ("value", function(place, *arguments))
    except SegtrainError as error:
        outcome = ("error", str(error))
    except Exception as error:
        traceback.print_exc()
        outcome = ("error", f"{type(error).__name__}: {error}")
    with writing(folder / f"result-{place.rank}") as stream:
        stream.write(pickle.dumps(outcome))
