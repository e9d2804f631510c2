"""CPU and wall milliseconds of each stage of a training sample on one core, on samples spread over the data set.

A stage that is one function is timed directly. The cost of any other stage is the difference between two times of the
training code, with and without that stage: first the mask is decoded beforehand, then the image too, then the user's
transforms are left out. This module runs in a separate process (bench/child.py) with one core, one thread, and one
decoder, and without torch.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from segtrain.bench.child import answer_with, decoder, few
from segtrain.bench.held import Held, cut_to_size
from segtrain.config import Config, Data
from segtrain.data.augment.geometry import class_center, draw
from segtrain.data.cache import RamCache, SampleSource
from segtrain.data.datasets import Dataset
from segtrain.data.index.entries import Entry
from segtrain.data.order import CLASS, rng_for
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import StoredSample, pixels_of
from segtrain.data.sample import SampleMaker, Task
from segtrain.data.shards.pack_estimate import estimate
from segtrain.data.shards.pack_sample import Packing

ENOUGH_MS = 3.0  # a call is repeated until this much CPU time is used
REPEATS = 40  # most repeats of a call
PACKED = 8  # samples that are packed in each way
NO_FILES = "the samples are not files of their own"
NO_CALL = "this system cannot drop pages"
KEPT = "the file system keeps its pages in memory"
Times = tuple[float, float]  # CPU and wall milliseconds


def clock(call: Callable[[], Any]) -> Times:
    """CPU and wall milliseconds of one call: the mean of several calls if one is too short to measure."""
    count, begin, wall = 0, time.thread_time(), time.perf_counter()
    while True:
        call()
        count += 1
        cpu = 1000 * (time.thread_time() - begin)
        if cpu >= ENOUGH_MS or count >= REPEATS:
            return cpu / count, 1000 * (time.perf_counter() - wall) / count


def less(whole: Times, *without: Times) -> Times:
    """``whole`` minus the times in ``without``; 0 if noise makes the difference negative."""
    return max(0.0, whole[0] - sum(t[0] for t in without)), max(0.0, whole[1] - sum(t[1] for t in without))


class Bench:
    """Measures a data set, sample by sample. ``cut``: also measure files resized to the largest scale that is used."""

    def __init__(self, config: Config, dataset: Dataset, cut: bool) -> None:
        self.data, self.seed, self.dataset, self.cut = config.data, config.train.seed, dataset, cut
        self.source: SampleSource = RamCache(dataset) if config.data.cache == "ram" else dataset
        self.costs: defaultdict[str, list[Times]] = defaultdict(list)
        self.other_forms: defaultdict[str, list[Times]] = defaultdict(list)
        self.formats: Counter[str] = Counter()
        self.sizes: list[tuple[int, int, int]] = []  # bytes of image and mask, pixels
        self.out = np.empty((*self.data.crop, 3), np.uint8), np.empty(self.data.crop, np.uint8)

    def sample(self, index: int) -> None:
        """Measure one sample. Raises DataError naming the file."""
        record, task = self.dataset.record(index), Task(index, 0, self.data.crop, self.data.scale)
        image, mask = pixels_of(record, self.dataset.labels)  # refuses bad files before anything is counted
        self.sizes.append((length(record.image), length(record.mask), mask.size))
        pixels = isinstance(record.image, np.ndarray)
        self.formats["pixels" if pixels else decode.read_header(bytes(record.image), record.image_name).format] += 1
        whole = partial(SampleMaker(self.source, self.data, self.seed), task, *self.out)
        whole()  # warm up; with data.cache=ram this also fills the cache
        self.costs["whole"].append(clock(whole))
        self.costs["read"].append(clock(partial(self.source.record, index)))
        self._stages(task, self.source.record(index), image, mask)
        if not pixels:
            self.costs["full decode"].append(clock(partial(full_decode, record)))
            small = cut_to_size(record, image, self.data) if self.cut else None
            if small is not None:
                self.other_forms["files cut to size"].append(self._made(task, *small, self.smaller))

    @cached_property
    def smaller(self) -> list[Entry]:
        """The data set's entries under other names.

        What is cached about the original files, such as JPEG tile positions, then is not used for the smaller files.
        """
        kept = (self.dataset.entries[index] for index in range(len(self.dataset)))
        return [Entry(f"files cut to size: {entry.image}", entry.mask) for entry in kept]

    def _made(self, task: Task, stored: StoredSample, settings: Data, entries: Sequence[Any] = ()) -> Times:
        """Time to make the sample from ``stored`` in memory. ``entries``: used in place of the data set's entries."""
        held = Held(stored, self.dataset.labels, entries or self.dataset.entries)
        made = partial(SampleMaker(held, settings, self.seed), task, *self.out)
        made()  # the first read of a file may write to the cache folder; later reads use that
        return clock(made)

    def _stages(self, task: Task, stored: StoredSample, image: np.ndarray, mask: np.ndarray) -> None:
        flat = StoredSample(image, mask, stored.image_name, stored.mask_name, "train")
        half = StoredSample(stored.image, mask, stored.image_name, stored.mask_name, "train")
        made = self._made(task, flat, self.data)
        if not isinstance(stored.image, np.ndarray):
            with_image, content = self._made(task, half, self.data), bytes(stored.image)
            header = clock(partial(decode.read_header, content, stored.image_name))
            self.costs["header"].append(header)
            self.costs["image"].append(less(with_image, made, header))
            as_it_is = self._made(task, stored, self.data)
            self.costs["mask"].append(less(as_it_is, with_image))
            self.other_forms["as it is"].append(as_it_is)
            self.other_forms["pixels in memory"].append(made)
        if self.data.transforms and self.data.transforms_mode == "replace":
            self.costs["transforms"].append(made)
            return
        if self.data.transforms:
            plain = self._made(task, flat, self.data.model_copy(update={"transforms": ""}))
            self.costs["transforms"].append(less(made, plain))
            made = plain
        key, size = (self.seed, task.epoch, task.index), (mask.shape[0], mask.shape[1])
        drawing = clock(lambda: draw(rng_for(*key), size, task.crop, self.data, None, task.scale))
        self.costs["draw"].append(drawing)
        centering = (0.0, 0.0)
        if self.data.class_balanced_crop_prob > 0:
            u = rng_for(*key, CLASS).random(3)
            if u[0] < self.data.class_balanced_crop_prob:
                centering = clock(lambda: class_center(mask, u[1:], self.dataset.labels.num_classes))
            self.costs["center"].append(centering)
        self.costs["crop"].append(less(made, drawing, centering))


def length(stored: Any) -> int:
    """Bytes to read from storage; 0 for generated pixels."""
    return 0 if stored is None or isinstance(stored, np.ndarray) else len(stored)


def full_decode(record: StoredSample) -> None:
    """Decode the whole image and the raw mask, as a loader without optimizations does."""
    decode.decode_image(bytes(record.image), record.image_name)
    if not isinstance(record.mask, np.ndarray):
        decode.decode_mask(bytes(record.mask or b""), record.mask_name)


def summary(times: dict[str, list[Times]]) -> dict[str, dict[str, float]]:
    """For each stage: ``cpu_ms`` and ``wall_ms`` are medians over the samples, ``cpu_mean_ms`` is the mean CPU time."""
    result = {}
    for stage, pairs in times.items():
        cpu, wall = zip(*pairs)
        result[stage] = {
            "cpu_ms": statistics.median(cpu),
            "cpu_mean_ms": statistics.fmean(cpu),
            "wall_ms": statistics.median(wall),
            "samples": len(pairs),
        }
    return result


def cold_reads(paths: Iterable[str | None]) -> dict[str, Any]:
    """Read files that are not in the page cache, with one thread.

    Returns ``ms_a_file`` (mean wall ms) and ``mb_per_s``. If there was no such file, returns ``why_not``.
    """
    sizes, seconds, why = [], 0.0, NO_FILES
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
    mean, rate = 1000 * seconds / len(sizes), sum(sizes) / 1e6 / max(seconds, 1e-9)
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
    """Pack a few samples in each possible form. Returns a dictionary per form (see ``pack_estimate.EstimateRow``).

    Returns an empty list if the data set is packed already, or if data.cache=ram.
    """
    data = config.data
    if data.layout == "shards" or data.cache == "ram":
        return []
    dataset = few(config, {**request, "samples": min(PACKED, request["samples"])})
    return list(estimate(dataset, data, Packing(), 1, data.faults == "skip").to_dict()["choices"])


def measure(config: Config, request: dict[str, Any]) -> dict[str, Any]:
    """Measure all stages with this process's decoder. Raises SegtrainError.

    If ``request["cures"]`` is true, also measure other forms of the files, which may be fixes for a slow pipeline.
    """
    dataset = few(config, request)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    entries = [dataset.entries[index] for index in range(len(dataset))]
    cold = cold_reads(path for entry in entries for path in (entry.image, entry.mask))
    bench = Bench(config, dataset, request["cures"])
    for index in range(len(dataset)):
        bench.sample(index)
    image, mask, pixels = map(statistics.fmean, zip(*bench.sizes))
    return {
        **decoder(),
        "samples": len(bench.sizes),
        "stages": summary(bench.costs),
        "cures": summary(bench.other_forms),
        "packed": packed(config, request) if request["cures"] and image else [],
        "cold": cold,
        "formats": dict(bench.formats),
        "bytes_image": image,
        "bytes_mask": mask,
        "pixels": pixels,
    }


if __name__ == "__main__":
    answer_with(measure)
