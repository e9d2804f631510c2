"""Cache of a bucket on the local disk: limited in size, verified by checksums, and shared by the
processes of a host.

Workers get fetched bytes at once, and a separate thread writes them. So a slow disk does not slow
down training: what does not fit into the write queue is not cached, and is fetched again in the
next epoch.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import struct
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np

from segtrain.base.files import NO_WAIT, PARTIAL, cache_folder
from segtrain.config import Data
from segtrain.data.bucket.cache_entry import (
    CachedRange,
    CacheFile,
    DamagedEntry,
    bucket_folder,
    folders_in,
)
from segtrain.data.bucket.object_table import KnownObjects

# Most bytes that may wait to be written.
_QUEUE = 64 << 20
# Each eviction frees this share of the size limit. So evictions are rare: each has to list all
# entries.
_ROOM = 0.1
# With data.cache_gb=auto, the limit is this share of the sum of the free space and the size of the
# cache.
_OF_FREE = 0.8
# Unfinished files that are older than this many seconds were left by a killed process.
_OLD = 3600.0
# Seconds that a process waits at exit for the queue to be written.
_PATIENCE = 5.0
_COUNT = struct.Struct("<q")


class DiskCache:
    """A cache of entries in ``folder``, at most ``limit`` bytes (0: most of the free space).
    Thread-safe.

    The least recently used entries are removed first, but never those of a data set that this
    process reads: each epoch needs all of them once, so removing one for another would gain
    nothing.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._settings = str(folder), limit
        self._began = time.time()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[tuple[CachedRange, Any]] = deque()
        self._queued = 0
        self._writer: threading.Thread | None = None
        self._read: dict[str, WeakSet[KnownObjects]] = {}
        self._scanned = self._off = False

    def __reduce__(self) -> tuple[Any, ...]:
        return disk_cache, self._settings

    def protect(self, base: str, objects: KnownObjects) -> None:
        """Never evict the entries of ``objects``, as long as that table exists."""
        with self._lock:
            self._read.setdefault(bucket_folder(base), WeakSet()).add(objects)

    def get(self, entry: CachedRange) -> memoryview | None:
        """The bytes of an entry; None if its file is missing or damaged. A damaged file is
        removed.
        """
        try:
            return entry.read(self.folder, self._began)
        except DamagedEntry:
            self._warn("damaged entries, which are fetched again")
            return None

    def holds(self, entry: CachedRange) -> bool:
        """Whether there is a file for an entry, intact or not."""
        return os.path.exists(entry.path(self.folder))

    def put(self, entry: CachedRange, content: Any) -> None:
        """Queue an entry for the writer thread; if the queue is full, drop it."""
        with self._lock:
            if self._off:
                return
            lost = self._queued + len(content) > max(_QUEUE, len(content))
            if not lost:
                self._queue.append((entry, content))
                self._queued += len(content)
                if self._writer is None:
                    self._writer = threading.Thread(
                        target=self._write_queue, name="segtrain-cache", daemon=True
                    )
                    self._writer.start()
                    atexit.register(self.flush, _PATIENCE)
                self._changed.notify_all()
        if lost:
            self._warn("entries that were not written, because the disk is too slow")

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is written. Returns False if ``timeout`` seconds pass before."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._queued, timeout)

    def _write_queue(self) -> None:
        while True:
            with self._lock:
                while not self._queue:
                    self._changed.wait()
                entry, content = self._queue.popleft()
            size = len(content)
            try:
                self.write(entry, content)
            # such as a warning that is raised as an error (python -W error)
            except Exception as error:
                with contextlib.suppress(Warning):
                    self._cannot_write(f"{type(error).__name__}: {error}")
            finally:
                del entry, content  # their bytes need not stay in memory while this thread waits
                with self._lock:
                    self._queued -= size
                    self._changed.notify_all()

    def write(self, entry: CachedRange, content: Any) -> bool:
        """Write an entry now. Returns whether it is in the cache. An error turns writing off, with
        a warning.
        """
        if self._off:
            return False
        try:
            if self.holds(entry):
                return True
            if not self._scanned:
                self.room()
            while not self._write(entry, content):
                if not self._evict(entry.size(len(content))):
                    return self._full()
            return True
        except OSError as error:
            self._cannot_write(error.strerror or str(error))
            return False

    def _write(self, entry: CachedRange, content: Any) -> bool:
        """Write an entry. Returns whether there was room for it. Raises OSError."""
        size = entry.size(len(content))
        with self._lock_of(".lock", exclusive=False):
            if self._count(size) > self.limit:
                self._count(-size)
                return False
            try:
                entry.write(self.folder, content)
            except OSError:
                self._count(-size)
                raise
        return True

    def _full(self) -> bool:
        message = (
            f"data.cache_gb={self.limit / 1e9:g}: {self.folder} is full of the data set in "
            "use. Each epoch reads "
        )
        self._turn_off(f"{message}the rest from the bucket: raise data.cache_gb to avoid that")
        return False

    def _cannot_write(self, reason: str) -> None:
        message = (
            f"data.cache_dir={self.folder}: cannot be written ({reason}): from here on, "
            "this process only reads the "
        )
        self._turn_off(f"{message}bucket: choose another data.cache_dir")

    def _warn(self, what: str) -> None:
        """Warn once: Python repeats no warning of the same text."""
        warnings.warn(f"data.cache_dir={self.folder}: {what}", stacklevel=3)

    def _turn_off(self, message: str) -> None:
        self._off = True
        with self._lock:
            dropped = sum(len(content) for _, content in self._queue)
            self._queue.clear()
            self._queued -= dropped
            self._changed.notify_all()
        warnings.warn(message, stacklevel=2)

    def room(self) -> int:
        """Bytes that may still be written without removing anything. Raises OSError."""
        if not self._scanned:
            with self._lock_of(".lock", exclusive=True):
                self._recount()
            if not self.limit:
                # The size of the cache counts as free space, so that each start computes the same
                # limit.
                self.limit = int(_OF_FREE * (self._count() + shutil.disk_usage(self.folder).free))
            self._scanned = True
        return self.limit - self._count()

    def _evict(self, size: int) -> bool:
        """Evict entries, unless another process just did. Returns whether there is room for
        ``size`` bytes.
        """
        with self._lock_of(".lock", exclusive=True):
            if self._count() + size > self.limit:
                self._recount(int(self.limit * (1 - _ROOM)) - size)
            return self._count() + size <= self.limit

    def _recount(self, most: int | None = None) -> None:
        """Count the bytes on the disk again.

        If ``most`` is given, the least recently used entries are first removed, until at most that
        many bytes are left.
        """
        files = list(self._files())
        total = sum(file.size for file in files)
        for file in self._removable(files) if most is not None and total > most else ():
            if most is not None and total > most:
                with contextlib.suppress(OSError):
                    os.unlink(file.path)
                    total -= file.size
        self._count(total - self._count())

    def _removable(self, files: list[CacheFile]) -> list[CacheFile]:
        """The entries that no data set of this process needs, least recently used first."""
        with self._lock:
            tables = {bucket: list(objects) for bucket, objects in self._read.items()}
        needed_marks = {
            bucket: np.concatenate([table.marks() for table in objects])
            for bucket, objects in tables.items()
            if objects
        }
        free = []
        for bucket in {file.bucket for file in files}:
            bucket_files = [file for file in files if file.bucket == bucket]
            marks = np.array([file.mark for file in bucket_files], np.uint64)
            needed = np.isin(marks, needed_marks.get(bucket, marks[:0]))
            free += [file for file, keep in zip(bucket_files, needed.tolist()) if not keep]
        return sorted(free)

    def _files(self) -> Iterator[CacheFile]:
        """All entries. Unfinished files of killed processes are removed."""
        for bucket in folders_in(self.folder):
            for folder in folders_in(bucket.path):
                with contextlib.suppress(OSError), os.scandir(folder.path) as items:
                    for item in items:
                        with contextlib.suppress(OSError):
                            status = item.stat()
                            if not item.name.startswith("."):
                                yield CacheFile(
                                    status.st_mtime, status.st_size, bucket.name, item.path
                                )
                            elif (
                                item.name.endswith(PARTIAL[-5:])
                                and status.st_mtime < time.time() - _OLD
                            ):
                                os.unlink(item.path)

    def _count(self, more: int = 0) -> int:
        """Add to the total size, which the processes of this host keep in one file. Returns it.
        Raises OSError.
        """
        with self._lock_of(".bytes") as handle:
            stored = os.read(handle, _COUNT.size)
            total = max(0, more + (_COUNT.unpack(stored)[0] if len(stored) == _COUNT.size else 0))
            if more:
                os.lseek(handle, 0, os.SEEK_SET)
                os.write(handle, _COUNT.pack(total))
            return total

    @contextlib.contextmanager
    def _lock_of(self, name: str, exclusive: bool = True) -> Iterator[int]:
        """Lock a file of the cache. Writers of entries share the lock of ".lock". Raises
        OSError.
        """
        path, flags = (
            f"{self.folder}/{name}",
            os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | NO_WAIT,
        )
        try:
            handle = os.open(path, flags, 0o666)
        except FileNotFoundError:  # the folder does not exist yet, or was removed in the meantime
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, flags, 0o666)
        try:
            with contextlib.suppress(ImportError, OSError):  # a system or file system without locks
                import fcntl

                fcntl.flock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield handle
        finally:
            os.close(handle)


@lru_cache
def disk_cache(folder: str, limit: int) -> DiskCache:
    """The cache in a folder, the same object for all callers in a process."""
    return DiskCache(Path(folder), limit)


def cache_of(data: Data) -> DiskCache:
    """The cache that the settings describe."""
    limit = 0 if data.cache_gb == "auto" else int(data.cache_gb * 1e9)
    return disk_cache(data.cache_dir or str(cache_folder() / "buckets"), limit)
