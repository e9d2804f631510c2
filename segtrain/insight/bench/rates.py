"""Samples/s, CPU time, and memory of the training loader with one or more workers, in a separate
process (child.py).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from segtrain.base.cores import runqueue_wait
from segtrain.config import Config
from segtrain.data.dataset import Dataset
from segtrain.data.train_loader import TrainLoader
from segtrain.data.workers.pool import WorkerPool
from segtrain.insight.bench.child import answer_with, few
from segtrain.observe.spans import WorkerTotals


def rate(
    config: Config, dataset: Dataset, workers: int, kind: str, seconds: float, warm: int
) -> dict[str, Any]:
    """Measure the samples per second, CPU milliseconds per sample, and memory of a loader.

    The measurement begins after at least ``warm`` samples. ``window`` in the result holds the same
    figures in the form of one record of a run's spans (observe/spans.py), as if the training loop
    did nothing but wait for samples.
    """
    data = config.data
    batch = max(1, config.train.batch_size // config.train.accumulate)
    with WorkerPool(workers, kind) as pool:

        def work() -> WorkerTotals:
            return WorkerTotals(
                pool.count, kind, pool.tally.samples, *pool.tally.cost, process_cpu_s=pool.cpu_s()
            )

        with TrainLoader(
            dataset,
            data,
            seed=config.train.seed,
            batch_size=batch,
            last_step=sys.maxsize // batch,
            prefetch=data.prefetch,
            pool=pool,
        ) as loader:
            steps = iter(loader)
            for _ in range(max(1, -(-warm // batch))):
                next(steps)
            begin = time.perf_counter()
            cpu = time.process_time()
            before = work()
            count = 0
            while count < 2 * batch or time.perf_counter() - begin < seconds:
                next(steps)
                count += batch
            wall = time.perf_counter() - begin
            cpu = time.process_time() - cpu
            after = work()
            memory = _memory([os.getpid(), *pool.pids()])
    window = {
        "ts": 1.0,
        "seconds": wall,
        "first": 1,
        "last": count // batch,
        "images": count,
        "phases": {"wait": wall},
        "cpu_s": cpu,
        "workers": after.since(before),
        **({"cpu_wait_s": 0.0} if runqueue_wait() is not None else {}),
    }
    cpu += after.process_cpu_s - before.process_cpu_s
    return {
        "kind": kind,
        "workers": workers,
        "samples": count,
        "per_s": count / wall,
        "cpu_ms": 1000 * cpu / count,
        "memory": memory,
        "window": window,
    }


def _memory(processes: Iterable[int]) -> int:
    """Bytes of memory of the processes; shared memory counts once (PSS). 0 if the system does not
    report it.
    """
    total = 0
    for process in processes:
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        total += (
            sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
            * 1024
        )
    return total


def measure(config: Config, request: dict[str, Any]) -> dict[str, Any]:
    """``rates``: one entry for each kind and number of workers. ``window``: the window of the
    fastest entry.
    """
    dataset = few(config, request)
    rates: list[dict[str, Any]] = []
    # With data.cache=ram only threads are measured: each process would keep its own copy of the
    # cached images.
    processes = config.data.cache != "ram" and hasattr(socket, "send_fds")
    for kind in ("thread", "process") if processes else ("thread",):
        for workers in request["workers"]:
            # Warm up with a whole pass where that fills a cache: the first loader records where the
            # tiles of JPEG files begin, and with data.cache=ram each loader has its own cache of
            # images.
            warm = len(dataset) if config.data.cache == "ram" or not rates else 1
            rates.append(rate(config, dataset, workers, kind, request["seconds"], warm))
    windows = {found["per_s"]: found.pop("window") for found in rates}
    return {"rates": rates, "window": windows[max(windows)]}


if __name__ == "__main__":
    answer_with(measure)
