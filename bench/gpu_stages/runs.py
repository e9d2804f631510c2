"""Whole runs of segtrain in processes of their own, and the comparison of their last
checkpoints.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from gpu_stages.rig import LATE, NoTime, Rig
from segtrain.observe.tracker import Tracker
from segtrain.runfolder import checkpoint


class StopAt(Tracker):
    """A tracker that sends this process a SIGTERM when a step is logged."""

    name = "stop"

    def __init__(self, step: int) -> None:
        self._step = step

    def scalars(self, values: Any, step: int) -> None:
        if step == self._step and "train/loss" in values:
            os.kill(os.getpid(), signal.SIGTERM)


def train(config: Any, trackers: list[Any]) -> None:
    import segtrain

    segtrain.train(config, trackers=trackers)


def apart(rig: Rig, function: Callable[..., Any], *arguments: Any) -> Any:
    """What ``function`` returns, a small value, in a fork of this process, which must not have
    touched CUDA.

    Raises RuntimeError if it fails, and NoTime if the time of the stage is over before.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_guarded, args=(sender, function, arguments)
    )
    process.start()
    process.join(max(1.0, rig.left_s))
    if process.is_alive():
        process.kill()
        process.join()
        raise NoTime(LATE)
    if process.exitcode:
        raise RuntimeError(f"{function.__name__} ended with exit code {process.exitcode}")
    return receiver.recv()


def _guarded(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
    code = 1
    try:
        sender.send(function(*arguments))
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextlib.contextmanager
def reported(rig: Rig, what: str) -> Iterator[None]:
    """An error of the body becomes a row, so that the next case still runs."""
    try:
        yield
    except NoTime as error:
        rig.left_out(what, str(error))
    except Exception as error:
        traceback.print_exc()
        rig.note(what, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", False)


def last_tensors(run: Path) -> dict[str, torch.Tensor]:
    """Weights, averages, and moments of the newest checkpoint of a run folder.

    From now on, this process computes on one thread: a fork of it would wait forever for other
    threads of OpenMP.
    """
    torch.set_num_threads(1)
    newest = checkpoint.newest(run)
    state = newest.state
    if state is None:
        raise RuntimeError(f"{run} has no complete checkpoint ({'; '.join(newest.remarks)})")
    moments = {f"{p}.{k}": v for p, slots in state["optimizer"].items() for k, v in slots.items()}
    found = {**state["model"], **{f"ema.{k}": v for k, v in state["ema"].items()}, **moments}
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def unequal(one: Path, other: Path) -> str:
    """How many tensors differ between two runs, or "" if none does."""
    first, second = last_tensors(one), last_tensors(other)
    if first.keys() != second.keys():
        return f"{len(first.keys() ^ second.keys())} tensors are only in one of the runs"
    differing = [name for name in first if not torch.equal(first[name], second[name])]
    if not differing:
        return ""
    worst = max(float((first[n].double() - second[n].double()).abs().max()) for n in differing)
    return f"{len(differing)} of {len(first)} tensors differ, by up to {worst:.1e}"


def relative(one: Path, other: Path) -> tuple[float, str]:
    """The largest relative difference of a tensor between two runs; the name of the tensor, and its
    norm in ``other``.

    A difference from a tensor near 0 is divided by 1e-6, so noise in it reads as a large one: look
    at the norm.
    """
    first, second = last_tensors(one), last_tensors(other)
    found = {
        name: float(
            (first[name].double() - value.double()).norm() / value.double().norm().clamp_min(1e-6)
        )
        for name, value in second.items()
        if name in first and value.is_floating_point()
    }
    worst = max(found, key=lambda name: found[name] if found[name] == found[name] else float("inf"))
    return found[worst], f"in {worst}, norm {float(second[worst].double().norm()):.1e}"
