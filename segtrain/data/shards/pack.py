"""Packs splits into verified tar shards. After a kill, the same command continues where it stopped.

One shard is one unit of work. It is written to a hidden file, read back from the disk, compared,
and only then renamed. A hidden folder keeps the checksum and sample locations of each finished
shard. After the last shard, the index of the split is written, and the hidden folder is removed.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from segtrain.base.cores import cores
from segtrain.base.terminal import Say, counted
from segtrain.bucket import is_bucket
from segtrain.data.audit.check import settings_of
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset, refuse_stored
from segtrain.data.shards.index import Description
from segtrain.data.shards.pack_bucket import BucketTarget
from segtrain.data.shards.pack_estimate import estimate
from segtrain.data.shards.pack_sample import (
    Form,
    Ids,
    Packing,
    pack_sample,
    packed_labels,
    probe,
    sound,
)
from segtrain.data.shards.pack_shard import ShardTask, key_of, member_bytes
from segtrain.data.shards.pack_target import DiskTarget
from segtrain.errors import ConfigError, DataError, file_error

VERSION = 1  # changes when a pack writes other bytes for the same options


@dataclass(frozen=True)
class PackSummary:
    """Result of packing a split. ``bytes``: the size of all shards."""

    split: str
    folder: str
    samples: int
    skipped: int
    shards: int
    kept: int  # intact shards of an earlier, killed pack
    bytes: int
    masks: Ids
    seconds: float

    def text(self) -> str:
        lines = [
            f"{self.split}: {counted(self.samples, 'sample')} in {counted(self.shards, 'shard')}, "
            f"{self.bytes / 1e6:,.1f} MB, in {self.folder}, {self.seconds:.1f} s"
            + (f"; {self.kept} shards were there and intact" if self.kept else "")
        ]
        if self.skipped:
            lines.append(f"{self.split}: {self.skipped:,} faulty samples left out")
        if self.masks == "train":
            lines.append(f"{self.split}: masks hold train ids, in place of colors or other ids")
        return "\n".join(lines)


def pack_folder(
    root: str,
    folder: str,
    splits: list[str] | None,
    overrides: list[str],
    *,
    image: Form = "keep",
    quality: int = 95,
    cap: int = 0,
    shard_mb: float = 256,
    workers: int = 0,
    skip_faults: bool = False,
    only_estimate: bool = False,
    say: Say = print,
) -> dict[str, Any]:
    """Pack the splits (None: all splits of ``root``) into ``folder``, and measure the cost of each
    ``Form`` of images.

    With ``only_estimate``, it only measures. Returns a dict of plain values for each split. Raises
    DataError, ConfigError.
    """
    for name, value, least, most in (
        ("--quality", quality, 1, 100),
        ("--cap", cap, 0, 1 << 16),
        ("--shard-mb", shard_mb, 0.001, 1 << 20),
        ("--workers", workers, 0, 256),
    ):
        if not least <= value <= most:
            reason, span = f"{name} {value}: give a number from {least} to {most}", (least, most)
            raise ConfigError(
                reason, code="number-out-of-range", key=name, found=value, expected=span
            )
    data, split_names = settings_of(root, overrides)
    refuse_stored(data, "segtrain data pack")
    choice = Packing(image, quality, cap)
    workers = workers or cores()
    # opened before the first byte is written
    datasets = [open_dataset(data, split) for split in splits or split_names]
    result: dict[str, Any] = {}
    for dataset in datasets:
        for note in dataset.notes:
            say(note)
        result[dataset.split] = {}
        if not only_estimate:
            done = pack(
                dataset,
                folder,
                choice,
                shard_mb=shard_mb,
                workers=workers,
                skip_faults=skip_faults,
                outage_s=data.outage_s,
                say=say,
            )
            say(done.text())
            result[dataset.split]["packed"] = vars(done)
        measured = estimate(dataset, data, choice, workers, skip_faults)
        say(measured.text())
        result[dataset.split]["estimate"] = measured.to_dict()
    return result


def pack(
    dataset: Dataset,
    folder: str,
    choice: Packing,
    *,
    shard_mb: float = 256,
    workers: int = 1,
    skip_faults: bool = False,
    outage_s: float = 300,
    say: Say = print,
) -> PackSummary:
    """Write a split as ``folder/SPLIT-000000.tar``, ... and ``folder/SPLIT.index``, unless it is
    already packed there.

    Raises DataError for faulty files (one error that names all of them; ``skip_faults`` leaves them
    out instead), for another pack in the folder, and for a full disk.
    """
    began, workers = time.perf_counter(), max(1, workers)
    split = dataset.split
    target = (
        BucketTarget(folder, split, workers, outage_s)
        if is_bucket(folder)
        else DiskTarget(folder, split)
    )
    _refuse_source(dataset, target)
    indices, ids = sound(dataset, workers, skip_faults)
    _refuse_double(dataset, indices)
    options = {
        **asdict(choice),
        "shard_mb": shard_mb,
        "masks": ids,
        "skip_faults": skip_faults,
        "version": VERSION,
    }
    plan: dict[str, Any] = {"options": options, "source": _source(dataset), "samples": len(indices)}
    description = target.finished()
    if description is not None:
        earlier = {"options": description.options, "source": description.source}
        _refuse_other(earlier, plan, target.index)
        say(f"{dataset.split}: packed already")
        intact = len(description.shards)
    else:
        with target.alone():
            per_shard = _begin(dataset, target, plan, indices, choice, ids, shard_mb)
            parts = np.array_split(indices, range(per_shard, len(indices), per_shard))
            tasks = [
                ShardTask(dataset, target, number, part.tolist(), choice, ids)
                for number, part in enumerate(parts)
            ]
            done = []
            with ThreadPoolExecutor(workers + target.uploads) as pool:
                for number, shard in enumerate(_in_order(pool, tasks), 1):
                    done.append(shard)
                    say(
                        f"{dataset.split}: shard {number} of "
                        f"{len(tasks)}{', there and intact' * shard['kept']}"
                    )
            intact = sum(shard["kept"] for shard in done)
            shards, labels = (
                tuple(map(ShardTask.shard, tasks, done)),
                packed_labels(dataset.labels, ids),
            )
            skipped = len(dataset) - len(indices)
            description = Description(
                dataset.split, "", shards, (), labels, ids, options, plan["source"], skipped
            )
            target.finish(
                description, itertools.chain.from_iterable(map(ShardTask.spans, tasks, done))
            )
    return PackSummary(
        dataset.split,
        target.place,
        len(indices),
        description.skipped,
        len(description.shards),
        intact,
        sum(shard.size for shard in description.shards),
        ids,
        time.perf_counter() - began,
    )


def _in_order(pool: ThreadPoolExecutor, tasks: Sequence[ShardTask]) -> Iterator[dict[str, Any]]:
    """Run the tasks in the pool, and yield their results in order. After an error, no further task
    begins.
    """
    futures = [pool.submit(task.run) for task in tasks]
    try:
        for future in futures:
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _refuse_source(dataset: Dataset, target: DiskTarget | BucketTarget) -> None:
    """Raise DataError if the target is the root of the data set, or a folder with files of it.

    New shards there could replace shards of the source, or be read as part of it.
    """
    for folder in dataset.folders():
        if target.holds(folder):
            reason = "is a folder of the data set itself: write the shards elsewhere"
            raise DataError(
                f"{target.place}: {reason}", code="pack-into-source", folder=target.place
            )


def _refuse_double(dataset: Dataset, indices: np.ndarray) -> None:
    """Raise DataError for samples with equal keys (a.jpg and a.png in a list), which a tar reader
    cannot separate.
    """
    seen: dict[str, int] = {}
    for index in indices.tolist():
        first = seen.setdefault(key_of(dataset.entries[index].meta["name"]), index)
        if first != index:
            image, other = dataset.entries[index].image, dataset.entries[first].image
            reason = f"has the same name as {other} except for the extension: rename one of them"
            raise file_error(image, reason, code="pack-same-name", other=other)


def _source(dataset: Dataset) -> str:
    """The fingerprint of the packed data set and a hash of the times of its files."""
    stamped = dataset.stamps()
    times = hashlib.sha256(np.ascontiguousarray(stamped).data).hexdigest()
    return f"{dataset.fingerprint(stamped)}-{times[:12]}"


def _begin(
    dataset: Dataset,
    target: DiskTarget | BucketTarget,
    plan: dict[str, Any],
    indices: np.ndarray,
    choice: Packing,
    ids: Ids,
    shard_mb: float,
) -> int:
    """Begin or continue a pack. Returns the number of samples per shard: as in the unfinished pack,
    or by ``shard_mb``.

    Raises DataError if the unfinished pack has other options or inputs, or if the disk is too
    small.
    """
    earlier = target.plan()
    if earlier is not None:
        _refuse_other(earlier, plan, target.hidden)
        return int(earlier["per_shard"])
    some = probe(indices)
    with dataset.reading_ahead(some, 1):
        size = float(
            np.mean([member_bytes(pack_sample(dataset, index, choice, ids)) for index in some])
        )
    per_shard = max(1, int(shard_mb * 1e6 / size))
    target.refuse_full(size * len(indices), size * per_shard)
    target.keep_plan({**plan, "per_shard": per_shard})
    return per_shard


def _refuse_other(earlier: dict[str, Any], plan: dict[str, Any], path: str) -> None:
    """Raise DataError if a pack in the same folder has other options or inputs."""
    before, now = earlier["options"], plan["options"]
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    other = [f"{key}={before.get(key)!r}, now {now.get(key)!r}" for key in changed]
    if earlier["source"] != plan["source"]:
        other.append("other files, labels, or times of files")
    if other:
        reason = f"belongs to a pack with {'; '.join(other)}: pack into another folder"
        raise file_error(path, reason, code="pack-differs", found=other)
