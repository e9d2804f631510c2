"""Cost of each form of packing: bytes on the disk and CPU time per sample, measured on the user's
own data.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import cv2
import numpy as np

from segtrain.config import Data
from segtrain.data.dataset import Dataset, SampleSource
from segtrain.data.sample import SampleMaker, Task
from segtrain.data.shards import index as shard_index
from segtrain.data.shards.index import Description, ShardEntries
from segtrain.data.shards.pack_sample import Form, Ids, Packing, packed_labels, probe, sound
from segtrain.data.shards.pack_shard import ShardTask
from segtrain.data.shards.pack_target import DiskTarget
from segtrain.data.shards.reader import ShardDataset

_ROUNDS = 2  # measured passes over the samples, after one to warm up
_KEPT = {"keep": "the same bytes", "png": "the same pixels", "raw": "the same pixels"}


@dataclass(frozen=True)
class EstimateRow:
    """One way to store the split."""

    name: str
    sample: float  # bytes, image and mask
    whole: float  # bytes of the split
    ms: float  # CPU milliseconds to make a training sample
    pixels: str = ""


@dataclass(frozen=True)
class Estimate:
    """Cost of each form of a packed split, compared with the original files."""

    split: str
    samples: int
    measured: int
    crop: tuple[int, int]
    rows: tuple[EstimateRow, ...]

    def text(self) -> str:
        """An aligned table."""
        now = self.rows[0]
        lines = [
            f"{self.split}: {self.samples:,} samples, measured on {self.measured}, "
            f"crops of {self.crop[0]}x{self.crop[1]}",
            (
                f"{'--image':<12} {'kB/sample':>12} {'total MB':>12} {'of files':>9} "
                f"{'CPU ms':>8}  pixels"
            ),
        ]
        for row in self.rows:
            share = f"{row.whole / now.whole:.0%}" if now.whole else "-"
            figures = (
                f"{row.sample / 1e3:>12,.1f} {row.whole / 1e6:>12,.1f} {share:>9} "
                f"{row.ms:>8.2f}  {row.pixels}"
            )
            lines.append(f"{row.name:<12} {figures}".rstrip())
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        return {**values, "choices": values.pop("rows")}


def estimate(
    dataset: Dataset, data: Data, choice: Packing, workers: int = 1, skip_faults: bool = False
) -> Estimate:
    """Pack some evenly spread samples in each form, with the quality and cap of ``choice``, and
    make crops from them.

    Raises DataError for faulty files, as packing would.
    """
    good, ids = sound(dataset, workers, skip_faults)
    indices = probe(good)
    sizes = dataset.stamps()[:, :, 0].sum(axis=1)
    ms = _cpu_ms(dataset, indices, data)
    rows = [EstimateRow("files", float(sizes[indices].mean()), float(sizes[good].sum()), ms)]
    for form in get_args(Form):
        named = replace(choice, image=form)
        with tempfile.TemporaryDirectory(prefix="segtrain-pack-") as folder:
            packed = _packed(dataset, indices, named, ids, folder)
            ms = _cpu_ms(packed, list(range(len(indices))), data)
            size = sum(shard.size for shard in packed.table.description.shards) / len(indices)
            text = "smaller" if choice.cap else _KEPT.get(form, f"JPEG, quality {choice.quality}")
            rows.append(EstimateRow(form, size, size * len(good), ms, text))
    return Estimate(dataset.split, len(good), len(indices), data.crop, tuple(rows))


def _packed(
    dataset: Dataset, indices: list[int], choice: Packing, ids: Ids, folder: str
) -> ShardDataset:
    """Pack the samples into one shard in ``folder``, and open it as a data set."""
    task = ShardTask(dataset, DiskTarget(folder, dataset.split), 0, indices, choice, ids)
    record, labels = task.run(), packed_labels(dataset.labels, ids)
    path = os.path.join(folder, dataset.split + shard_index.ENDING)
    description = Description(dataset.split, "", (task.shard(record),), (), labels, ids)
    shard_index.write(path, description, task.spans(record))
    return ShardDataset(
        "",
        dataset.split,
        labels,
        ShardEntries(shard_index.load(path), folder, len(indices)),
        folder,
    )


def _cpu_ms(source: SampleSource, indices: list[int], data: Data) -> float:
    """CPU milliseconds of this thread per training sample: the median of the rounds after the
    first.
    """
    cv2.setNumThreads(1)
    maker = SampleMaker(source, data, 0)
    image = np.empty((*data.crop, 3), np.uint8)
    mask = np.empty(data.crop, source.labels.mask_dtype)
    times = []
    for epoch in range(_ROUNDS + 1):
        began = time.thread_time()
        for index in indices:
            maker(Task(index, epoch, data.crop, data.scale), image, mask)
        times.append((time.thread_time() - began) * 1e3 / len(indices))
    return float(np.median(times[1:]))
