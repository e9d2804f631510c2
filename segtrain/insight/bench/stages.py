"""CPU and wall milliseconds of a training sample and of its stages on one core, on samples spread
over the data set.

The stages are those of a run's spans (data/stages.py). This module runs in a separate process
(bench/child.py) with one core, one thread, and one decoder, and without torch.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from segtrain.config import Config
from segtrain.data import stages
from segtrain.data.cache import RamCache
from segtrain.data.dataset import SampleSource
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import StoredSample, pixels_of
from segtrain.data.sample import SampleMaker, Task
from segtrain.data.shards.pack_estimate import estimate
from segtrain.data.shards.pack_sample import Packing
from segtrain.data.stages import Cost
from segtrain.insight.bench.child import answer_with, decoder, few
from segtrain.observe.spans import STAGES

ENOUGH_S = 3e-3  # a sample is made again until this much CPU time is used
REPEATS = 40  # most repeats of a sample
PACKED = 8  # samples that are packed in each way
NO_FILES = "the samples are not files of their own"
NO_CALL = "this system cannot drop pages"
KEPT = "the file system keeps its pages in memory"


def cost_of(make: Callable[[], Any]) -> Cost:
    """The cost of making a sample: the mean of several calls if one is too short to measure."""
    make()  # warm up; with data.cache=ram this also fills the cache
    total, count = Cost(), 0
    while count < REPEATS and total.cpu_s < ENOUGH_S:
        stages.begin()
        make()
        total, count = total.plus(stages.end()), count + 1
    return Cost(*(value / count for value in total))  # type: ignore[arg-type]


def summary(costs: list[Cost]) -> dict[str, dict[str, float]]:
    """``wall_ms`` (median) and ``wall_mean_ms`` of each stage, and of the whole sample also its CPU
    times.
    """
    result = {stage: _wall([getattr(cost, stage) for cost in costs]) for stage in STAGES}
    cpu = [1000 * cost.cpu_s for cost in costs]
    whole = _wall([cost.seconds for cost in costs])
    result["whole"] = {
        **whole,
        "cpu_ms": statistics.median(cpu),
        "cpu_mean_ms": statistics.fmean(cpu),
    }
    return result


def _wall(seconds: list[float]) -> dict[str, float]:
    return {
        "wall_ms": 1000 * statistics.median(seconds),
        "wall_mean_ms": 1000 * statistics.fmean(seconds),
    }


def image_format(record: StoredSample) -> str:
    if isinstance(record.image, np.ndarray):
        return "pixels"
    return decode.read_header(bytes(record.image), record.image_name).format


def length(stored: Any) -> int:
    """Bytes to read from storage; 0 for generated pixels."""
    return 0 if stored is None or isinstance(stored, np.ndarray) else len(stored)


def cold_reads(paths: Iterable[str | None]) -> dict[str, Any]:
    """Read files that are not in the page cache, with one thread.

    Returns ``ms_a_file`` (mean wall ms) and ``mb_per_s``. If there was no such file, returns
    ``why_not``.
    """
    sizes = []
    seconds = 0.0
    why = NO_FILES
    for path in paths:
        if not path or not os.path.isfile(path):
            continue
        if not dropped(path):
            why = KEPT if hasattr(os, "posix_fadvise") else NO_CALL
            continue
        begin = time.perf_counter()
        sizes.append(len(Path(path).read_bytes()))
        seconds += time.perf_counter() - begin
    if not sizes:
        return {"why_not": why}
    mean = 1000 * seconds / len(sizes)
    rate = sum(sizes) / 1e6 / max(seconds, 1e-9)
    return {"files": len(sizes), "ms_a_file": mean, "mb_per_s": rate}


def dropped(path: str) -> bool:
    """Drop a file from the page cache. Returns whether its first page is really gone."""
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "preadv"):
        return False
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(handle)  # pages that are still to be written cannot be dropped
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.preadv(handle, [bytearray(1)], 0, os.RWF_NOWAIT)
        return False  # the page is still in memory
    except BlockingIOError:
        return True
    except OSError:  # a file system without RWF_NOWAIT (tmpfs, some network and union file systems)
        return False
    finally:
        os.close(handle)


def packed(config: Config, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Pack a few samples in each possible form. Returns a dictionary per form (see
    ``pack_estimate.EstimateRow``).

    Returns an empty list if the data set is packed already, or if data.cache=ram.
    """
    data = config.data
    if data.layout == "shards" or data.cache == "ram":
        return []
    dataset = few(config, {**request, "samples": min(PACKED, request["samples"])})
    return list(estimate(dataset, data, Packing(), 1, data.faults == "skip").to_dict()["choices"])


def measure(config: Config, request: dict[str, Any]) -> dict[str, Any]:
    """Measure the samples with this process's decoder. Raises SegtrainError, and DataError naming a
    bad file.

    If ``request["packed"]`` is true, also measure the forms of packed files.
    """
    data, dataset = config.data, few(config, request)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    entries = [dataset.entries[index] for index in range(len(dataset))]
    cold = cold_reads(path for entry in entries for path in (entry.image, entry.mask))
    source: SampleSource = RamCache(dataset) if data.cache == "ram" else dataset
    make = SampleMaker(source, data, config.train.seed)
    out = np.empty((*data.crop, 3), np.uint8), np.empty(data.crop, source.labels.mask_dtype)
    costs = list[Cost]()
    sizes = list[tuple[int, int, int]]()
    formats = Counter[str]()
    for index in range(len(dataset)):
        record = dataset.record(index)
        mask = pixels_of(record, dataset.labels)[1]  # refuses bad files before anything is counted
        sizes.append((length(record.image), length(record.mask), mask.size))
        formats[image_format(record)] += 1
        costs.append(cost_of(partial(make, Task(index, 0, data.crop, data.scale), *out)))
    image_bytes, mask_bytes, pixels = map(statistics.fmean, zip(*sizes))
    return {
        **decoder(),
        "samples": len(sizes),
        "stages": summary(costs),
        "packed": packed(config, request) if request["packed"] and image_bytes else [],
        "cold": cold,
        "formats": dict(formats),
        "bytes_image": image_bytes,
        "bytes_mask": mask_bytes,
        "pixels": pixels,
    }


if __name__ == "__main__":
    answer_with(measure)
