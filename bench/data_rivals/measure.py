"""CPU time of the process tree, rate, and memory of a pipeline per sample, in the steady state.

The CPU time is read while the pipeline is quiet, before the first measured batch and after the last
one: nobody takes batches, all queues are full, all workers wait. So what was read ahead before is
balanced to the sample by what is read ahead after. The rate leaves out the first batches, which
were ready. Memory is read later, as its reading costs time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from common import IGNORE, MEAN, STD
from rivals.race import machine_cpu, running, tree_cpu, tree_of

_TURN, _TURNS = 0.4, 75  # seconds between two looks, and how many at most (30 s)
_IDLE = 0.05  # cores: below this a tree is quiet (some libraries poll their queues)


def quiet(root: int) -> bool:
    """Wait until the tree of ``root`` has stopped working; False where it has not after 30 s."""
    before = tree_cpu(root)
    for _ in range(_TURNS):
        time.sleep(_TURN)
        now = tree_cpu(root)
        if now - before <= _IDLE * _TURN:
            return True
        before = now
    return False


def pss(root: int) -> float:
    """Proportional set size of the tree in MB: pages that n processes share count 1/n in each."""
    total = 0
    for pid in tree_of(root, running()):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it has ended meanwhile
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1000


def first_awaited(times: list[float]) -> int:
    """Number of the first batch that was not ready when it was asked for, by the times at which
    batches were got.

    It took more than a quarter of what the batches of the second half took on average. At least 1,
    and below len(times)
    - 1.
    """
    half = len(times) // 2
    usual = (times[-1] - times[half - 1]) / (len(times) - half)
    waits = [b - a for a, b in itertools.pairwise(times)]
    return next((k for k, wait in enumerate(waits[:-1], 1) if wait > usual / 4), 1)


def measure(
    args: argparse.Namespace,
    batches: Iterable[Any],
    look: Callable[[Any], tuple[Any, Any]] = tuple,
    **facts: Any,
) -> None:
    """Take batches, print one JSON line.

    ``look`` gives a batch's images and masks (torch or NumPy, any layout); it is called on the
    first batch, for its form, and on those after the measurement, for the mean of the normalized
    values: a pipeline that does other work shows there.
    ``facts`` go into the line.
    """
    root, source = os.getpid(), iter(batches)
    images, masks = look(next(source))
    form = f"{_form(images)}, {_form(masks)}"
    if len(images) != args.batch or len(masks) != args.batch:
        raise SystemExit(f"a batch has {form}, not {args.batch} samples")
    for _ in itertools.islice(source, args.warmup):
        pass
    calm = quiet(root)
    cpu, busy, start, times = tree_cpu(root), machine_cpu(), time.perf_counter(), []
    for _ in range(args.samples // args.batch):
        next(source)
        times.append(time.perf_counter())
    calm = quiet(root) and calm
    own, busy, span = tree_cpu(root) - cpu, machine_cpu() - busy, time.perf_counter() - start
    first = first_awaited(times)
    found = {
        "samples": args.samples,
        "workers": args.workers,
        "cpu_s": round(own, 3),
        "cpu_ms": round(1000 * own / args.samples, 3),
        "wall_s": round(times[-1] - start, 3),
        "rate": round(args.batch * (len(times) - 1 - first) / (times[-1] - times[first]), 2),
        "others": round(max(0.0, busy - own) / span, 3),
        "quiet": calm,
        "gives": form,
        **_memory(root, source, look),
        **facts,
    }
    print(json.dumps(found), flush=True)


def _memory(root: int, source: Any, look: Callable[[Any], tuple[Any, Any]]) -> dict[str, Any]:
    """Greatest of five readings while batches are taken, and what the pixels are like."""
    most, means, void = 0.0, [], []
    for batch in itertools.islice(source, 5):
        most = max(most, pss(root))
        images, masks = (_numpy(part) for part in look(batch))
        axis = 1 if images.shape[1] == 3 else 3
        if str(images.dtype) == "uint8":
            shape = (1, 3, 1, 1) if axis == 1 else (1, 1, 1, 3)
            images = (images / 255.0 - _reshape(MEAN, shape)) / _reshape(STD, shape)
        means.append(float(images.mean()))
        void.append(float((masks == IGNORE).mean()))
    return {
        "pss_mb": round(most, 1),
        "mean": round(sum(means) / len(means), 3),
        "void": round(sum(void) / len(void), 4),
    }


def _reshape(values: tuple[float, ...], shape: tuple[int, ...]) -> Any:
    import numpy as np

    return np.array(values, np.float32).reshape(shape)


def _numpy(array: Any) -> Any:
    return array.numpy() if hasattr(array, "numpy") else array


def _form(array: Any) -> str:
    return f"{str(array.dtype).removeprefix('torch.')} {'x'.join(str(n) for n in array.shape)}"
