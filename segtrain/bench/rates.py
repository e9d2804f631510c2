"""How many samples a second does the real loader give, with one worker and with more? What CPU and memory do they take?

Runs as a process of its own (``python -m segtrain.bench.rates``): a request as JSON comes in, the result as JSON goes out.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

from segtrain.bench.child import answer_with, few
from segtrain.bench.host import tree_cpu_s, tree_memory
from segtrain.config import Config, Data
from segtrain.data.datasets import Dataset
from segtrain.data.loader import TrainLoader


def worker_kinds(data: Data) -> list[str]:
    """What workers can be here: threads, and processes unless each would keep a copy of the cached images."""
    return ["thread", "process"] if data.cache == "off" and hasattr(socket, "send_fds") else ["thread"]


def rate(config: Config, dataset: Dataset, workers: int, kind: str, seconds: float, warm: int) -> dict[str, Any]:
    """Samples a second, CPU milliseconds a sample and memory of a loader with ``workers``, after ``warm`` samples at least."""
    data = config.data
    batch = max(1, config.train.batch_size // config.train.accumulate)
    with TrainLoader(
        dataset,
        data,
        seed=config.train.seed,
        batch_size=batch,
        last_step=sys.maxsize // batch,
        workers=workers,
        kind=kind,
        prefetch=data.prefetch,
    ) as loader:
        steps = iter(loader)
        for _ in range(max(1, -(-warm // batch))):
            next(steps)
        begin, cpu, count = time.perf_counter(), tree_cpu_s(), 0
        while count < 2 * batch or time.perf_counter() - begin < seconds:
            next(steps)
            count += batch
        wall, cpu, memory = time.perf_counter() - begin, tree_cpu_s() - cpu, tree_memory()
    return {
        "kind": kind,
        "workers": workers,
        "samples": count,
        "per_s": count / wall,
        "cpu_ms": 1000 * cpu / count,
        "memory": memory,
    }


def measure(config: Config, request: dict[str, Any]) -> list[dict[str, Any]]:
    """One rate for each kind and number of workers."""
    dataset = few(config, request)
    rates: list[dict[str, Any]] = []
    for kind in worker_kinds(config.data):
        for workers in request["workers"]:
            # The first pass over files keeps where their tiles begin; one over cached images fills the cache of each loader.
            warm = len(dataset) if config.data.cache == "ram" or not rates else 1
            rates.append(rate(config, dataset, workers, kind, request["seconds"], warm))
    return rates


if __name__ == "__main__":
    answer_with(lambda config, request: {"rates": measure(config, request)})
