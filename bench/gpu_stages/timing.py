"""Times of a call on the GPU (or, in a rehearsal, on the CPU), and its peak memory."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable

import torch


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(call: Callable[[], object], device: str, warm: int = 3, times: int = 10) -> float:
    """Median milliseconds of ``call``; the device finishes before and after each call."""
    taken = []
    for number in range(warm + times):
        synchronize(device)
        begin = time.perf_counter()
        call()
        synchronize(device)
        if number >= warm:
            taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken)


def rate(call: Callable[[], object], device: str, warm: int, times: int) -> float:
    """Calls per second of ``times`` calls in a row, which may overlap on the device. ``peak_gib``
    is theirs then.
    """
    for _ in range(warm):
        call()
    synchronize(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()  # the first calls choose kernels, and may take more
    begin = time.perf_counter()
    for _ in range(times):
        call()
    synchronize(device)
    return times / (time.perf_counter() - begin)


def forget(device: str) -> None:
    """Free what earlier measurements left, compiled networks and their CUDA graphs too; start a new
    count of the peak.
    """
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib(device: str) -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
