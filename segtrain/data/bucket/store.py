"""Store of a bucket: listings, sizes, and ranges of objects, taken from a read-ahead where one is
running.
"""

from __future__ import annotations

import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, BinaryIO

from segtrain.base.files import cache_folder, digest_of, writing
from segtrain.base.memory import memory_limit
from segtrain.bucket import key_in
from segtrain.bucket.client import Client, ObjectBytes, Stopped, client_of
from segtrain.bucket.faults import ends_early
from segtrain.bucket.listing import side_by_side
from segtrain.bucket.tally import RequestTally
from segtrain.data.bucket.ahead import ReadAhead
from segtrain.data.bucket.cache_entry import CachedRange
from segtrain.data.bucket.object_table import KnownObjects, etag_number, rows_of
from segtrain.data.bucket.shared_listing import pages, rows
from segtrain.data.checksum import checksum
from segtrain.data.storage import LOCAL, FileStat, Range, Store, system_folder
from segtrain.errors import DataError, file_error

if TYPE_CHECKING:
    from segtrain.data.bucket.disk_cache import DiskCache

# A stream reads an object in blocks of this size: the first block nearly always contains an image's
# header.
_BLOCK = 1 << 16
# An object up to this size is read at once: more requests would take longer.
_SMALL = 1 << 18
# Share of the memory that the read-aheads of a host may hold.
_MEMORY = 0.05
_MOST_MEMORY = 2 << 30
# Names of the objects, and names of the folders, in a folder.
Names = tuple[list[str], list[str]]


class BucketStore(Store):
    """Objects of a bucket; paths are URLs below ``base``, such as ``s3://bucket/train/a.png``.

    ``outage_s``: seconds without any answer after which a request fails. ``seen``: a file of known
    sizes and etags. ``cache``: stores the samples that are read. An object that was listed or read
    must keep its etag: a changed object is an error. A pickled store has all known etags in
    ``seen``, so that worker processes expect the same etags.
    """

    def __init__(
        self, base: str, outage_s: float, seen: str = "", cache: DiskCache | None = None
    ) -> None:
        self.base, self.outage_s, self.cache = base, outage_s, cache
        self.objects = KnownObjects(seen)
        self.keeps = cache is not None
        if cache is not None:
            cache.protect(base, self.objects)
        self._folders: dict[str, Names] = {}
        self._aheads: tuple[ReadAhead, ...] = ()
        # Bytes that a worker process received with its task, see prefetched.py.
        self.prefetched: dict[Range, bytes] = {}
        self._lock = threading.Lock()
        # For each worker thread, the entry and bytes of a sample of which it has read only one part
        # so far.
        self._before = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return BucketStore, (self.base, self.outage_s, self.objects.save(), self.cache)

    @property
    def _client(self) -> Client:
        return client_of(self.base)

    @property
    def tally(self) -> RequestTally:
        """Requests and retries of this process, for all stores of the bucket."""
        return self._client.tally

    def _key(self, path: str) -> str:
        return key_in(self.base, path)

    def place(self, root: str) -> str:
        return root.rstrip("/")

    def list(self, folder: str, ending: str) -> list[str]:
        objects, folders = (
            self._folder(self._key(folder)) if folder.startswith(self.base) else ([], [])
        )
        names = folders if ending == "/" else [name for name in objects if name.endswith(ending)]
        return sorted(
            name
            for name in names
            if not system_folder(name.rstrip("/"))
            and not self.leaves_out(f"{folder.rstrip('/')}/{name.rstrip('/')}")
        )

    def _folder(self, key: str) -> Names:
        """Names of the objects and of the folders in a folder, which is listed once."""
        if key not in self._folders:
            ((objects, folders),) = pages(f"{self.base}/{key}/", lambda: iter([self._listed(key)]))
            self.objects.extend([rows_of(objects)])
            names = [path.rpartition("/")[2] for path, *_ in objects]
            self._folders[key] = (
                names,
                [f"{name.rstrip('/').rpartition('/')[2]}/" for name in folders],
            )
        return self._folders[key]

    def _listed(self, key: str) -> Any:
        objects, folders = self._client.folder(key, self.outage_s)
        return rows(objects), folders

    def walk(self, folder: str) -> Iterator[str]:
        """Paths of all files below a folder, relative to it, in any order. Their etags are kept."""
        key, tables = self._key(folder), []
        for page in pages(
            f"{self.base}/{key}", lambda: map(rows, side_by_side(self._client, key, self.outage_s))
        ):
            tables.append(rows_of(page))
            yield from (
                path[len(key) + 1 if key else 0 :]
                for path, *_ in page
                if not self.leaves_out(f"{self.base}/{path}")
            )
        self.objects.extend(tables)

    def stat(self, path: str) -> FileStat:
        key = self._key(path)
        version = self.objects.find(key)
        if version is None:
            answer = self._client.head(key, self.outage_s)
            version = answer.size, answer.etag
            self.objects.add(key, *version)
        return FileStat(version[0], etag_number(version[1]))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        wanted = Range(path, offset, -1 if length is None else length)
        return bytes(self._content(wanted, keep=wanted == Range(path)))

    def view(self, path: str, offset: int, length: int) -> memoryview:
        # Not cached: headers and other small parts are needed only once.
        return memoryview(self._content(Range(path, offset, length), keep=False))

    def part(self, wanted: Range) -> memoryview:
        return memoryview(self._content(wanted))

    def content(self, path: str) -> memoryview:
        return memoryview(self._content(Range(path, 0, -1)))

    def mapped(self, path: str) -> memoryview:
        size = self.stat(path).size
        try:
            return LOCAL.view(self.copied(path), 0, size)
        except DataError as error:
            if error.code != "cache-unwritable":
                raise
            warnings.warn(
                f"{error}: each process keeps {size:,} bytes of {path} in memory", stacklevel=2
            )
            return self.content(path)

    def scan(self, path: str) -> Callable[[int, int], memoryview]:
        size, begin, block = self.stat(path).size, 0, memoryview(b"")

        def view(offset: int, length: int) -> memoryview:
            nonlocal begin, block
            if not begin <= offset <= offset + length <= begin + len(block):
                begin, block = (
                    offset,
                    self.view(path, offset, min(max(length, _SMALL), max(length, size - offset))),
                )
            return block[offset - begin : offset - begin + length]

        return view

    def copied(self, path: str) -> str:
        """A local copy of an object in the cache, made once for each etag. Raises DataError."""
        size, etag = self.stat(path)
        digest = digest_of(repr((path, size, etag)), 24)
        copy = cache_folder() / f"listing-copy-{digest}{os.path.splitext(path)[1]}"
        if copy.exists() and copy.stat().st_size == size:
            return str(copy)
        content = self.fetch(Range(path), None)
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            with writing(copy, sync=True) as stream:
                stream.write(content)
        except OSError as error:
            fix = "set SEGTRAIN_CACHE to a folder with free space"
            message = f"cannot be written ({error.strerror or error}): {fix}"
            raise file_error(
                str(copy), message, code="cache-unwritable", found=error.strerror
            ) from None
        return str(copy)

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        if self.stat(path).size <= _SMALL:
            return io.BytesIO(self.content(path))
        return io.BufferedReader(_ObjectStream(self, path), _BLOCK)  # type: ignore[return-value]

    def read_ahead(
        self, samples: Iterator[Sequence[Range]], batch: int, in_progress: int
    ) -> ReadAhead:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        most = int(min(_MOST_MEMORY, _MEMORY * memory_limit()[0] / ranks))
        local, repeated = self._is_cached, self.tally.repeated
        ahead = ReadAhead(self._fetch_or_cached, samples, batch, in_progress, most, local, repeated)
        with self._lock:
            running = (other for other in self._aheads if not other.closed)
            self._aheads = (*running, ahead)
        return ahead

    def _content(self, wanted: Range, keep: bool = True) -> Any:
        if wanted in self.prefetched:
            return self.prefetched.pop(wanted)
        passes = [ahead for ahead in self._aheads if not ahead.closed]
        # A pass that is being closed stops its workers, but not those of another pass.
        passes = [ahead for ahead in passes if not ahead.stop.is_set()] or passes
        for ahead in passes:
            try:
                if (content := ahead.take(wanted)) is not None:
                    return content
            except Stopped:
                if all(other.stop.is_set() for other in passes):
                    raise
        fetch = self._fetch_or_cached if keep else self.fetch
        return fetch(wanted, passes[0].stop if len(passes) == 1 else None)

    def _fetch_or_cached(self, wanted: Range, stop: threading.Event | None) -> Any:
        """The bytes of a range. With a disk cache, the whole sample is read from the cache, or
        fetched and cached.
        """
        whole = wanted.within or wanted
        entry = self.entry(whole) if self.cache is not None else None
        if self.cache is None or entry is None:
            return self.fetch(wanted, stop)
        # A worker reads the image and then the mask of a sample, so the bytes of the whole sample
        # are kept in between.
        before: tuple[CachedRange, Any] | None = getattr(self._before, "read", None)
        content = before[1] if before and before[0] == entry else self.cache.get(entry)
        if content is None:
            content = self.fetch(whole, stop)
            self.cache.put(entry, content)
        if whole is wanted:
            return content
        self._before.read = None if before and before[0] == entry else (entry, content)
        begin = wanted.offset - whole.offset
        return memoryview(content)[begin : begin + wanted.length]

    def _is_cached(self, wanted: Range) -> bool:
        entry = self.entry(wanted.within or wanted) if self.keeps else None
        return self.cache is not None and entry is not None and self.cache.holds(entry)

    def entry(self, wanted: Range) -> CachedRange | None:
        """The cache entry of an object or of a sample in a shard; None if its etag is unknown or
        the range is empty.
        """
        key = self._key(wanted.path)
        version = self.objects.find(key)
        return (
            CachedRange(self.base, key, version[1], wanted.offset, wanted.length)
            if version and wanted.length
            else None
        )

    def fetch(self, wanted: Range, stop: threading.Event | None) -> Any:
        """The bytes of a range, in one request. The object must have the etag that it was listed or
        read with.

        An answer whose checksum differs from that in the index is fetched once more.
        """
        answer = self._answer(wanted, stop)
        if wrong_part(wanted, answer.content):
            self.tally.withdrawn("checksum", len(answer.content), answer.seconds)
            answer = self._answer(wanted, stop)
            if wrong := wrong_part(wanted, answer.content):
                raise wrong
        return answer.content

    def _answer(self, wanted: Range, stop: threading.Event | None) -> ObjectBytes:
        path, offset, length = wanted[:3]
        key = self._key(path)
        version = self.objects.find(key)
        size, etag = version or (-1, "")
        if not length or (length < 0 and not size):
            return ObjectBytes(b"", 0, etag)
        if length < 0 and offset:
            length = max(0, self.stat(path).size - offset)
        span = None if length < 0 else (offset, offset + length)
        if version and span and span[1] > size:
            raise ends_early(path, size, span[1])
        answer = self._client.get(key, span, etag, self.outage_s, stop, size)
        if version is None:
            self.objects.add(key, answer.size, answer.etag)
        return answer


def wrong_part(wanted: Range, content: Any) -> DataError | None:
    """The error for the first part of a range that fails one of ``wanted.checks``; None if all
    parts are right.
    """
    for offset, length, expected in wanted.checks:
        actual = checksum(memoryview(content)[offset : offset + length])
        if actual != expected:
            at = wanted.offset + offset
            reason = (
                f"bytes {at:,} to {at + length:,} have the checksum {actual:08x}, but had "
                f"{expected:08x} when they "
                "were packed: upload or pack the shard again"
            )
            values = {"byte": at, "found": actual, "expected": expected}
            return file_error(wanted.path, reason, code="sample-checksum", **values)
    return None


class _ObjectStream(io.RawIOBase):
    """An object as a seekable stream."""

    def __init__(self, store: BucketStore, path: str) -> None:
        super().__init__()
        self._store, self._path, self._at = store, path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        size = self._store.stat(self._path).size
        self._at = max(
            0, {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: size}[whence] + offset
        )
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._store.stat(self._path).size - self._at))
        if count:
            buffer[:count] = self._store.view(self._path, self._at, count)
            self._at += count
        return count
