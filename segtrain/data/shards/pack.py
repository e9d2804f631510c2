"""Packing of splits into verified shards, which continues where a killed pack stopped.

One shard is one unit of work. It is written to a hidden file, read back from the disk, compared, and only then renamed.
A hidden folder keeps its checksum and sample locations until the index of the split, which is written last, holds them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from segtrain.cores import cores
from segtrain.data.audit.check import settings_of
from segtrain.data.datasets import Dataset, open_dataset
from segtrain.data.shards import index as shard_index
from segtrain.data.shards.index import Description
from segtrain.data.shards.pack_estimate import estimate
from segtrain.data.shards.pack_sample import Form, Ids, Packing, mask_ids, pack_sample, packed_labels, probe, sound
from segtrain.data.shards.pack_shard import ShardTask, key_of, member_bytes
from segtrain.data.storage import LOCAL, writing
from segtrain.errors import ConfigError, DataError, file_error

VERSION = 1  # changes when a pack writes other bytes for the same options


@dataclass(frozen=True)
class PackSummary:
    """Result of a pack. ``bytes``: of the shards; ``notes`` counts images that are not in the requested form."""

    split: str
    folder: str
    samples: int
    skipped: int
    shards: int
    kept: int  # intact shards of an earlier, killed pack
    bytes: int
    masks: Ids
    notes: dict[str, int]
    seconds: float

    def text(self) -> str:
        lines = [
            f"{self.split}: {self.samples:,} samples in {self.shards} shards, {self.bytes / 1e6:,.1f} MB, "
            f"in {self.folder}, {self.seconds:.1f} s"
            + (f"; {self.kept} shards were there and whole" if self.kept else "")
        ]
        if self.skipped:
            lines.append(f"{self.split}: {self.skipped:,} faulty samples left out")
        if self.masks == "train":
            lines.append(f"{self.split}: masks hold train ids, since their raw ids or colors do not fit into 8 bits")
        return "\n".join([*lines, *(f"{self.split}: {count:,} images {note}" for note, count in self.notes.items())])


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
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Pack each split (None: all splits of ``root``) into ``folder``, unless ``only_estimate``; measure each form.

    Returns plain values by split. Raises DataError, ConfigError.
    """
    for name, value, least, most in (
        ("--quality", quality, 1, 100),
        ("--cap", cap, 0, 1 << 16),
        ("--shard-mb", shard_mb, 0.001, 1 << 20),
        ("--workers", workers, 0, 256),
    ):
        if not least <= value <= most:
            reason, span = f"{name} {value}: give a number from {least} to {most}", (least, most)
            raise ConfigError(reason, code="number-out-of-range", key=name, found=value, expected=span)
    data, found = settings_of(root, overrides)
    choice = Packing(image, quality, cap)
    workers = workers or cores()
    datasets = [open_dataset(data, split) for split in splits or found]  # opened before the first byte is written
    result: dict[str, Any] = {}
    for dataset in datasets:
        for note in dataset.notes:
            say(note)
        result[dataset.split] = {}
        if not only_estimate:
            options: dict[str, Any] = {"shard_mb": shard_mb, "workers": workers, "skip_faults": skip_faults}
            done = pack(dataset, folder, choice, **options, say=say)
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
    say: Callable[[str], None] = print,
) -> PackSummary:
    """Write a split as ``folder/SPLIT-000000.tar``, ... and ``folder/SPLIT.index``; an existing split is kept.

    Raises DataError naming every faulty file (unless ``skip_faults``), another pack in the folder, or a full disk.
    """
    began, folder = time.perf_counter(), os.path.abspath(folder)
    if dataset.root and os.path.realpath(dataset.root) == os.path.realpath(folder):
        reason = "is the folder of the data set itself: write the shards elsewhere"
        raise DataError(f"{folder}: {reason}", code="pack-into-source", folder=folder)
    indices = sound(dataset, workers, skip_faults)
    _refuse_double(dataset, indices)
    ids = mask_ids(dataset)
    options = {**asdict(choice), "shard_mb": shard_mb, "masks": ids, "skip_faults": skip_faults, "version": VERSION}
    plan: dict[str, Any] = {"options": options, "source": _source(dataset), "samples": len(indices)}
    index, notes = os.path.join(folder, dataset.split + shard_index.ENDING), Counter[str]()
    if os.path.exists(index):
        description = shard_index.load(index).description
        _refuse_other({"options": description.options, "source": description.source}, plan, index)
        say(f"{dataset.split}: packed already")
        kept = len(description.shards)
    else:
        with _alone(os.path.join(folder, f".packing-{dataset.split}")) as hidden:
            per_shard = _begin(dataset, hidden, plan, indices, choice, ids, shard_mb)
            parts = np.array_split(indices, range(per_shard, len(indices), per_shard))
            tasks = [ShardTask(dataset, folder, hidden, k, part.tolist(), choice, ids) for k, part in enumerate(parts)]
            done = []
            with ThreadPoolExecutor(max(1, workers)) as pool:
                for number, shard in enumerate(pool.map(ShardTask.run, tasks), 1):
                    done.append(shard)
                    notes.update(shard["notes"])
                    say(f"{dataset.split}: shard {number} of {len(tasks)}{', was there and whole' * shard['kept']}")
            kept = sum(shard["kept"] for shard in done)
            shards, labels = tuple(map(ShardTask.shard, tasks, done)), packed_labels(dataset.labels, ids)
            skipped = len(dataset) - len(indices)
            description = Description(dataset.split, "", shards, (), labels, ids, options, plan["source"], skipped)
            shard_index.write(index, description, itertools.chain.from_iterable(map(ShardTask.spans, tasks, done)))
            shutil.rmtree(hidden)
    count, size = len(description.shards), sum(shard.size for shard in description.shards)
    skipped, seconds = description.skipped, time.perf_counter() - began
    return PackSummary(dataset.split, folder, len(indices), skipped, count, kept, size, ids, dict(notes), seconds)


def _refuse_double(dataset: Dataset, indices: np.ndarray) -> None:
    """Raise DataError for samples with equal keys (a.jpg and a.png in a list), which a tar reader cannot separate."""
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
    return f"{dataset.fingerprint(stamped)}-{hashlib.sha256(np.ascontiguousarray(stamped).data).hexdigest()[:12]}"


def _begin(
    dataset: Dataset, hidden: str, plan: dict[str, Any], indices: np.ndarray, choice: Packing, ids: Ids, shard_mb: float
) -> int:
    """Samples per shard: as in an unfinished pack of the same options and inputs, else by the requested size."""
    path = os.path.join(hidden, "plan.json")
    if os.path.exists(path):
        found = json.loads(LOCAL.read(path))
        _refuse_other(found, plan, hidden)
        return int(found["per_shard"])
    sizes = [member_bytes(pack_sample(dataset, index, choice, ids)) for index in probe(indices)]
    need, free = float(np.mean(sizes)) * len(indices), shutil.disk_usage(hidden).free
    if need > free:
        folder = os.path.dirname(hidden)
        reason = f"the pack needs about {need / 1e9:,.2f} GB, but {free / 1e9:,.2f} GB are free"
        fix = "free space or pack into another folder"
        raise DataError(f"{folder}: {reason}: {fix}", code="disk-too-small", folder=folder, found=free, expected=need)
    per_shard = max(1, int(shard_mb * 1e6 / np.mean(sizes)))
    with writing(path) as stream:
        stream.write(json.dumps({**plan, "per_shard": per_shard}).encode())
    return per_shard


def _refuse_other(found: dict[str, Any], plan: dict[str, Any], path: str) -> None:
    """Raise DataError if a pack in the same folder has other options or inputs."""
    before, now = found["options"], plan["options"]
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    other = [f"{key}={before.get(key)!r}, now {now.get(key)!r}" for key in changed]
    if found["source"] != plan["source"]:
        other.append("other files, labels, or times of files")
    if other:
        reason = f"belongs to a pack with {'; '.join(other)}: delete it, or pack into another folder"
        raise file_error(path, reason, code="pack-differs", found=other)


@contextmanager
def _alone(hidden: str) -> Iterator[str]:
    """The hidden folder, for one process at a time. Raises DataError."""
    try:
        os.makedirs(hidden, exist_ok=True)
        handle = os.open(os.path.join(hidden, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        reason = f"{hidden}: cannot be created ({error.strerror}): check the folder and its permissions"
        raise DataError(reason, code="folder-unwritable", folder=hidden, found=error.strerror) from None
    try:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{hidden}: another process is packing this split: wait for it"
            raise DataError(message, code="pack-in-progress", folder=hidden) from None
        except (ImportError, OSError):  # a system or file system without locks
            pass
        for name in os.listdir(hidden):
            # Left by a pack that was killed; version 0.1 named them .part-XXXX.
            if name.startswith(".") and ".part" in name:
                os.unlink(os.path.join(hidden, name))
        yield hidden
    finally:
        os.close(handle)
