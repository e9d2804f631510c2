"""Packing of a split into verified shards, which continues where a killed pack stopped.

One shard is one unit of work. It is written to a hidden file, read back from the disk, compared, and only then renamed.
Its checksum and sample locations stay in a hidden folder until the index of the split, which is written last, holds them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from segtrain.data.audit.audit import audit
from segtrain.data.datasets import Dataset
from segtrain.data.shards import index as shard_index
from segtrain.data.shards.index import Description, Shard, ShardSpan
from segtrain.data.shards.pack_sample import Ids, Packing, mask_ids, pack_sample, packed_labels
from segtrain.data.shards.pack_shard import key_of, member_bytes, write_shard
from segtrain.data.shards.reader import checksum
from segtrain.data.storage import LOCAL, writing
from segtrain.errors import DataError

VERSION = 1  # changes when a pack writes other bytes for the same options
PROBE = 32  # samples from which the size of the others is estimated


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
        raise DataError(
            f"{folder}: is the folder of the data set itself: write the shards elsewhere",
            code="pack-into-source", folder=folder,
        )  # fmt: skip
    indices = sound(dataset, workers, skip_faults)
    _refuse_double(dataset, indices)
    ids = mask_ids(dataset)
    options = {**asdict(choice), "shard_mb": shard_mb, "masks": ids, "skip_faults": skip_faults, "version": VERSION}
    source = _source(dataset)
    plan = {"options": options, "source": source, "samples": len(indices)}
    index = os.path.join(folder, dataset.split + shard_index.ENDING)
    if os.path.exists(index):
        what = shard_index.load(index).what
        _refuse_other({"options": what.options, "source": what.source}, plan, index)
        say(f"{dataset.split}: packed already")
        return _summary(dataset, folder, what, len(indices), len(what.shards), {}, ids, began)
    with _alone(os.path.join(folder, f".packing-{dataset.split}")) as hidden:
        per_shard = _begin(dataset, hidden, plan, indices, choice, ids, shard_mb)
        parts = np.array_split(indices, range(per_shard, len(indices), per_shard))
        tasks = [
            _ShardTask(dataset, folder, hidden, number, part.tolist(), choice, ids) for number, part in enumerate(parts)
        ]
        done = []
        with ThreadPoolExecutor(max(1, workers)) as pool:
            try:
                for number, known in enumerate(pool.map(_ShardTask.run, tasks)):
                    done.append(known)
                    say(f"{dataset.split}: shard {number + 1} of {len(tasks)}{', was there and whole' * known['kept']}")
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        shards = tuple(Shard(task.name, known["size"], known["sha256"]) for task, known in zip(tasks, done))
        what = Description(
            dataset.split,
            "",
            shards,
            (),
            packed_labels(dataset.labels, ids),
            ids,
            options,
            source,
            len(dataset) - len(indices),
        )
        shard_index.write(
            index, what, itertools.chain.from_iterable(task.places(known) for task, known in zip(tasks, done))
        )
        shutil.rmtree(hidden)
    notes: Counter[str] = Counter()
    for known in done:
        notes.update(known["notes"])
    return _summary(dataset, folder, what, len(indices), sum(known["kept"] for known in done), dict(notes), ids, began)


def sound(dataset: Dataset, workers: int, skip_faults: bool) -> np.ndarray:
    """Indices of the samples without faults, int64, after reading all. Raises DataError unless faults are skipped."""
    report = audit(dataset, workers)
    if not report.faults:
        return np.arange(len(dataset))
    if not skip_faults:
        lines = [
            f"{dataset.name} {dataset.split}: {len(report.faults)} faults, nothing is packed",
            *(m for _, m in report.faults),
        ]
        raise DataError(
            "\n  ".join([*lines, "repair or remove these files, or leave them out with --skip-faults"]),
            code="pack-faults", split=dataset.split, files=[file for file, _ in report.faults],
        )  # fmt: skip
    bad = {file for file, _ in report.faults}
    kept = [index for index, entry in enumerate(dataset.entries) if not {entry.image, entry.mask} & bad]
    if not kept:
        raise DataError(
            f"{dataset.name} {dataset.split}: every sample is faulty: {report.faults[0][1]}",
            code="pack-nothing-sound", split=dataset.split, found=len(report.faults),
        )  # fmt: skip
    return np.array(kept, np.int64)


def _refuse_double(dataset: Dataset, indices: np.ndarray) -> None:
    """Raise DataError for samples with equal keys (a.jpg and a.png in a list), which a tar reader cannot separate."""
    seen: dict[str, int] = {}
    for index in indices.tolist():
        key = key_of(dataset.entries[index].meta["name"])
        if seen.setdefault(key, index) != index:
            raise DataError(
                f"{dataset.entries[index].image}: has the same name without ending as "
                f"{dataset.entries[seen[key]].image}: rename one of them",
                code="pack-same-name", file=dataset.entries[index].image, other=dataset.entries[seen[key]].image,
            )  # fmt: skip


def _source(dataset: Dataset) -> str:
    """Names what is packed: the fingerprint, then the times of the files."""
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
    probe = indices[np.arange(min(PROBE, len(indices))) * len(indices) // min(PROBE, len(indices))]
    sizes = [member_bytes(pack_sample(dataset, index, choice, ids)) for index in probe.tolist()]
    need, free = float(np.mean(sizes)) * len(indices), shutil.disk_usage(hidden).free
    if need > free:
        raise DataError(
            f"{os.path.dirname(hidden)}: the pack needs about {need / 1e9:,.2f} GB, but {free / 1e9:,.2f} GB are free: "
            "free space or pack into another folder",
            code="disk-too-small", folder=os.path.dirname(hidden), found=free, expected=need,
        )  # fmt: skip
    per_shard = max(1, int(shard_mb * 1e6 / np.mean(sizes)))
    with writing(path) as stream:
        stream.write(json.dumps({**plan, "per_shard": per_shard}).encode())
    return per_shard


def _refuse_other(found: dict[str, Any], plan: dict[str, Any], place: str) -> None:
    """Raise DataError if a pack in the same folder has other options or inputs."""
    before, now = found["options"], plan["options"]
    other = [
        f"{key}={before.get(key)!r}, now {now.get(key)!r}"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    ]
    if found["source"] != plan["source"]:
        other.append("other files, labels or times of files")
    if other:
        raise DataError(
            f"{place}: belongs to a pack with {'; '.join(other)}: delete it, or pack into another folder",
            code="pack-differs", file=place, found=other,
        )  # fmt: skip


@contextmanager
def _alone(hidden: str) -> Iterator[str]:
    """The hidden folder, for one process at a time. Raises DataError."""
    try:
        os.makedirs(hidden, exist_ok=True)
        handle = os.open(os.path.join(hidden, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise DataError(
            f"{hidden}: cannot be created ({error.strerror}): check the folder and its rights",
            code="folder-unwritable", folder=hidden, found=error.strerror,
        ) from None  # fmt: skip
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


@dataclass(frozen=True)
class _ShardTask:
    """One shard to write: the samples ``indices`` of ``dataset``."""

    dataset: Dataset
    folder: str
    hidden: str
    number: int
    indices: Sequence[int]
    choice: Packing
    ids: Ids

    @property
    def name(self) -> str:
        return f"{self.dataset.split}-{self.number:06d}.tar"

    def run(self) -> dict[str, Any]:
        """Size, checksum, places, and notes of the shard, which is written unless it already exists and is intact."""
        path, note = os.path.join(self.folder, self.name), os.path.join(self.hidden, f"{self.number:06d}.json")
        if os.path.exists(note) and os.path.exists(path):
            known = json.loads(LOCAL.read(note))
            if LOCAL.stat(path).size == known["size"] and checksum(path) == known["sha256"]:
                return {**known, "kept": True}
        with writing(path, self.hidden) as stream:
            known = write_shard(stream, self.dataset, self.indices, self.choice, self.ids, self.name)
        with writing(note) as stream:
            stream.write(json.dumps(known).encode())
        return {**known, "kept": False}

    def places(self, known: dict[str, Any]) -> Iterator[ShardSpan]:
        for name, image, mask, size in known["places"]:
            yield ShardSpan(name, self.number, tuple(image), tuple(mask), tuple(size))


def _summary(
    dataset: Dataset,
    folder: str,
    what: Description,
    samples: int,
    kept: int,
    notes: dict[str, int],
    ids: Ids,
    began: float,
) -> PackSummary:
    size = sum(shard.size for shard in what.shards)
    return PackSummary(
        dataset.split,
        folder,
        samples,
        what.skipped,
        len(what.shards),
        kept,
        size,
        ids,
        notes,
        time.perf_counter() - began,
    )
