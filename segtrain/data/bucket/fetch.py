"""`segtrain data fetch`: fills the disk cache with the samples of a bucket, before a run or without
one.

Adjacent samples of a shard are fetched together in requests of several megabytes, with many in
flight. Entries that are already in the cache are only verified, so a fetch that was killed
continues where it stopped.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from segtrain.base.memory import memory_limit
from segtrain.base.terminal import Say
from segtrain.bucket import is_bucket
from segtrain.config import Data, load_config
from segtrain.data.audit.check import settings_of
from segtrain.data.bucket.disk_cache import DiskCache
from segtrain.data.bucket.merging import merged
from segtrain.data.bucket.store import BucketStore
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.storage import Range
from segtrain.errors import ConfigError, DataError

# Most bytes of one request; most bytes of all requests in flight, absolute and as a share of the
# memory.
_REQUEST, _IN_FLIGHT, _MEMORY = 8 << 20, 256 << 20, 0.1
_READERS = 64
# Seconds between lines of progress.
_EVERY = 2.0
_HEADERS = 1.01  # factor for the space that the headers of entries and the folders take


@dataclass
class Fetched:
    """Result for one split. ``bytes``: size of all its samples. ``fetched``: bytes that were not in
    the cache yet.
    """

    split: str
    samples: int
    bytes: int
    fetched: int = 0
    seconds: float = 0.0

    def text(self) -> str:
        rate = (
            f" at {self.fetched / self.seconds / 1e6:,.0f} MB/s"
            if self.fetched and self.seconds
            else ""
        )
        return (
            f"{self.split}: {self.samples:,} samples, {amount(self.bytes)}, are in the cache; "
            f"{amount(self.fetched)} were fetched{rate}, {self.seconds:.1f} s"
        )


def amount(size: float) -> str:
    """A number of bytes as text, in GB or MB."""
    return f"{size / 1e9:,.2f} GB" if size >= 1e8 else f"{size / 1e6:,.2f} MB"


def fetch_folder(
    place: str, splits: list[str] | None, overrides: list[str], say: Say = print
) -> dict[str, dict[str, Any]]:
    """Fill the cache with splits of a data set in a bucket. ``place``: the URL of its folder, or a
    config file.

    If ``splits`` is None, these are all splits found in the folder, or data.train_split and
    data.split of the config. Returns the fields of ``Fetched`` for each split. Raises ConfigError
    for data on a local disk and for a cache limit that is too small, and DataError.
    """
    if is_bucket(place):
        data, names = settings_of(place, overrides)
    elif os.path.isdir(place):
        raise _without_bucket(place)
    else:
        data = load_config(place, overrides).data
        names = data.train_split, data.split
    if not is_bucket(data.root):
        raise _without_bucket(data.root)
    data = data.model_copy(update={"cache": "disk"})
    datasets = [open_dataset(data, split) for split in splits or dict.fromkeys(names)]
    sizes = [_size(dataset) for dataset in datasets]
    for dataset, (total, missing) in zip(datasets, sizes):
        needs = f"{amount(total)}, of which {amount(missing)} are to be fetched"
        say(f"{dataset.split}: {len(dataset):,} samples, {needs}")
    _refuse(
        _cache(datasets[0]),
        data,
        sum(total for total, _ in sizes),
        sum(missing for _, missing in sizes),
        say,
    )
    done = {}
    for dataset, (total, _) in zip(datasets, sizes):
        result = _fetch(dataset, Fetched(dataset.split, len(dataset), total), say)
        say(result.text())
        done[dataset.split] = vars(result)
    return done


def _without_bucket(root: str) -> ConfigError:
    return ConfigError(
        f"data.root={root!r} is not in a bucket: there is nothing to fetch; give s3://BUCKET/FOLDER",
        code="fetch-without-bucket",
        key="data.root",
        found=root,
    )


def _store(dataset: Dataset) -> BucketStore:
    assert isinstance(dataset.store, BucketStore)
    return dataset.store


def _cache(dataset: Dataset) -> DiskCache:
    cache = _store(dataset).cache
    assert cache is not None
    return cache


def _ranges(dataset: Dataset) -> Iterator[Range]:
    """The ranges that the cache keeps of each sample. A range that consecutive samples share comes
    once.
    """
    before: set[Range] = set()
    for index in range(len(dataset)):
        now = {wanted.within or wanted for wanted in dataset.ranges(index)}
        yield from sorted(now - before)
        before = now


def _length(store: BucketStore, wanted: Range) -> int:
    return store.stat(wanted.path).size if wanted.length < 0 else wanted.length


def _size(dataset: Dataset) -> tuple[int, int]:
    """Bytes of all samples, and of those that are not in the cache."""
    store, cache, total, missing = _store(dataset), _cache(dataset), 0, 0
    for wanted in _ranges(dataset):
        length, entry = _length(store, wanted), store.entry(wanted)
        total += length
        missing += 0 if entry is not None and cache.holds(entry) else length
    return total, missing


def _refuse(cache: DiskCache, data: Data, total: int, missing: int, say: Say) -> None:
    """Report the space in use. Raise ConfigError if the cache's limit is too small, DataError if
    its disk is.
    """
    try:
        room = cache.room()
        free, held = shutil.disk_usage(cache.folder).free, cache.limit - room
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(
            f"data.cache_dir={cache.folder}: cannot be written ({reason}): choose another folder",
            code="folder-unwritable",
            folder=str(cache.folder),
            found=reason,
        ) from None
    need = int(missing * _HEADERS)
    say(
        f"{cache.folder}: at most {amount(cache.limit)}, {amount(held)} in use, {amount(free)} free"
    )
    if total * _HEADERS > cache.limit:
        bound = f"data.cache_gb={data.cache_gb} allows at most {amount(cache.limit)} here"
        raise ConfigError(
            f"{bound}, but the splits have {amount(total)}: raise it, choose another "
            "data.cache_dir, or fetch "
            "fewer splits or images (--split, data.limit)",
            code="cache-too-small",
            key="data.cache_gb",
            found=cache.limit,
            expected=total,
        )
    # Entries of other data sets can be evicted.
    if need > free + max(0, held - (total - missing)):
        lacks = f"{amount(need)} are needed, but {amount(free)} are free"
        message = f"data.cache_dir={cache.folder}: {lacks}: make space, or choose another folder"
        raise DataError(
            message, code="disk-too-small", folder=str(cache.folder), found=free, expected=need
        )


def _fetch(dataset: Dataset, result: Fetched, say: Say) -> Fetched:
    store, cache, room, held, done = _store(dataset), _cache(dataset), threading.Condition(), 0, 0
    began = shown = time.monotonic()
    groups, most = _groups(store, _ranges(dataset)), min(_IN_FLIGHT, _MEMORY * memory_limit()[0])

    def fetch(reader: int) -> None:
        """Fetch one group after the other, until there are no more, or another thread has
        failed.
        """
        nonlocal held, done, shown, groups
        while True:
            with room:
                size, group = next(groups, (0, []))
                while held and held + size > most:
                    room.wait()
                held += size
            if not group:
                return
            try:
                fetched = _fill(store, cache, group)
            except BaseException:
                groups = iter(())
                raise
            finally:
                with room:
                    held -= size
                    room.notify_all()
            with room:
                done, result.fetched, now = done + size, result.fetched + fetched, time.monotonic()
                if now - shown > _EVERY:
                    shown, rate = now, max(1, done) / (now - began)
                    what = f"{amount(done)} of {amount(result.bytes)}, {rate / 1e6:,.0f} MB/s"
                    say(f"{dataset.split}: {what}, {(result.bytes - done) / rate:,.0f} s left")

    with ThreadPoolExecutor(_READERS, "segtrain-fetch") as pool:
        list(pool.map(fetch, range(_READERS)))
    result.seconds = time.monotonic() - began
    return result


def _groups(store: BucketStore, ranges: Iterable[Range]) -> Iterator[tuple[int, list[Range]]]:
    """Yield the size and the ranges of each group: consecutive ranges of one file, up to the size
    of a request.
    """
    group: list[Range] = []
    size = 0
    for wanted in ranges:
        length = _length(store, wanted)
        if group and (wanted.path != group[0].path or size + length > _REQUEST):
            yield size, group
            group, size = [], 0
        group.append(wanted)
        size += length
    if group:
        yield size, group


def _fill(store: BucketStore, cache: DiskCache, group: list[Range]) -> int:
    """Fetch the ranges of a group that are missing or damaged in the cache. Returns the number of
    bytes fetched.
    """
    fetched = 0
    entries = {wanted: store.entry(wanted) for wanted in group}
    missing = [
        wanted
        for wanted, entry in entries.items()
        if entry is not None and cache.get(entry) is None
    ]
    for request, parts in merged(missing):
        content = memoryview(store.fetch(request.span, None))
        for wanted, at in parts:
            entry = entries[wanted]
            part = content if wanted.length < 0 else content[at : at + wanted.length]
            if entry is None or not cache.write(entry, part):
                raise DataError(
                    f"{cache.folder}: not all samples could be written: see the warning, "
                    "then fetch again",
                    code="cache-not-filled",
                    folder=str(cache.folder),
                )
            fetched += len(part)
    return fetched
