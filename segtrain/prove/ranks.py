"""Runs a function on several ranks of this machine, in forks of a process that has already imported
torch.
"""

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

import segtrain.models.pico  # noqa: F401
from segtrain.base.files import writing
from segtrain.config import Config
from segtrain.errors import SegtrainError
from segtrain.parallel.cluster import NOTHING, SEGTRAIN, Cluster, free_port
from segtrain.parallel.spawn import visible_gpus

TIMEOUT_S = 300.0  # per group of ranks; they need far less


class RankFailed(SegtrainError):
    """A rank failed, or did not finish in time. The message is that of the first such rank."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="prove-rank-failed")


class Ranks:
    """``world`` processes that each call ``function(cluster, *arguments)``.

    A killed process raises no error until ``results`` is called. This process must not have
    computed with torch, whose threads do not survive a fork, nor touched CUDA.
    """

    def __init__(
        self, folder: Path, world: int, function: Callable[..., Any], *arguments: Any
    ) -> None:
        # Optimizers and DDP import it when first used. Here it costs its second of CPU time once,
        # not once per rank.
        import torch._dynamo  # noqa: F401

        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self.folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=folder))
        port = free_port()
        source = SEGTRAIN if world > 1 else NOTHING
        clusters = [
            Cluster(rank, world, rank, world, "127.0.0.1", port, source) for rank in range(world)
        ]
        self._processes = [
            context.Process(  # type: ignore[attr-defined]
                target=_child,
                args=(self.folder, os.getpid(), cluster, function, *arguments),
                daemon=True,
            )
            for cluster in clusters
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
        """Wait for all ranks, and return their exit codes: for a killed rank, the negative number
        of the signal.

        Kills ranks that do not finish in time.
        """
        end = time.monotonic() + TIMEOUT_S
        for process in self._processes:
            process.join(max(0.0, end - time.monotonic()))
        for process in self._processes:
            if process.is_alive():
                process.kill()
                process.join()
        return [process.exitcode for process in self._processes]

    def results(self) -> list[Any]:
        """What each rank returned. Raises the error of the first rank that failed."""
        codes = self.wait()
        values: list[Any] = []
        errors: list[SegtrainError] = []
        for rank, code in enumerate(codes):
            file = self.folder / f"result-{rank}"
            if not file.is_file():
                errors.append(
                    RankFailed(
                        f"rank {rank} of {len(codes)} exited with code {code} and without a result"
                    )
                )
                continue
            value = pickle.loads(file.read_bytes())
            (errors if isinstance(value, SegtrainError) else values).append(value)
        if errors:
            raise errors[0]
        return values


def on_ranks(folder: Path, world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``function(cluster, *arguments)`` returns on each of ``world`` ranks. Raises as
    ``Ranks.results``.
    """
    return Ranks(folder, world, function, *arguments).results()


def train_here(cluster: Cluster, config: Config) -> int:
    from segtrain.training.rank import train

    return train(config, cluster)


def own_gpu(rank: int, gpus: int, listed: str) -> str:
    """CUDA_VISIBLE_DEVICES of a rank that shares ``gpus`` GPUs with others. ``listed``: its present
    value.
    """
    names = (
        [name.strip() for name in listed.split(",")]
        if listed
        else [str(index) for index in range(gpus)]
    )
    return names[rank % gpus]


def _child(
    folder: Path, parent: int, cluster: Cluster, function: Callable[..., Any], *arguments: Any
) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
        if os.getppid() != parent:
            os._exit(1)
    output = os.open(folder / f"output-{cluster.rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    ):
        os.environ.pop(name, None)
    if cluster.world_size > 1:
        os.environ.update(cluster.environment())
    if (gpus := visible_gpus()) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = own_gpu(
            cluster.rank, gpus, os.environ.get("CUDA_VISIBLE_DEVICES", "")
        )
    try:
        outcome = function(cluster, *arguments)
    except SegtrainError as error:
        outcome = SegtrainError(str(error), code=error.code, **error.values)
    except Exception as error:
        traceback.print_exc()
        outcome = SegtrainError(f"{type(error).__name__}: {error}", code="prove-rank-failed")
    with writing(folder / f"result-{cluster.rank}") as stream:
        stream.write(pickle.dumps(outcome))
